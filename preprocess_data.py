"""Turn json, jsonl and parquet files into Megatron indexed files: `python preprocess_data.py --help`."""

import os
import signal
import sys

from mindllm.data.cli import main

if __name__ == "__main__":
    # A scheduler's SIGTERM ends it as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not any(argument.startswith("--handler-file") for argument in sys.argv):
        # transformers imports torch where it finds it. That takes seconds, and tokenizers need nothing of it.
        sys.modules["torch"] = None  # type: ignore[assignment]
        os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # of which one says that torch was not found
    sys.exit(main())
