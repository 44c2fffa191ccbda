"""Convert models between Hugging Face safetensors and megatron-core checkpoints: `python convert_ckpt.py --help`."""

import sys

from mindllm.checkpoint.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
