"""Turn json, jsonl and parquet files into Megatron indexed files: `python preprocess_data.py --help`."""

import sys

from mindllm.__main__ import preprocess

if __name__ == "__main__":
    sys.exit(preprocess(sys.argv[1:]))
