"""What an update minimises: small picklable descriptions that a rank turns into the loss of one micro-batch."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mindllm.algorithms import kl_loss, policy_loss, sft_loss
from mindllm.algorithms.aggregation import masked_sum
from mindllm.parallel.logprobs import vocab_parallel_logprobs
from mindllm.parallel.microbatch import MicroBatch


class Objective(Protocol):
    """A loss over response tokens; its denominators were counted over the whole optimizer step by the driver."""

    def loss(self, batch: MicroBatch, logits: Tensor, vocab_size: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of one micro-batch and its metrics: sums over tokens, and maxima under names that end in ``_max``.

        Args:
            batch: packed sequences with the per-token fields the objective reads, on the device.
            logits: [response tokens, padded vocabulary / tp].
            vocab_size: true vocabulary size.
        """


@dataclass(frozen=True)
class SftObjective:
    """Maximum likelihood of the trained tokens. ``num_tokens``: trained tokens of the optimizer step."""

    num_tokens: int

    def loss(self, batch: MicroBatch, logits: Tensor, vocab_size: int) -> tuple[Tensor, dict[str, Tensor]]:
        """See ``Objective``."""
        logprobs, _ = vocab_parallel_logprobs(logits, batch.targets, vocab_size)
        loss = sft_loss(logprobs, batch.sequences.loss_mask, self.num_tokens)
        return loss, {"loss": loss.detach()}


@dataclass(frozen=True)
class PolicyObjective:
    """Clipped policy gradient, plus KL to the reference and minus entropy where their weights are not 0.

    num_tokens: trained tokens of the optimizer step; here the denominator of all three terms, whose masks are equal.
    """

    num_tokens: int
    temperature: float
    clip_low: float
    clip_high: float
    dual_clip: float | None
    entropy_coeff: float
    kl_coef: float
    kl_kind: str

    def loss(self, batch: MicroBatch, logits: Tensor, vocab_size: int) -> tuple[Tensor, dict[str, Tensor]]:
        """See ``Objective``."""
        fields = batch.sequences
        mask = fields.loss_mask
        logprobs, entropy = vocab_parallel_logprobs(logits, batch.targets, vocab_size, self.temperature)
        policy = policy_loss(
            logprobs,
            fields.old_logprobs,
            fields.advantages,
            mask,
            self.num_tokens,
            self.clip_low,
            self.clip_high,
            self.dual_clip,
        )
        entropy_sum = masked_sum(entropy, mask)
        total = policy.loss
        sums = {
            "pg_loss": policy.loss.detach(),
            "pg_clipfrac": policy.clip_fraction_sum / self.num_tokens,
            "pg_clipfrac_lower": policy.dual_clip_sum / self.num_tokens,
            "ppo_kl": policy.kl_sum / self.num_tokens,
            "ratio_deviation_max": policy.ratio_deviation_max,
            "entropy": entropy_sum.detach() / self.num_tokens,
        }
        if self.entropy_coeff:
            total = total - self.entropy_coeff * entropy_sum / self.num_tokens
        if self.kl_coef:
            kl = kl_loss(logprobs, fields.ref_logprobs, mask, self.kl_kind, self.num_tokens)
            total = total + self.kl_coef * kl.loss
            sums["kl_loss"] = kl.loss.detach()
            sums["kl_clamped"] = kl.clamped_sum / self.num_tokens
        return total, sums
