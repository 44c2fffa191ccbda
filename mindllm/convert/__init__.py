"""The program behind convert_ckpt.py: from Hugging Face to megatron-core checkpoints and back, tensor by tensor."""

from mindllm.convert.converter import convert, convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.convert.options import Options

__all__ = ["Options", "convert", "convert_hf_to_mcore", "convert_mcore_to_hf"]
