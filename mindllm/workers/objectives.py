"""What an update minimises: small picklable descriptions that a rank turns into the loss of one micro-batch."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from mindllm.algorithms import bradley_terry_loss, kl_loss, policy_loss, sft_loss, value_loss
from mindllm.algorithms.aggregation import aggregate, masked_sum
from mindllm.parallel.logprobs import vocab_parallel_logprobs
from mindllm.parallel.microbatch import MicroBatch, Rows


class Objective(Protocol):
    """A loss; its denominators were counted over the whole optimizer step by the driver.

    rows: what the model's head reads. unit: how many neighbouring sequences must share a micro-batch.
    """

    rows: ClassVar[Rows]
    unit: ClassVar[int]

    def loss(self, batch: MicroBatch, output: Tensor, vocab_size: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of one micro-batch and its metrics: sums over tokens, and maxima under names that end in ``_max``.

        Args:
            batch: packed sequences with the per-token fields the objective reads, on the device.
            output: [rows, padded vocabulary / tp] logits of a language model, or [rows] of a scalar head.
            vocab_size: true vocabulary size.
        """


@dataclass(frozen=True)
class SftObjective:
    """Maximum likelihood of the trained tokens. ``num_tokens``: trained tokens of the optimizer step."""

    num_tokens: int
    rows: ClassVar[Rows] = "actions"
    unit: ClassVar[int] = 1

    def loss(self, batch: MicroBatch, output: Tensor, vocab_size: int) -> tuple[Tensor, dict[str, Tensor]]:
        """See ``Objective``."""
        logprobs, _ = vocab_parallel_logprobs(output, batch.targets, vocab_size)
        loss = sft_loss(logprobs, batch.sequences.loss_mask, self.num_tokens)
        return loss, {"loss": loss.detach()}


@dataclass(frozen=True)
class PolicyObjective:
    """Clipped policy gradient, plus KL to the reference and minus entropy where their weights are not 0.

    Without ``Sequences.old_logprobs`` the ratio is to the policy itself, as at the first step after a rollout; the
    metric ``rollout_deviation_max`` then says how far the log-probs of the rollout are from that policy's.

    num_tokens: trained tokens of the optimizer step, the denominator of all three terms (whose masks are equal) unless
    ``Sequences.loss_weights`` says otherwise; metrics are token means always.
    """

    num_tokens: int
    temperature: float
    clip_low: float
    clip_high: float
    dual_clip: float | None
    entropy_coeff: float
    kl_coef: float
    kl_kind: str
    rows: ClassVar[Rows] = "actions"
    unit: ClassVar[int] = 1

    def loss(self, batch: MicroBatch, output: Tensor, vocab_size: int) -> tuple[Tensor, dict[str, Tensor]]:
        """See ``Objective``."""
        fields = batch.sequences
        mask, weights = fields.loss_mask, fields.loss_weights
        logprobs, entropy = vocab_parallel_logprobs(output, batch.targets, vocab_size, self.temperature)
        policy = policy_loss(
            logprobs,
            logprobs.detach() if fields.old_logprobs is None else fields.old_logprobs,
            fields.advantages,
            mask,
            self.num_tokens,
            self.clip_low,
            self.clip_high,
            self.dual_clip,
            weights,
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
        if fields.old_logprobs is None and fields.rollout_logprobs is not None:
            sums["rollout_deviation_max"] = max_deviation(logprobs.detach()[mask], fields.rollout_logprobs[mask])
        if self.entropy_coeff:
            total = total - self.entropy_coeff * aggregate(entropy, mask, self.num_tokens, weights)
        if self.kl_coef:
            kl = kl_loss(logprobs, fields.ref_logprobs, mask, self.kl_kind, self.num_tokens, weights)
            total = total + self.kl_coef * kl.loss
            sums["kl_loss"] = kl.loss.detach()
            sums["kl_clamped"] = kl.clamped_sum / self.num_tokens
        return total, sums


def max_deviation(ours: Tensor, theirs: Tensor) -> Tensor:
    """Largest absolute difference of two vectors; 0 of empty ones."""
    return (ours - theirs).abs().max() if ours.numel() else ours.new_zeros(())


@dataclass(frozen=True)
class ValueObjective:
    """Clipped squared error of the critic. num_tokens: trained tokens of the optimizer step."""

    num_tokens: int
    clip_range: float
    rows: ClassVar[Rows] = "actions"
    unit: ClassVar[int] = 1

    def loss(self, batch: MicroBatch, output: Tensor, vocab_size: int) -> tuple[Tensor, dict[str, Tensor]]:
        """See ``Objective``."""
        fields = batch.sequences
        result = value_loss(
            output.float(), fields.values, fields.returns, fields.loss_mask, self.num_tokens, self.clip_range
        )
        return result.loss, {
            "vf_loss": result.loss.detach(),
            "vf_clipfrac": result.clip_fraction_sum / self.num_tokens,
            "value": result.value_sum / self.num_tokens,
            "residual": result.residual_sum / self.num_tokens,
            "residual_square": result.residual_square_sum / self.num_tokens,
            "return": result.return_sum / self.num_tokens,
            "return_square": result.return_square_sum / self.num_tokens,
        }


@dataclass(frozen=True)
class PairwiseObjective:
    """Bradley-Terry loss of preference pairs: chosen and rejected alternate. num_pairs: of the optimizer step."""

    num_pairs: int
    rows: ClassVar[Rows] = "last"
    unit: ClassVar[int] = 2

    def loss(self, batch: MicroBatch, output: Tensor, vocab_size: int) -> tuple[Tensor, dict[str, Tensor]]:
        """See ``Objective``; ``Sequences.margins`` of the chosen one counts."""
        chosen, rejected = output.float().view(-1, 2).unbind(1)
        margins = batch.sequences.margins
        result = bradley_terry_loss(chosen, rejected, None if margins is None else margins[::2].float(), self.num_pairs)
        return result.loss, {
            "loss": result.loss.detach(),
            "accuracy": result.accuracy_sum / self.num_pairs,
            "chosen_score": chosen.detach().sum() / self.num_pairs,
            "rejected_score": rejected.detach().sum() / self.num_pairs,
        }
