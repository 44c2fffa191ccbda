"""Requests, the text of responses, and sums per sequence."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mindllm.data import Prompt
from mindllm.data.sequences import Sequences
from mindllm.rewards.formats import format_reward
from mindllm.stages.rollouts import Rollouts, make_requests, token_sums

SPECIAL = ["<pad>", "<|endoftext|>", "<|im_end|>", "<|eom_id|>"]
SPECIAL += ["<think>", "</think>", "<answer>", "</answer>", "<|python_tag|>"]


@pytest.fixture
def rollouts(tmp_path, request):
    """Of a model whose tags are special tokens, and which stops at <|im_end|> and at what its tokenizer calls EOS."""
    words = {word: number for number, word in enumerate([*SPECIAL, "two", "and"])}
    built = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    built.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=built, eos_token="<|endoftext|>", pad_token="<pad>")
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    stops = getattr(request, "param", None)
    actor = SimpleNamespace(tokenizer_name_or_path=None, eos_token_ids=stops and tokenizer.convert_tokens_to_ids(stops))
    config = SimpleNamespace(actor=actor, reward=SimpleNamespace(functions=[]), data_prefixes={})
    return Rollouts(config, tmp_path)


def prompt(index: int, length: int = 2) -> Prompt:
    return Prompt(index, np.arange(length, dtype=np.int32), {"prompt": f"number {index}"})


def test_samples_of_a_prompt_are_neighbours_with_numbers_of_their_own():
    requests = make_requests([prompt(7), prompt(3, length=4)], 3)
    assert requests.prompt_index.tolist() == [7, 7, 7, 3, 3, 3]
    assert requests.sample_index.tolist() == [0, 1, 2, 0, 1, 2]
    assert requests.prompt_lengths.tolist() == [2, 2, 2, 4, 4, 4]
    assert requests.num_response_tokens == 0


def test_a_prompt_that_occurs_again_in_a_batch_draws_other_samples():
    requests = make_requests([prompt(7), prompt(3), prompt(7)], 2)
    identities = list(zip(requests.prompt_index.tolist(), requests.sample_index.tolist(), strict=True))
    assert len(set(identities)) == 6
    assert identities[4:] == [(7, 2), (7, 3)]


def test_token_sums_are_per_sequence_and_zero_for_an_empty_response():
    sequences = Sequences.from_lists([[1], [1], [1]], [[2, 3], [], [4]])
    assert token_sums(torch.tensor([1.0, 2.0, 5.0]), sequences).tolist() == [3.0, 0.0, 5.0]


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("<think> two </think> <answer> two </answer> <|im_end|>", "<think> two </think> <answer> two </answer>"),
        ("<|python_tag|> two <|eom_id|>", "<|python_tag|> two"),
        ("two and", "two and"),  # cut by the length limit
        ("two <|endoftext|> <pad> <pad>", "two"),
        ("<|im_end|>", ""),
    ],
)
def test_the_text_of_a_response_lacks_end_and_padding_tokens_alone(rollouts, response, text):
    ids = rollouts.tokenizer.convert_tokens_to_ids(response.split())
    assert rollouts.completions(Sequences.from_lists([[9]], [ids])) == [text]


@pytest.mark.parametrize(
    ("rollouts", "response", "text"),
    [
        (["</answer>"], "<answer> two </answer>", "<answer> two </answer>"),  # as it ends what was asked for
        (["and"], "two and", "two and"),
        (["<|python_tag|>"], "two <|python_tag|>", "two"),
        (["</answer>"], "two <|im_end|> <|endoftext|>", "two"),
    ],
    indirect=["rollouts"],
)
def test_text_that_a_response_is_told_to_stop_at_stays(rollouts, response, text):
    ids = rollouts.tokenizer.convert_tokens_to_ids(response.split())
    assert rollouts.completions(Sequences.from_lists([[9]], [ids])) == [text]


def test_rewards_get_the_whole_conversation(rollouts):
    turns = [{"role": "system", "content": "Count."}, {"role": "user", "content": "two"}]
    columns = {"prompt": "two", "prompt_messages": turns, "solution": "3"}
    batch = Sequences.from_lists([[9], [9]], [[9], [10]])
    batch.prompt_index = torch.tensor([1, 0])
    items = rollouts._items(batch, [prompt(0), Prompt(1, np.zeros(1, np.int32), columns)])
    assert [item.prompt for item in items] == ["system: Count.\n\nuser: two", "number 0"]
    assert items[0].columns == columns


def test_the_format_reward_sees_tags_that_are_special_tokens(rollouts):
    ids = rollouts.tokenizer.convert_tokens_to_ids("<think> two </think> <answer> two </answer> <|im_end|>".split())
    assert format_reward(rollouts.completions(Sequences.from_lists([[9]], [ids]))) == [1.0]
