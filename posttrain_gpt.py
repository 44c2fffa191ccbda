"""Run a post-training stage from a YAML configuration: `python posttrain_gpt.py --help`."""

import sys

from mindllm.__main__ import posttrain

if __name__ == "__main__":
    sys.exit(posttrain(sys.argv[1:]))
