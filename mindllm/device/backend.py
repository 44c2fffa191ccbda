"""Accelerator queries: device, collective backend, layer spec, kernels and attention that fit the machine."""

import functools
import importlib.util
import inspect
import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def has_accelerator() -> bool:
    """Whether CUDA devices are usable; ``MINDLLM_DEVICE=cpu`` hides them."""
    return os.environ.get("MINDLLM_DEVICE", "auto") != "cpu" and torch.cuda.is_available()


def prepare_megatron() -> None:
    """Make this process ready to import megatron-core; idempotent, called when the package is imported.

    ``CUDA_DEVICE_MAX_CONNECTIONS=1`` is what megatron-core asks for so that collectives overlap with computation.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    _quieten_libraries()
    if not has_accelerator():
        from mindllm.device import shim

        shim.install()
    from mindllm.device import megatron_fixes

    megatron_fixes.apply()


def _quieten_libraries() -> None:
    """Hide what megatron-core and torch say about each other's interfaces: a user can do nothing about it."""
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(torch|megatron)\.")
    for message in (".*[Aa]pex.*", ".*[Tt]ransformer [Ee]ngine.*", "full scope is deprecated", "The .grad attribute"):
        warnings.filterwarnings("ignore", message=message)


@dataclass(frozen=True)
class DeviceInfo:
    """What one rank computes on."""

    kind: str
    collective_backend: str
    transformer_engine: bool
    apex: bool


def has_transformer_engine() -> bool:
    """Whether NVIDIA's Transformer Engine can be imported here and has a device to run on."""
    return has_accelerator() and importlib.util.find_spec("transformer_engine") is not None


def has_apex() -> bool:
    """Whether NVIDIA's apex is installed (PyPI's unrelated ``apex`` has no ``multi_tensor_apply``)."""
    return importlib.util.find_spec("apex") is not None and importlib.util.find_spec("amp_C") is not None


def collective_backend() -> str:
    """``nccl`` with CUDA, else ``gloo``."""
    return "nccl" if has_accelerator() else "gloo"


def device_info() -> DeviceInfo:
    """Describe this process's device for the run report."""
    kind = torch.cuda.get_device_name() if has_accelerator() else "cpu"
    return DeviceInfo(kind, collective_backend(), has_transformer_engine(), has_apex())


def current_device() -> torch.device:
    """The device tensors of this rank live on."""
    return torch.device("cuda", torch.cuda.current_device()) if has_accelerator() else torch.device("cpu")


def bind_local_device(local_rank: int) -> None:
    """Bind this process to one of the devices that are visible to it; nothing to do on CPU."""
    if has_accelerator():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())


def limit_threads() -> None:
    """One compute thread per rank unless ``OMP_NUM_THREADS`` says otherwise: ranks share the cores of a node."""
    if not has_accelerator():
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def synchronize() -> None:
    """Wait for the device's queued work, so that wall-clock intervals are true."""
    if has_accelerator():
        torch.cuda.synchronize()


def megatron_kernel_flags() -> dict[str, Any]:
    """TransformerConfig fields that choose kernels; everything that needs CUDA, TE or apex is off without it."""
    accelerated = has_accelerator()
    return {
        "gradient_accumulation_fusion": accelerated and has_apex(),
        "persist_layer_norm": accelerated and has_apex(),
        "masked_softmax_fusion": False,
        "bias_activation_fusion": accelerated,
        "bias_dropout_fusion": accelerated,
        "apply_rope_fusion": False,
    }


def layer_spec(qk_layernorm: bool, norm: type, core_attention: type) -> Any:
    """Transformer layer ModuleSpec: Transformer Engine's linear layers where TE is there, else megatron's local ones.

    Args:
        qk_layernorm: normalise queries and keys per head (Qwen3).
        norm: RMSNorm class for the local spec (TE brings its own).
        core_attention: class injected as the core attention in both.
    """
    from megatron.core.models.gpt import gpt_layer_specs

    if has_transformer_engine():
        spec = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(qk_layernorm=qk_layernorm)
    else:
        spec = gpt_layer_specs.get_gpt_layer_local_spec(qk_layernorm=qk_layernorm, normalization="RMSNorm")
        spec.submodules.input_layernorm = norm
        spec.submodules.pre_mlp_layernorm = norm
        if qk_layernorm:
            spec.submodules.self_attention.submodules.q_layernorm = norm
            spec.submodules.self_attention.submodules.k_layernorm = norm
    spec.submodules.self_attention.submodules.core_attention = core_attention
    return spec


def attention_segments(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], scale: float) -> Tensor:
    """Causal attention of packed segments; tokens of different segments never see each other.

    Args:
        query: [tokens, heads, head_dim]; key, value: [tokens, kv_heads, head_dim].
        lengths: tokens per segment; their sum is ``tokens``.
        scale: factor on the scores before the softmax.

    Returns:
        [tokens, heads, head_dim]
    """
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _flash_segments(query, key, value, lengths, scale)
    return _sdpa_segments(query, key, value, lengths, scale)


@functools.cache
def _varlen_attn_takes_groups() -> bool:
    """Whether this torch has a ``varlen_attn`` that knows a scale and grouped keys: 2.12 and later."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"scale", "window_size", "enable_gqa"} <= inspect.signature(varlen_attn).parameters.keys()


def _flash_segments(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], scale: float) -> Tensor:
    """Run all segments in one call of the flash attention kernel, which groups query heads by itself."""
    bounds = torch.tensor([0, *lengths], device=query.device).cumsum(0).to(torch.int32)
    longest = max(lengths)
    packed = (query, key, value, bounds, bounds, longest, longest)
    if not _varlen_attn_takes_groups():
        # The operator below `varlen_attn`, which older releases have with these arguments, and with its gradient.
        dropout, is_causal, return_mask = 0.0, True, False
        found = torch.ops.aten._flash_attention_forward(*packed, dropout, is_causal, return_mask, scale=scale)
        output: Tensor = found[0]
        return output
    from torch.nn.attention.varlen import varlen_attn

    grouped = key.shape[1] != query.shape[1]
    return varlen_attn(*packed, scale=scale, window_size=(-1, 0), enable_gqa=grouped)


def _sdpa_segments(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], scale: float) -> Tensor:
    """Run equal-length neighbours as one batch, so that a pack of equal segments costs one kernel call."""
    grouped = key.shape[1] != query.shape[1]
    outputs, start, index = [], 0, 0
    while index < len(lengths):
        length, count = lengths[index], 1
        while index + count < len(lengths) and lengths[index + count] == length:
            count += 1
        stop = start + length * count
        q, k, v = (x[start:stop].unflatten(0, (count, length)).transpose(1, 2) for x in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
        start, index = stop, index + count
    return torch.cat(outputs)
