"""mindllm: tensor- and pipeline-parallel post-training of language models on megatron-core."""

__version__ = "0.1.0"
