"""Convert models between Hugging Face safetensors and megatron-core checkpoints: `python convert_ckpt.py --help`."""

import sys

from mindllm.__main__ import convert

if __name__ == "__main__":
    sys.exit(convert(sys.argv[1:]))
