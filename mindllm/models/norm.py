"""RMSNorm for megatron's local layer spec."""

from typing import Any

import torch
from torch import Tensor


class RMSNorm(torch.nn.Module):
    """Root-mean-square norm that also works under sequence parallelism.

    megatron-core's ``WrappedTorchNorm`` refuses sequence parallelism; marking the weight is all that it takes for the
    weight's gradient to be summed over the tensor-parallel ranks. fp32 inside, as Hugging Face's RMSNorm modules.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden_size] -> same shape and dtype."""
        normed = torch.nn.functional.rms_norm(x.float(), (x.shape[-1],), eps=self.eps)
        return self.weight * normed.to(x.dtype)
