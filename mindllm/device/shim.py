"""What unedited megatron-core 0.16.1 needs from ``torch.cuda`` on a machine without CUDA.

megatron-core addresses "the accelerator" as ``torch.cuda`` even where gloo and CPU tensors would do. Each function
below redirects one group of names to the CPU; ``install`` applies them all and must run before megatron.core is
imported, because megatron binds several of the names at import time. Every patched name gets its own function object:
torch's dynamo tables are keyed by object identity and refuse duplicates.
"""

import contextlib
import functools
import logging
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device

_CPU = torch.device("cpu")
_FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange", "empty_like")


def _noop() -> Callable[..., None]:
    return lambda *args, **kwargs: None


def _patch_device_queries() -> None:
    torch.cuda.current_device = lambda: _CPU
    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = _noop()
    torch.cuda.synchronize = _noop()
    torch.cuda.memory_stats = lambda *args, **kwargs: {}
    torch.cuda.memory_allocated = lambda *args, **kwargs: 0
    torch.cuda.max_memory_allocated = lambda *args, **kwargs: 0


class _CpuGenerators(tuple):
    """``torch.cuda.default_generators`` that answers any index, also a ``torch.device``, with the CPU generator."""

    def __getitem__(self, index: Any) -> torch.Generator:
        return torch.default_generator


def _patch_random_state() -> None:
    generator = torch.default_generator
    torch.cuda.default_generators = _CpuGenerators((generator,))
    torch.cuda._lazy_call = lambda callback, **kwargs: callback()
    # The accelerator's generator is the CPU's here, so megatron's warning that one disturbed the other is always wrong.
    logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)
    for namespace in (torch.cuda, torch.cuda.random):
        namespace.get_rng_state = lambda device="cuda": generator.get_state()
        namespace.set_rng_state = lambda state, device="cuda": generator.set_state(state)
        namespace.manual_seed = generator.manual_seed


class _CpuEvent:
    """A host-clock stand-in for ``torch.cuda.Event``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._time_s = time.perf_counter()

    def record(self, *args: Any) -> None:
        self._time_s = time.perf_counter()

    def wait(self, *args: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "_CpuEvent") -> float:
        return (other._time_s - self._time_s) * 1e3


class _CpuStream:
    """A stand-in for ``torch.cuda.Stream``: CPU work is already in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or _CpuEvent()


def _patch_streams() -> None:
    stream = _CpuStream()
    torch.cuda.Stream, torch.cuda.Event = _CpuStream, _CpuEvent
    torch.cuda.current_stream = lambda *args, **kwargs: stream
    torch.cuda.default_stream = lambda *args, **kwargs: stream
    torch.cuda.stream = lambda *args, **kwargs: contextlib.nullcontext()
    torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop = _noop(), _noop()


def _patch_placement() -> None:
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    torch.nn.Module.cuda = lambda self, *args, **kwargs: self
    original_type = torch.Tensor.type

    @functools.wraps(original_type)
    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Megatron's optimizers sort parameters by the string ``torch.cuda.FloatTensor``."""
        result = original_type(self, *args, **kwargs)
        is_query = not args and not kwargs and isinstance(result, str)
        return result.replace("torch.", "torch.cuda.", 1) if is_query else result

    torch.Tensor.type = type_


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def wrapped(*args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        if device is not None and torch.device(device).type == "cuda":
            device = _CPU
        return factory(*args, device=device, **kwargs)

    return wrapped


def _patch_factories() -> None:
    # torch's ``with device(...)`` blocks recognise factories by identity from a table made at its first use. Made after
    # the patch it would miss the originals, and transformers would leave buffers on the meta device uninitialised.
    torch.utils._device._device_constructors()
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _disable_jit_fuser() -> None:
    """Megatron's ``jit_fuser`` is ``torch.compile``, which on CPU would run a C++ compiler in every process."""
    torch_compile = torch.compile
    torch.compile = lambda fn=None, *args, **kwargs: fn if fn is not None else (lambda inner: inner)
    try:
        import megatron.core.jit

        megatron.core.jit.disable_jit_fuser()
    finally:
        torch.compile = torch_compile


@functools.cache
def install() -> None:
    """Apply every patch once per process."""
    _patch_device_queries()
    _patch_random_state()
    _patch_streams()
    _patch_placement()
    _patch_factories()
    _disable_jit_fuser()
