"""Tokens from vocabulary-sharded logits by inverse CDF in fp64: the same token on every rank and layout."""

from dataclasses import dataclass

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from torch import Tensor


@dataclass(frozen=True)
class SamplingParams:
    """How responses are drawn.

    do_sample: False takes the most likely token. temperature: divides the logits, for sampling and log-probs alike.
    top_k: keep the k most likely tokens, -1 for all. top_p: keep the smallest set of that mass, after top_k.
    max_new_tokens, min_new_tokens: length limits; end tokens cannot be drawn before the minimum.
    stop_token_ids: tokens that end a response (and belong to it). seed, iteration: part of every token's identity.
    """

    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    max_new_tokens: int
    min_new_tokens: int
    stop_token_ids: tuple[int, ...]
    seed: int
    iteration: int


class VocabParallelSampler:
    """Draws one token per row; ranks exchange a few numbers per row, and candidates only where a filter needs them."""

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        self.params, self.vocab_size = params, vocab_size
        self.group = mpu.get_tensor_model_parallel_group()
        self.tp_rank, self.tp_size = self.group.rank(), self.group.size()

    def draw(self, logits: Tensor, uniforms: Tensor, no_stop: Tensor) -> tuple[Tensor, Tensor]:
        """Draw one token per row.

        Args:
            logits: [rows, padded vocabulary / tp].
            uniforms: [rows] float64 in (0, 1).
            no_stop: [rows] bool, rows that may not end yet.

        Returns:
            (token ids [rows] int64, log-probs [rows] float32 under the full softmax at the temperature, filters and
            length limits notwithstanding), equal on all tensor-parallel ranks.
        """
        first = self.tp_rank * logits.shape[-1]
        scores = logits.double() / self.params.temperature
        scores[:, max(0, self.vocab_size - first) :] = float("-inf")
        peaks, sums = self._softmax_statistics(scores)
        allowed = self._forbid_stops(scores, no_stop, first)
        if not self.params.do_sample:
            token, score = self._most_likely(allowed, first)
        elif self.params.top_k > 0 or self.params.top_p < 1.0:
            token, score = self._from_candidates(allowed, uniforms, first)
        else:
            token, score = self._from_all(allowed, uniforms, peaks, first)
        return token, (score - peaks - sums.log()).float()

    def _gather(self, local: Tensor) -> Tensor:
        """[...] on each rank -> [tp, ...] on all."""
        if self.tp_size == 1:
            return local[None]
        gathered = local.new_empty((self.tp_size, *local.shape))
        dist.all_gather(list(gathered.unbind(0)), local.contiguous(), group=self.group)
        return gathered

    def _softmax_statistics(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Global maximum [rows] and sum of exp(score - maximum) [rows]."""
        peak = scores.amax(-1)
        total = (scores - peak.clamp_min(torch.finfo(scores.dtype).min)[:, None]).exp().sum(-1)
        peaks, totals = self._gather(torch.stack((peak, total))).unbind(1)
        highest = peaks.amax(0)
        return highest, (totals * (peaks - highest).exp()).sum(0)

    def _forbid_stops(self, scores: Tensor, no_stop: Tensor, first: int) -> Tensor:
        columns = [token - first for token in self.params.stop_token_ids if 0 <= token - first < scores.shape[-1]]
        if not columns or not bool(no_stop.any()):
            return scores
        allowed = scores.clone()
        stop_scores = allowed[:, columns]
        allowed[:, columns] = torch.where(no_stop[:, None], float("-inf"), stop_scores)
        return allowed

    def _most_likely(self, scores: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Argmax over all shards; the lowest id wins a tie, as in ``torch.argmax`` over the whole row."""
        score, column = scores.max(-1)
        gathered = self._gather(torch.stack((score, (column + first).double())))
        best = gathered[:, 0].argmax(0)
        rows = torch.arange(scores.shape[0], device=scores.device)
        return gathered[best, 1, rows].long(), gathered[best, 0, rows]

    def _from_all(self, scores: Tensor, uniforms: Tensor, peaks: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Inverse CDF in id order without any rank seeing another's scores: shard masses pick the shard first."""
        weights = (scores - peaks[:, None]).exp()
        cumulative = weights.cumsum(-1)
        masses = self._gather(cumulative[:, -1])  # [tp, rows]
        ends = masses.cumsum(0)
        target = uniforms * ends[-1]
        owner = (ends <= target).sum(0).clamp_max(self.tp_size - 1)
        mine = owner == self.tp_rank
        within = target - (ends[self.tp_rank] - masses[self.tp_rank])
        column = _inverse_cdf(cumulative, weights, within)
        score = scores.gather(1, column[:, None])[:, 0]
        choice = torch.stack((torch.where(mine, column + first, 0).double(), torch.where(mine, score, 0.0)))
        if self.tp_size > 1:
            dist.all_reduce(choice, group=self.group)
        return choice[0].long(), choice[1]

    def _from_candidates(self, scores: Tensor, uniforms: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Filter, then inverse CDF in id order over what is left; ties with the k-th score are kept."""
        width = scores.shape[-1]
        keep = min(self.params.top_k, width) if self.params.top_k > 0 else width
        local_scores, columns = scores.topk(keep, dim=-1)
        gathered = self._gather(torch.stack((local_scores, (columns + first).double())))
        candidates, ids = gathered.permute(1, 2, 0, 3).flatten(2)  # each [rows, tp * keep]
        ids, order = ids.sort(-1)
        candidates = candidates.gather(1, order)
        if self.params.top_k > 0:
            kth = candidates.topk(min(self.params.top_k, candidates.shape[-1]), dim=-1).values[:, -1:]
            candidates = candidates.masked_fill(candidates < kth, float("-inf"))
        if self.params.top_p < 1.0:
            candidates = _keep_nucleus(candidates, self.params.top_p)
        weights = (candidates - candidates.amax(-1, keepdim=True)).exp()
        cumulative = weights.cumsum(-1)
        column = _inverse_cdf(cumulative, weights, uniforms * cumulative[:, -1])[:, None]
        return ids.gather(1, column)[:, 0].long(), candidates.gather(1, column)[:, 0]


def _inverse_cdf(cumulative: Tensor, weights: Tensor, target: Tensor) -> Tensor:
    """First column whose cumulative weight exceeds ``target`` [rows]; rounding never lands on a weight of zero."""
    column = torch.searchsorted(cumulative, target.clamp_min(0.0)[:, None], right=True)[:, 0]
    last = weights.shape[-1] - 1 - (weights > 0).flip(-1).int().argmax(-1)
    return torch.minimum(column, last)


def _keep_nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Drop what lies outside the smallest set of most likely tokens with mass >= ``top_p`` (Holtzman et al., 2020)."""
    probabilities = scores.softmax(-1)
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    return scores.masked_fill(outside.scatter(1, order, outside), float("-inf"))
