"""Model families: what a Hugging Face config and its tensors mean. Free of torch and megatron; see ``registry``."""

from mindllm.models.families.architecture import (
    Architecture,
    LatentAttention,
    Llama3RopeScaling,
    MixtureOfExperts,
    YarnRopeScaling,
    unsupported_for_training,
)
from mindllm.models.families.base import Family, fp8_block
from mindllm.models.families.fields import dtype_name
from mindllm.models.families.registry import family_of, load_architecture, read_config
from mindllm.models.families.weights import EMBEDDING_KEY, OUTPUT_KEY, Weight

__all__ = [
    "EMBEDDING_KEY",
    "OUTPUT_KEY",
    "Architecture",
    "Family",
    "LatentAttention",
    "Llama3RopeScaling",
    "MixtureOfExperts",
    "Weight",
    "YarnRopeScaling",
    "dtype_name",
    "family_of",
    "fp8_block",
    "load_architecture",
    "read_config",
    "unsupported_for_training",
]
