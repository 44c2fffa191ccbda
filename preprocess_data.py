"""Turn json, jsonl and parquet files into Megatron indexed files: `python preprocess_data.py --help`."""

import sys

from mindllm.data.cli import main

if __name__ == "__main__":
    sys.exit(main())
