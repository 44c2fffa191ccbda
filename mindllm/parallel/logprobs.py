"""Log-probabilities and entropies from vocabulary-sharded logits: the one place that computes them."""

from typing import Any

from mindllm.device import current_device

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from torch import Tensor


class _VocabParallelLogProb(torch.autograd.Function):
    """log p(target) and entropy of a softmax whose columns are spread over the tensor-parallel ranks.

    The collectives sit inside one autograd node with a hand-written backward: an all-reduce in the graph would give the
    right values and wrong gradients. Per row three numbers travel, never a logit of another shard.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, vocab_size: int, temperature: float
    ) -> tuple[Tensor, Tensor]:
        group, width = mpu.get_tensor_model_parallel_group(), logits.shape[-1]
        first = mpu.get_tensor_model_parallel_rank() * width
        scaled = logits.float() / temperature if temperature != 1.0 else logits.float().clone()
        # Columns beyond the true vocabulary pad the shards to equal width and are no tokens.
        scaled[:, max(0, vocab_size - first) :] = float("-inf")
        peak = scaled.amax(-1) if scaled.shape[0] else scaled.new_empty(0)
        if group.size() > 1:
            dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
        scaled -= peak[:, None]
        local = targets - first
        owned = (local >= 0) & (local < width)
        column = torch.where(owned, local, 0)
        target_score = torch.where(owned, scaled.gather(1, column[:, None])[:, 0], 0.0)
        exponentials = scaled.exp()
        weighted = torch.where(exponentials > 0, exponentials * scaled, 0.0).sum(-1)
        sums = torch.stack((exponentials.sum(-1), target_score, weighted))
        if group.size() > 1:
            dist.all_reduce(sums, group=group)
        total, target_score, weighted = sums
        log_total = total.log()
        entropy = log_total - weighted / total
        probabilities = exponentials.div_(total[:, None])
        ctx.save_for_backward(probabilities, column, owned, entropy)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        return target_score - log_total, entropy

    @staticmethod
    def backward(ctx: Any, grad_logprob: Tensor, grad_entropy: Tensor | None) -> tuple[Tensor, None, None, None]:
        probabilities, column, owned, entropy = ctx.saved_tensors
        grad = probabilities * (-grad_logprob[:, None])
        grad.scatter_add_(1, column[:, None], torch.where(owned, grad_logprob, 0.0)[:, None])
        if grad_entropy is not None and bool(grad_entropy.any()):
            # dH/dz = -p (log p + H)
            surprise = torch.where(probabilities > 0, probabilities.log() + entropy[:, None], 0.0)
            grad -= grad_entropy[:, None] * probabilities * surprise
        return (grad / ctx.temperature).to(ctx.dtype), None, None, None


def vocab_parallel_logprobs(
    logits: Tensor, targets: Tensor, vocab_size: int, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy (nats) of each row under softmax(logits / temperature).

    Args:
        logits: [rows, padded vocabulary / tp], this rank's columns.
        targets: [rows] int64 global token ids below ``vocab_size``.
        vocab_size: true vocabulary size; columns beyond it do not count.
        temperature: the sampling temperature; rollout, old, reference and new log-probs share one.

    Returns:
        (log-probs [rows], entropies [rows]), fp32, equal on all tensor-parallel ranks and differentiable in ``logits``.
    """
    return _VocabParallelLogProb.apply(logits, targets.to(current_device()), vocab_size, temperature)
