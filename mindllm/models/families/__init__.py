"""Model families: what a Hugging Face config and its tensors mean. Free of torch and megatron; see ``registry``."""

from mindllm.models.families.architecture import Architecture, Llama3RopeScaling
from mindllm.models.families.base import Family
from mindllm.models.families.registry import family_of, load_architecture, read_config
from mindllm.models.families.weights import EMBEDDING_KEY, OUTPUT_KEY, Weight

__all__ = [
    "EMBEDDING_KEY",
    "OUTPUT_KEY",
    "Architecture",
    "Family",
    "Llama3RopeScaling",
    "Weight",
    "family_of",
    "load_architecture",
    "read_config",
]
