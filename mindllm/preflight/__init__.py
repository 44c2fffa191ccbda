"""Everything that can be known to be wrong before a process starts or a model loads."""

from mindllm.preflight.check import check

__all__ = ["check"]
