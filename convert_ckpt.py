"""Convert models between Hugging Face safetensors and megatron-core checkpoints: `python convert_ckpt.py --help`."""

import signal
import sys

from mindllm.checkpoint.cli import main

if __name__ == "__main__":
    # A scheduler's SIGTERM ends it as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
