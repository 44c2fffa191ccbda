"""Packaging of mindllm: version ranges here, the exact versions tested together in constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "mindllm" / "__init__.py").read_text(encoding="utf-8")).group(1)

setup(
    name="mindllm",
    version=VERSION,
    description="Tensor- and pipeline-parallel post-training of language models on megatron-core and Ray",
    packages=find_packages(include=["mindllm", "mindllm.*"]),
    python_requires=">=3.11",
    install_requires=[
        "torch>=2.6",
        "megatron-core>=0.16.1,<0.17",  # mindllm.device patches this minor version
        "transformers>=5.0",
        "tokenizers>=0.22",
        "sentencepiece>=0.2.3",
        "safetensors>=0.5",
        "numpy>=2.0",
        "pyarrow>=18",
        "hydra-core>=1.3,<1.4",
        "omegaconf>=2.3,<2.4",
        "pydantic>=2.10",
        "PyYAML>=6",
        "ray>=2.40",
        "math-verify>=0.8",
        "jinja2>=3.1",
        "rich>=13",
        "filelock>=3.13",
        "psutil>=5.9",  # imported by megatron-core when it saves; it does not ask for it, and hangs without
        "tensorboard>=2.18",
    ],
    extras_require={
        "te": ["transformer-engine[pytorch]"],  # GPU machines only; found at run time, never required
        "test": [
            "pytest>=8",
            "pytest-timeout>=2.3",
            "ruff>=0.9",
            "mypy>=1.14",
            "import-linter>=2.1",
            "types-PyYAML",
        ],
        "tiktoken": ["tiktoken>=0.12"],  # a faster engine for byte-level BPE tokenizers, used where its ids are equal
        # Compared with in tests and benchmarks, never imported by mindllm.
        "peers": [
            "trl>=1.12,<1.13",
            "peft>=0.17",
            "datasets>=5",
            "gguf>=0.19",
            "mistral-common>=1.9",
            "tiktoken>=0.12",
        ],
    },
)
