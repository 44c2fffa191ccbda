"""Sequences: the one batch type, jagged and never padded."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor


class FinishReason(enum.IntEnum):
    """Why a response ended: an end-of-sequence token (which is its last token), or the length limit."""

    STOP = 0
    LENGTH = 1


PER_SEQUENCE = ("response_lengths", "prompt_index", "sample_index", "finish_reason", "rewards")
PER_RESPONSE_TOKEN = ("loss_mask", "rollout_logprobs", "old_logprobs", "ref_logprobs", "advantages")


@dataclass
class Sequences:
    """Prompts with their responses, concatenated.

    Per sequence [n]:
        prompt_lengths, response_lengths: int64 token counts; a prompt has at least one token, a response may be empty.
        prompt_index: int64 row in the prompt data set; sequences of one group share it.
        sample_index: int64 number of the response within its group.
        finish_reason: int64 ``FinishReason``.
        rewards: float64 scalar reward.
    Per token:
        tokens: int64 [sum(prompt_lengths + response_lengths)], each sequence's prompt followed by its response.
    Per response token [sum(response_lengths)]:
        loss_mask: bool, tokens that are trained.
        rollout_logprobs, old_logprobs, ref_logprobs, advantages: float32.

    Setting a field of the wrong length raises ValueError.
    """

    tokens: Tensor
    prompt_lengths: Tensor
    response_lengths: Tensor
    prompt_index: Tensor | None = None
    sample_index: Tensor | None = None
    finish_reason: Tensor | None = None
    rewards: Tensor | None = None
    loss_mask: Tensor | None = None
    rollout_logprobs: Tensor | None = None
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    advantages: Tensor | None = None

    def __setattr__(self, name: str, value: Tensor | None) -> None:
        if value is not None and name in PER_SEQUENCE:
            self._check(name, value, self.prompt_lengths.numel(), "sequences")
        if value is not None and name in PER_RESPONSE_TOKEN:
            self._check(name, value, int(self.response_lengths.sum()), "response tokens")
        object.__setattr__(self, name, value)

    def __post_init__(self) -> None:
        self._check("tokens", self.tokens, int(self.lengths.sum()), "tokens")

    @staticmethod
    def _check(name: str, value: Tensor, expected: int, unit: str) -> None:
        if value.shape != (expected,):
            raise ValueError(f"Sequences.{name} has shape {tuple(value.shape)}, but there are {expected} {unit}")

    @classmethod
    def from_lists(cls, prompts: Iterable[list[int]], responses: Iterable[list[int]]) -> "Sequences":
        """Build from token-id lists, one pair per sequence."""
        prompts, responses = list(prompts), list(responses)
        flat = [token for prompt, response in zip(prompts, responses, strict=True) for token in (*prompt, *response)]
        return cls(
            tokens=torch.tensor(flat, dtype=torch.int64),
            prompt_lengths=torch.tensor([len(p) for p in prompts], dtype=torch.int64),
            response_lengths=torch.tensor([len(r) for r in responses], dtype=torch.int64),
        )

    def __len__(self) -> int:
        return self.prompt_lengths.numel()

    @property
    def lengths(self) -> Tensor:
        """[n] int64 tokens per sequence, prompt and response together."""
        return self.prompt_lengths + self.response_lengths

    @property
    def num_response_tokens(self) -> int:
        """Response tokens of all sequences."""
        return int(self.response_lengths.sum())

    def token_lists(self) -> list[tuple[list[int], list[int]]]:
        """(prompt ids, response ids) of every sequence."""
        pieces = torch.split_with_sizes(self.tokens, self.lengths.tolist())
        cuts = self.prompt_lengths.tolist()
        return [(piece[:cut].tolist(), piece[cut:].tolist()) for piece, cut in zip(pieces, cuts, strict=True)]

    def select(self, indices: list[int] | Tensor) -> "Sequences":
        """The sequences at ``indices``, in that order; an index may repeat."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        rows_of = {
            "tokens": _jagged_rows(self.lengths, index),
            **dict.fromkeys(PER_RESPONSE_TOKEN, _jagged_rows(self.response_lengths, index)),
        }
        return Sequences(
            **{
                field.name: value[rows_of.get(field.name, index)]
                for field in fields(self)
                if (value := getattr(self, field.name)) is not None
            }
        )

    @staticmethod
    def concatenate(parts: list["Sequences"]) -> "Sequences":
        """Join batches end to end; a field set in one part must be set in all (else ValueError)."""
        joined = {}
        for field in fields(Sequences):
            values = [getattr(part, field.name) for part in parts]
            present = [value for value in values if value is not None]
            if present and len(present) < len(values):
                raise ValueError(f"Sequences.{field.name} is set in {len(present)} of {len(values)} parts")
            if present:
                joined[field.name] = torch.cat(present)
        return Sequences(**joined)


def _jagged_rows(lengths: Tensor, index: Tensor) -> Tensor:
    """Row numbers of the concatenated storage that belong to the segments ``index``, in that order."""
    ends = lengths.cumsum(0)
    starts = (ends - lengths)[index]
    counts = lengths[index]
    total = int(counts.sum())
    offsets = torch.arange(total) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return starts.repeat_interleave(counts) + offsets
