"""The only room that knows one accelerator from another, and which optional NVIDIA libraries are there.

Importing this package prepares the process for megatron-core, so it must be imported before ``megatron.core``; the
import order in every other room puts it first.
"""

from mindllm.device.backend import (
    DeviceInfo,
    attention_segments,
    bind_local_device,
    collective_backend,
    current_device,
    device_info,
    has_accelerator,
    layer_spec,
    limit_threads,
    megatron_kernel_flags,
    prepare_megatron,
    synchronize,
)
from mindllm.device.memory import PeakMemory, total_memory_bytes

prepare_megatron()

__all__ = [
    "DeviceInfo",
    "PeakMemory",
    "attention_segments",
    "bind_local_device",
    "collective_backend",
    "current_device",
    "device_info",
    "has_accelerator",
    "layer_spec",
    "limit_threads",
    "megatron_kernel_flags",
    "synchronize",
    "total_memory_bytes",
]
