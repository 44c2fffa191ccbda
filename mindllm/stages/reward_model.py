"""The reward model's part of a reward: its scores on responses, in its own words where its tokenizer is another."""

from pathlib import Path
from typing import TYPE_CHECKING, Self

from torch import Tensor

from mindllm.algorithms import mean
from mindllm.checkpoint import read_checkpoint_info
from mindllm.config import RewardModelConfig
from mindllm.data import Prompt, chat_template_of, load_tokenizer, reads_alike
from mindllm.data.sequences import Sequences
from mindllm.errors import UserError
from mindllm.stages.rollouts import Rollouts
from mindllm.stages.session import Session
from mindllm.templates.retemplate import render_answered
from mindllm.workers.reward import Reward

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RewardModelScorer:
    """Scores a batch of responses; re-templates their text if the reward model speaks another tokenizer."""

    def __init__(self, model: Reward, config: RewardModelConfig, hf_dir: Path, rollouts: Rollouts) -> None:
        self._model, self._weight, self._rollouts = model, config.weight, rollouts
        self._tokenizer = load_tokenizer(config.tokenizer_name_or_path or hf_dir)
        self._limit = config.seq_length
        self._same = reads_alike(self._tokenizer, rollouts.tokenizer, list(rollouts.config.data_prefixes.values()))
        self._bos = _bos_before_text(self._tokenizer) if chat_template_of(self._tokenizer) is None else []

    @classmethod
    def start(cls, session: Session, rollouts: Rollouts) -> Self | None:
        """Start the configured reward model, if there is one."""
        config = session.config.reward_model
        if config is None:
            return None
        checkpoint = session.frozen("reward")
        return cls(session.cluster.start_reward(checkpoint), config, read_checkpoint_info(checkpoint).hf_dir, rollouts)

    def __call__(self, batch: Sequences, rows: list[Prompt]) -> tuple[Tensor, dict[str, float]]:
        """Add to the batch's rule rewards (0 where there are none) the weighted score of the model.

        Returns:
            (total rewards [n] float64, metrics: the mean score, and how many texts lost their beginning to the reward
            model's ``seq_length``).
        """
        metrics = {}
        sequences = batch
        if not self._same:
            ids = self._in_own_words(batch, rows)
            metrics["reward/model/cut"] = float(sum(len(tokens) > self._limit for tokens in ids))
            # The end is kept: the score is read there, and it is the response that is judged.
            ids = [tokens[-self._limit :] for tokens in ids]
            sequences = Sequences.from_lists([tokens[:-1] for tokens in ids], [tokens[-1:] for tokens in ids])
        scores = self._model.scores(sequences).double()
        totals = batch.rewards.nan_to_num(0.0) + self._weight * scores
        if not totals.isfinite().all():
            first = int((~totals.isfinite()).nonzero()[0])
            raise UserError(
                f"reward_model: its score {float(scores[first]):g} with weight {self._weight:g} makes the reward of a "
                f"response {float(totals[first]):g}; a reward must be finite"
            )
        metrics["reward/model/mean"] = mean(scores)
        return totals, metrics

    def _in_own_words(self, batch: Sequences, rows: list[Prompt]) -> list[list[int]]:
        """Whole conversations, responses included, in the reward model's chat template and tokens."""
        prompts = {row.index: row for row in rows}
        texts = []
        for index, completion in zip(batch.prompt_index.tolist(), self._rollouts.completions(batch), strict=True):
            prompt = prompts[index]
            texts.append(render_answered(self._tokenizer, prompt.messages, completion, prompt.tools))
        return [self._bos + ids for ids in self._tokenizer(texts, add_special_tokens=False)["input_ids"]]


def _bos_before_text(tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """The BOS that the tokenizer puts before plain text, if it does; chat templates write their own."""
    return [token for token in tokenizer("")["input_ids"][:1] if token == tokenizer.bos_token_id]
