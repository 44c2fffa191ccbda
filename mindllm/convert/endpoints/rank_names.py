"""What other modules of megatron-core call, and how they store, the tensors of a rank's file. No torch.

Files written here have the names of Transformer Engine's layers and of experts that are modules of their own
(``local_experts``). Megatron also saves local layers, whose norms are modules of their own, and experts whose matrices
are one tensor (``GroupedMLP``) or numbered tensors of one module (``TEGroupedMLP``).
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mindllm.formats.torch_archive import StoredTensor

# A norm of a local layer, and the linear layer into which Transformer Engine fuses it.
_FUSED = {
    "input_layernorm.weight": "self_attention.linear_qkv",
    "pre_mlp_layernorm.weight": "mlp.linear_fc1",
    "self_attention.q_layernorm.weight": "self_attention.linear_q_up_proj",
    "self_attention.kv_layernorm.weight": "self_attention.linear_kv_up_proj",
}
_NUMBERED = re.compile(r"(.*\.mlp\.experts\.)(linear_fc[12])\.weight(\d+)")
_GROUPED = re.compile(r"(.*\.mlp\.experts\.)weight([12])")
_NORM = re.compile(rf"(decoder\.layers\.\d+\.)({'|'.join(map(re.escape, _FUSED))})")


def renamed(chunk: Mapping[str, Any], num_local_experts: int) -> dict[str, Any]:
    """Return a model chunk's state under the names written here; ``num_local_experts`` are on this rank."""
    return {name: value for key in chunk for name, value in _entries(chunk, key, num_local_experts)}


def _entries(chunk: Mapping[str, Any], key: str, num_local_experts: int) -> Iterator[tuple[str, Any]]:
    value = chunk[key]
    if match := _NORM.fullmatch(key):
        linear = match[1] + _FUSED[match[2]]
        yield f"{linear}.layer_norm_weight" if f"{linear}.weight" in chunk else key, value
    elif match := _NUMBERED.fullmatch(key):
        yield f"{match[1]}local_experts.{match[3]}.{match[2]}.weight", value
    elif (match := _GROUPED.fullmatch(key)) and isinstance(value, StoredTensor) and num_local_experts:
        for expert, part in enumerate(_ungrouped(value, match[2] == "1", num_local_experts)):
            yield f"{match[1]}local_experts.{expert}.linear_fc{match[2]}.weight", part
    else:
        yield key, value


def _ungrouped(stored: StoredTensor, is_first: bool, num_experts: int) -> Iterator[StoredTensor]:
    """Yield the matrices that ``GroupedMLP`` keeps in one tensor, as views of it.

    It multiplies tokens by the blocks of ``[num_experts, inputs, outputs]``, whatever shape the tensor is given; a
    linear layer's weight is ``[outputs, inputs]``.
    """
    rows, columns = stored.shape
    inputs, outputs = (rows, columns // num_experts) if is_first else (rows // num_experts, columns)
    for expert in range(num_experts):
        offset = stored.offset + expert * inputs * outputs
        yield dataclasses.replace(stored, shape=(outputs, inputs), offset=offset, stride=(1, outputs))
