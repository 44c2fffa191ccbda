"""Responses and their rewards: the part of an RL iteration between prompts and advantages."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from mindllm.algorithms import mean
from mindllm.config import RunConfig
from mindllm.data import Prompt, PromptDataset, load_tokenizer, stop_token_ids
from mindllm.data.sequences import FinishReason, Sequences
from mindllm.errors import UserError
from mindllm.rewards import RewardItem, RewardRunner
from mindllm.rollout import GenerationStats, SamplingParams
from mindllm.workers.actor_rollout import ActorRollout
from mindllm.workers.objectives import max_deviation
from mindllm.workers.trained import UpdateResult

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AddScores = Callable[[Sequences, list[Prompt]], tuple[Tensor, dict[str, float]]]
"""(batch with rule rewards, its prompts) -> (total rewards [n], metrics)."""

# Held-out responses draw from other numbers than training ones of the same iteration.
_EVAL_SEED_OFFSET = 1 << 32


class Rollouts:
    """Generates and scores; owns the tokenizer and the reward processes.

    Attributes:
        tokenizer: the actor's.
        stop_ids: the tokens that end a response.
    """

    def __init__(self, config: RunConfig, hf_dir: Path) -> None:
        """Load the tokenizer and start the reward processes.

        Args:
            config: of the run.
            hf_dir: the ``hf/`` folder of the actor's checkpoint.
        """
        self.config = config
        self.tokenizer = load_tokenizer(config.actor.tokenizer_name_or_path or hf_dir)
        prefixes = list(config.data_prefixes.values())
        known = stop_token_ids(self.tokenizer, hf_dir, prefixes)
        self.stop_ids = tuple(config.actor.eos_token_ids or known)
        if not self.stop_ids:
            raise UserError(f"actor_rollout.eos_token_ids: neither this key nor {hf_dir} names an end token")
        self._hidden = {*known, self.tokenizer.pad_token_id} | set(_ends_alone(self.tokenizer, self.stop_ids))
        self._warned = False
        reward = config.reward
        self._runner = (
            RewardRunner(reward.functions, reward.on_error, reward.timeout_s, reward.num_workers)
            if reward.functions
            else None
        )

    def __enter__(self) -> Self:
        actor = self.config.actor
        if actor.do_sample and (actor.top_k > 0 or actor.top_p < 1.0):
            print("actor_rollout.top_k/top_p: responses are drawn from a cut distribution, ratios use the full one's")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            self._runner.close()

    def generate(self, actor: ActorRollout, prompts: list[Prompt], iteration: int) -> tuple[Sequences, GenerationStats]:
        """``n_samples_per_prompt`` responses to each prompt, neighbours in the batch."""
        settings = self.config.actor
        params = self._sampling(self.config.training.seed, iteration, do_sample=settings.do_sample)
        return actor.generate(make_requests(prompts, settings.n_samples_per_prompt), params)

    def _sampling(self, seed: int, iteration: int, do_sample: bool) -> SamplingParams:
        settings = self.config.actor
        return SamplingParams(
            do_sample=do_sample,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            max_new_tokens=settings.max_new_tokens,
            min_new_tokens=settings.min_new_tokens,
            stop_token_ids=self.stop_ids,
            seed=seed,
            iteration=iteration,
        )

    def score(self, batch: Sequences, prompts: list[Prompt]) -> tuple[Sequences, dict[str, float]]:
        """Set ``rewards`` to the rule functions' weighted sum, NaN where none has an opinion.

        Returns:
            The batch, without the sequences whose reward failed where ``reward.on_error`` is ``drop``; and metrics.
        """
        if self._runner is None:
            batch.rewards = torch.full((len(batch),), float("nan"), dtype=torch.float64)
            return batch, {}
        result = self._runner.score(self._items(batch, prompts))
        batch.rewards = torch.tensor(result.total, dtype=torch.float64)
        metrics = result.metrics() | {"reward/no_opinion": float(batch.rewards.isnan().sum() - len(result.dropped))}
        if result.dropped:
            dropped = set(result.dropped)
            kept = [index for index in range(len(batch)) if index not in dropped]
            if not kept:
                raise UserError(f"reward: every response was dropped; first error:\n{result.first_traceback}")
            batch = batch.select(kept)
        if not self._warned and bool(batch.rewards.isnan().all()):
            self._warned = True
            print(
                "reward: no function has an opinion on any response of this iteration, so it teaches nothing",
                flush=True,
            )
        return batch, metrics

    def completions(self, batch: Sequences) -> list[str]:
        """The responses as text, without end and padding tokens; other special tokens (tags, tool calls) are text."""
        responses = [[token for token in response if token not in self._hidden] for _, response in batch.token_lists()]
        return [self.tokenizer.decode(response, skip_special_tokens=False) for response in responses]

    def _items(self, batch: Sequences, prompts: list[Prompt]) -> list[RewardItem]:
        by_index = {prompt.index: prompt for prompt in prompts}
        rows = [by_index[index] for index in batch.prompt_index.tolist()]
        return [
            RewardItem(uid, row.text, completion, row.columns)
            for uid, (row, completion) in enumerate(zip(rows, self.completions(batch), strict=True))
        ]

    def evaluate(
        self, actor: ActorRollout, held_out: PromptDataset, iteration: int, add_scores: AddScores | None = None
    ) -> dict[str, float]:
        """Mean reward on all held-out prompts: greedy for one response per prompt, sampled for more.

        ``add_scores`` turns rule rewards into total ones, as training does.
        """
        samples = self.config.training.eval_n_samples_per_prompt
        prompts = [held_out[index] for index in range(len(held_out))]
        params = self._sampling(self.config.training.seed + _EVAL_SEED_OFFSET, iteration, do_sample=samples > 1)
        batch, _ = actor.generate(make_requests(prompts, samples), params)
        batch, metrics = self.score(batch, prompts)
        if add_scores is not None:
            batch.rewards, model_metrics = add_scores(batch, prompts)
            metrics |= model_metrics
        named = {f"eval/{name}": value for name, value in metrics.items()}
        return named | {
            "eval/score/mean": known_mean(batch.rewards),
            "eval/response_length/mean": float(batch.response_lengths.double().mean()),
        }

    def dump(self, batch: Sequences, prompts: list[Prompt]) -> list[dict[str, Any]]:
        """What ``samples/*.jsonl`` shows: a row per sequence of the batch."""
        by_index = {prompt.index: prompt for prompt in prompts}
        return [
            {
                "prompt_index": index,
                "sample_index": int(batch.sample_index[row]),
                "prompt": by_index[index].text,
                "response": completion,
                "reward": float(batch.rewards[row]),
                "finish_reason": FinishReason(int(batch.finish_reason[row])).name.lower(),
                "response_length": int(batch.response_lengths[row]),
            }
            for row, (index, completion) in enumerate(
                zip(batch.prompt_index.tolist(), self.completions(batch), strict=True)
            )
        ]


def _ends_alone(tokenizer: "PreTrainedTokenizerBase", stop_ids: Sequence[int]) -> list[int]:
    """Those of ``stop_ids`` that are no text: a response may be told to stop at a word, or at ``</answer>``."""
    texts = dict(zip(stop_ids, tokenizer.convert_ids_to_tokens(list(stop_ids)), strict=True))
    added = tokenizer.added_tokens_decoder
    return [
        token
        for token, text in texts.items()
        if token in added and added[token].special and not re.fullmatch(r"</\w+>", text)
    ]


def headline(config: RunConfig) -> dict[str, str]:
    """Label -> metric of the progress line; a reward is named after how its responses were chosen."""
    ways = {True: "sampled", False: "greedy"}
    return {
        f"{ways[config.actor.do_sample]} reward": "critic/score/mean",
        f"{ways[config.training.eval_n_samples_per_prompt > 1]} eval reward": "eval/score/mean",
        "tokens/s": "timing/tokens_per_s",
    }


def make_requests(prompts: list[Prompt], samples: int) -> Sequences:
    """Sequences with empty responses: each prompt ``samples`` times in a row.

    A prompt that occurs again (a batch may span two epochs) continues its sample numbers: equal identities would draw
    equal responses.
    """
    ids = [prompt.input_ids.tolist() for prompt in prompts for _ in range(samples)]
    requests = Sequences.from_lists(ids, [[] for _ in ids])
    requests.prompt_index = torch.tensor([prompt.index for prompt in prompts for _ in range(samples)])
    drawn: Counter[int] = Counter()
    numbers = []
    for prompt in prompts:
        numbers += range(drawn[prompt.index], drawn[prompt.index] + samples)
        drawn[prompt.index] += samples
    requests.sample_index = torch.tensor(numbers)
    return requests


def token_sums(values: Tensor, batch: Sequences) -> Tensor:
    """Sum per sequence [n] float64 of per-response-token ``values``."""
    owner = torch.arange(len(batch)).repeat_interleave(batch.response_lengths)
    return torch.zeros(len(batch), dtype=torch.float64).index_add_(0, owner, values.double())


def known_mean(values: Tensor) -> float:
    """Mean of what is not NaN; NaN if all is."""
    return mean(values[~values.isnan()])


def rollout_metrics(batch: Sequences, stats: GenerationStats, updates: list[UpdateResult]) -> dict[str, float]:
    """Lengths, rewards and the on-policy check of an iteration, which the first of ``updates`` made if nobody did."""
    lengths = batch.response_lengths.double()
    if batch.old_logprobs is not None:
        deviation = float(max_deviation(batch.rollout_logprobs, batch.old_logprobs))
    else:
        deviation = updates[0].metrics.pop("rollout_deviation_max")
    known = batch.rewards[~batch.rewards.isnan()]
    return {
        "critic/score/mean": known_mean(batch.rewards),
        "critic/score/max": float(known.max()) if len(known) else float("nan"),
        "critic/score/min": float(known.min()) if len(known) else float("nan"),
        "response_length/mean": float(lengths.mean()),
        "response_length/max": float(lengths.max()),
        "response_length/clip_ratio": float((batch.finish_reason == FinishReason.LENGTH).double().mean()),
        "prompt_length/mean": float(batch.prompt_lengths.double().mean()),
        "rollout/logprob_deviation_max": deviation,
        "rollout/total_tokens": float(batch.lengths.sum()),
        "rollout/sampled_tokens": float(stats.sampled_rows),
        "rollout/decode_steps": float(stats.decode_steps),
    }
