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
from mindllm.algorithms.aggregation import AGGREGATIONS, Aggregation, aggregate, masked_sum, token_mean, token_weights
from mindllm.algorithms.controllers import (
    AdaptiveKLController,
    FixedKLController,
    KLController,
    make_kl_controller,
)
from mindllm.algorithms.kl import KL_ESTIMATORS, KlLoss, kl_loss, kl_penalty
from mindllm.algorithms.losses import PolicyLoss, policy_loss, sft_loss
from mindllm.algorithms.preferences import PairwiseLoss, bradley_terry_loss
from mindllm.algorithms.returns import gae, token_rewards
from mindllm.algorithms.scaling import mean
from mindllm.algorithms.values import ValueLoss, explained_variance, value_loss
from mindllm.algorithms.whitening import masked_whiten

__all__ = [
    "ADVANTAGE_ESTIMATORS",
    "AGGREGATIONS",
    "AdaptiveKLController",
    "Aggregation",
    "FixedKLController",
    "KLController",
    "KL_ESTIMATORS",
    "KlLoss",
    "PairwiseLoss",
    "PolicyLoss",
    "ValueLoss",
    "aggregate",
    "bradley_terry_loss",
    "broadcast_to_tokens",
    "explained_variance",
    "gae",
    "group_advantages",
    "kl_loss",
    "kl_penalty",
    "make_kl_controller",
    "masked_sum",
    "masked_whiten",
    "mean",
    "policy_loss",
    "sft_loss",
    "token_mean",
    "token_rewards",
    "token_weights",
    "value_loss",
]
