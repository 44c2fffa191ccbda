"""Data sets against the run that will read them."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np

from mindllm.checkpoint import CheckpointInfo
from mindllm.config import RunConfig
from mindllm.data import (
    InstructionDataset,
    PairwiseDataset,
    PromptDataset,
    hash_tokenizer,
    load_tokenizer,
    read_template_record,
    reads_alike,
)
from mindllm.data.manifest import manifest_path, read_manifest
from mindllm.data.sidecar import PROMPT_COLUMN, TOOLS_COLUMN
from mindllm.errors import UserError
from mindllm.rewards import check_rewards, describe_lists, describe_tags, solution_column
from mindllm.templates.retemplate import knows_tools, render_answered

_SAMPLED_ROWS = 1000


def check_instructions(config: RunConfig, info: CheckpointInfo) -> list[str]:
    """SFT data opens, fits the window and the vocabulary. Raises UserError; returns what was checked."""
    passed = []
    for key, prefix in config.data_prefixes.items():
        examples = InstructionDataset(prefix)
        _check_longest(key, prefix, examples, config)
        _check_ids(key, prefix, len(examples), lambda row, data=examples: data[row].input_ids, info)
        passed.append(f"{key}: {len(examples)} examples in {prefix}")
    return passed


def check_pairs(config: RunConfig, info: CheckpointInfo) -> list[str]:
    """Preference pairs open, fit the window and the vocabulary. Raises UserError; returns what was checked."""
    passed = []
    for key, prefix in config.data_prefixes.items():
        pairs = PairwiseDataset(prefix)
        _check_longest(key, prefix, pairs, config)
        _check_ids(key, prefix, len(pairs), lambda row, data=pairs: data[row].chosen, info)
        passed.append(f"{key}: {len(pairs)} pairs in {prefix}")
    return passed


def _check_longest(key: str, prefix: str, data: InstructionDataset | PairwiseDataset, config: RunConfig) -> None:
    longest, limit = int(np.argmax(data.lengths)), config.actor.seq_length
    if data.lengths[longest] > limit:
        raise UserError(
            f"{key}: row {longest} of {prefix} has {data.lengths[longest]} tokens, seq_length is {limit}; "
            f"preprocess with --seq-length {limit}"
        )


def check_prompts(config: RunConfig, info: CheckpointInfo) -> list[str]:
    """Prompt data opens, fits the window and has the columns the rewards need. Raises UserError."""
    passed, list_columns = [], set[str]()
    for key, prefix in config.data_prefixes.items():
        prompts = PromptDataset(prefix)
        list_columns |= set(prompts.list_columns)
        limit = config.actor.max_prompt_length
        too_long = np.flatnonzero(prompts.lengths > limit)
        if len(too_long):
            raise UserError(
                f"{key}: {len(too_long)} of {len(prompts)} prompts in {prefix} are longer than max_prompt_length "
                f"{limit}, the first is prompt {too_long[0]} with {prompts.lengths[too_long[0]]} tokens; preprocess "
                f"with --seq-length {limit}"
            )
        if config.reward.functions or config.reward_model is None:
            check_rewards(config.reward.functions, prompts.columns)
        _check_ids(key, prefix, len(prompts), lambda row, data=prompts: data[row].input_ids, info)
        passed.append(f"{key}: {len(prompts)} prompts in {prefix}")
        solutions = solution_column(config.reward.functions, prompts.columns)
        if solutions is not None and len(blank := prompts.blank_rows(solutions)):
            print(
                f"{key}: {len(blank)} of {len(prompts)} prompts in {prefix} have a blank '{solutions}', so the reward "
                f"'accuracy' is 0 for whatever is answered; the first is prompt {blank[0]}"
            )
        record = read_template_record(prefix)
        if record is not None:
            first = (prompts[row].text for row in range(min(len(prompts), _SAMPLED_ROWS)))
            for line in describe_tags(config.reward.functions, chain([record.chat_template], first)):
                print(f"{key}: {line}")
    for line in describe_lists(config.reward.functions, list_columns):
        print(line)
    names = [function.name for function in config.reward.functions]
    passed.append("rewards: " + ", ".join(names + (["reward model"] if config.reward_model is not None else [])))
    return passed


def check_tokenized_alike(config: RunConfig, tokenizer_dir: str | Path) -> None:
    """Every token of the data's tokenizer has the same id in the model's. Raises UserError.

    Where the data's tokenizer is gone, only that its files were others can be told, and is printed.
    """
    for key, prefix in config.data_prefixes.items():
        if not manifest_path(prefix).is_file():
            continue  # of an older format, which says nothing; or missing, which is refused where the data is opened
        origin = read_manifest(prefix)["tokenizer"]
        if origin["sha256"] == hash_tokenizer(Path(tokenizer_dir)):
            continue
        if not Path(origin["path"]).is_dir():
            print(f"{key}: {prefix} was made with other tokenizer files ({origin['path']}) than {tokenizer_dir} has")
            continue
        theirs, ours = (load_tokenizer(path).get_vocab() for path in (origin["path"], tokenizer_dir))
        token = next((token for token, number in theirs.items() if ours.get(token) != number), None)
        if token is not None:
            raise UserError(
                f"{key}: {prefix} was made with the tokenizer {origin['path']}, in which {token!r} is {theirs[token]}; "
                f"in {tokenizer_dir} it is {ours.get(token, 'unknown')}; preprocess with the model's tokenizer"
            )


def check_retemplated(config: RunConfig, actors_dir: str | Path, own_dir: str | Path) -> None:
    """A reward model with other words or another chat template than the data's can read the first prompts whole.

    Prints what it does not see.

    Args:
        config: of the run.
        actors_dir: tokenizer of the actor.
        own_dir: tokenizer of the reward model.

    Raises:
        UserError: the data does not keep its prompts' text, or the chat template refuses one.
    """
    own, prefixes = load_tokenizer(own_dir), config.data_prefixes
    if reads_alike(own, load_tokenizer(actors_dir), list(prefixes.values())):
        return
    for key, prefix in prefixes.items():
        data = PromptDataset(prefix)
        if PROMPT_COLUMN not in data.columns:
            raise UserError(
                f"{key}: {prefix} has no column '{PROMPT_COLUMN}', the text that a reward model with another tokenizer "
                "reads; preprocess it again"
            )
        if read_template_record(prefix) is None:
            print(
                f"{key}: {prefix} keeps the last question of a prompt alone (another toolkit or an earlier version "
                "wrote it), so the reward model sees no system prompt and no history; preprocess it again"
            )
        if TOOLS_COLUMN in data.columns and not knows_tools(own):
            print(
                f"{key}: the chat template of the reward model ({own_dir}) shows no descriptions of tools, so the "
                f"reward model does not see those in {prefix}"
            )
        for row in range(min(len(data), _SAMPLED_ROWS)):
            try:
                render_answered(own, data[row].messages, "answer", data[row].tools)
            except UserError as error:
                raise UserError(f"{key}: prompt {row} of {prefix}: {error} ({own_dir})") from None


def _check_ids(key: str, prefix: str, count: int, ids_of: Callable[[int], np.ndarray], info: CheckpointInfo) -> None:
    """Token ids of the first rows are in the vocabulary: enough to catch data made with another tokenizer."""
    for row in range(min(count, _SAMPLED_ROWS)):
        highest = int(ids_of(row).max())
        if highest >= info.vocab_size:
            raise UserError(
                f"{key}: row {row} of {prefix} has token id {highest}, the model's vocabulary has {info.vocab_size}; "
                "preprocess with the model's tokenizer"
            )
