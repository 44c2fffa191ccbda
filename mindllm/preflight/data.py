"""Data sets against the run that will read them."""

import numpy as np

from mindllm.checkpoint import CheckpointInfo
from mindllm.config import RunConfig
from mindllm.data import InstructionDataset, PromptDataset
from mindllm.errors import UserError
from mindllm.rewards import check_rewards

_SAMPLED_ROWS = 1000


def check_instructions(config: RunConfig, info: CheckpointInfo) -> list[str]:
    """SFT data opens, fits the window and the vocabulary. Raises UserError; returns what was checked."""
    passed = []
    for key, prefix in _prefixes(config):
        examples = InstructionDataset(prefix)
        longest = int(np.argmax(examples.lengths))
        if examples.lengths[longest] > config.actor.seq_length:
            raise UserError(
                f"{key}: example {longest} of {prefix} has {examples.lengths[longest]} tokens, seq_length is "
                f"{config.actor.seq_length}; preprocess with --seq-length {config.actor.seq_length}"
            )
        _check_ids(key, prefix, examples, info)
        passed.append(f"{key}: {len(examples)} examples in {prefix}")
    return passed


def check_prompts(config: RunConfig, info: CheckpointInfo) -> list[str]:
    """Prompt data opens, fits the window and has the columns the rewards need. Raises UserError."""
    passed = []
    for key, prefix in _prefixes(config):
        prompts = PromptDataset(prefix)
        limit = config.actor.max_prompt_length
        too_long = np.flatnonzero(prompts.lengths > limit)
        if len(too_long):
            raise UserError(
                f"{key}: {len(too_long)} of {len(prompts)} prompts in {prefix} are longer than max_prompt_length "
                f"{limit}, the first is prompt {too_long[0]} with {prompts.lengths[too_long[0]]} tokens; preprocess "
                f"with --seq-length {limit}"
            )
        check_rewards(config.reward.functions, prompts.columns)
        _check_ids(key, prefix, prompts, info)
        passed.append(f"{key}: {len(prompts)} prompts in {prefix}")
    passed.append("rewards: " + ", ".join(function.name for function in config.reward.functions))
    return passed


def _prefixes(config: RunConfig) -> list[tuple[str, str]]:
    found = [("data_path", config.actor.data_path)]
    if config.training.eval_data_path is not None:
        found.append(("training.eval_data_path", config.training.eval_data_path))
    return found


def _check_ids(key: str, prefix: str, data: InstructionDataset | PromptDataset, info: CheckpointInfo) -> None:
    """Token ids of the first rows are in the vocabulary: enough to catch data made with another tokenizer."""
    for row in range(min(len(data), _SAMPLED_ROWS)):
        highest = int(data[row].input_ids.max())
        if highest >= info.vocab_size:
            raise UserError(
                f"{key}: row {row} of {prefix} has token id {highest}, the model's vocabulary has {info.vocab_size}; "
                "preprocess with the model's tokenizer"
            )
