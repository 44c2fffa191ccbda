"""Pure tensor functions: advantages, KL estimators, losses and their aggregation.

Everything works on flat, jagged tensors: a per-token tensor is ``[num_tokens]`` (all sequences after one another, no
padding), a per-sequence tensor ``[num_sequences]``. Nothing here knows about ranks: a loss is a sum divided by a
denominator that the caller counted over the whole optimizer step, and a metric is a sum with its count, so that both
can be added over micro-batches and ranks.
"""

from mindllm.algorithms.advantages import (
    ADVANTAGE_ESTIMATORS,
    broadcast_to_tokens,
    group_advantages,
)
from mindllm.algorithms.aggregation import masked_sum, token_mean
from mindllm.algorithms.kl import KL_ESTIMATORS, KlLoss, kl_loss, kl_penalty
from mindllm.algorithms.losses import PolicyLoss, policy_loss, sft_loss

__all__ = [
    "ADVANTAGE_ESTIMATORS",
    "KL_ESTIMATORS",
    "KlLoss",
    "PolicyLoss",
    "broadcast_to_tokens",
    "group_advantages",
    "kl_loss",
    "kl_penalty",
    "masked_sum",
    "policy_loss",
    "sft_loss",
    "token_mean",
]
