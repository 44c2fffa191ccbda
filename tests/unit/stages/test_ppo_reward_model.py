"""A reward model hears text in its own tokenizer and chat template; its score is added with its weight."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mindllm.data import Prompt
from mindllm.data.sequences import Sequences
from mindllm.stages import reward_model
from mindllm.stages.reward_model import RewardModelScorer

WORDS = ["<end>", "say", "one", "two", "three"]
TEMPLATE = "{% for m in messages %}{{ '<' + m['role'] + '> ' + m['content'] + ' <stop>\n' }}{% endfor %}"
PLAIN = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def tokenizer(words, template=PLAIN):
    built = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=built, eos_token=words[0], chat_template=template)


class Model:
    """Scores a sequence with its number of tokens, and remembers what it was given."""

    def scores(self, sequences):
        self.seen = sequences.token_lists()
        return sequences.lengths.float()


def scorer(monkeypatch, own, actors, weight=1.0, seq_length=64):
    monkeypatch.setattr(reward_model, "load_tokenizer", lambda path: own)

    def completions(batch):
        return [actors.decode(response, skip_special_tokens=True) for _, response in batch.token_lists()]

    config = SimpleNamespace(tokenizer_name_or_path=None, seq_length=seq_length, weight=weight)
    model = Model()
    run = SimpleNamespace(data_prefixes={"data_path": "without/a/manifest"})
    rollouts = SimpleNamespace(tokenizer=actors, completions=completions, config=run)
    return RewardModelScorer(model, config, "hf", rollouts), model


def make_batch():
    """Two prompts; the first response ended, the second was cut."""
    batch = Sequences.from_lists([[1, 2], [1, 3]], [[2, 2, 0], [4]])
    batch.prompt_index = torch.tensor([7, 5])
    batch.rewards = torch.tensor([0.25, float("nan")], dtype=torch.float64)
    return batch, [prompt(5, "say two"), prompt(7, "say one")]


def prompt(index, text, **columns):
    return Prompt(index, np.array([1, 2], dtype=np.int32), {"prompt": text, **columns})


def test_with_the_actors_tokenizer_the_actors_tokens_are_scored(monkeypatch):
    score, model = scorer(monkeypatch, tokenizer(WORDS), tokenizer(WORDS), weight=2.0)
    batch, rows = make_batch()
    rewards, metrics = score(batch, rows)
    assert model.seen == batch.token_lists()
    assert rewards.tolist() == [0.25 + 2.0 * 5, 2.0 * 3]  # a rule without an opinion adds nothing
    assert rewards.dtype == torch.float64
    assert metrics == {"reward/model/mean": pytest.approx(4.0)}


def test_with_another_tokenizer_prompt_and_response_are_templated_anew(monkeypatch):
    own = tokenizer(["?", "<stop>", "<user>", "<assistant>", "say", "one", "two", "three"], TEMPLATE)
    score, model = scorer(monkeypatch, own, tokenizer(WORDS))
    batch, rows = make_batch()
    rewards, _ = score(batch, rows)
    texts = [own.decode(prompt + response) for prompt, response in model.seen]
    assert texts == [
        "<user> say one <stop> <assistant> one one <stop>",
        "<user> say two <stop> <assistant> three <stop>",
    ]
    assert [len(response) for _, response in model.seen] == [1, 1]  # the score is read at the very last token
    assert rewards.tolist() == [8.25, 7.0]


def test_the_same_words_in_another_template_are_templated_anew(monkeypatch):
    score, model = scorer(monkeypatch, tokenizer(WORDS, TEMPLATE), tokenizer(WORDS))
    batch, rows = make_batch()
    score(batch, rows)
    assert model.seen != batch.token_lists()


HISTORY = [
    {"role": "system", "content": "three"},
    {"role": "user", "content": "say two"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "say one"},
]


def test_another_tokenizer_reads_system_prompt_and_history_too(monkeypatch):
    own = tokenizer(["?", "<stop>", "<user>", "<assistant>", "<system>", "say", "one", "two", "three"], TEMPLATE)
    score, model = scorer(monkeypatch, own, tokenizer(WORDS))
    batch, _ = make_batch()
    score(batch, [prompt(5, "say two"), prompt(7, "say one", prompt_messages=HISTORY)])
    assert own.decode(sum(model.seen[0], [])) == (
        "<system> three <stop> <user> say two <stop> <assistant> two <stop> <user> say one <stop> "
        "<assistant> one one <stop>"
    )


def test_a_text_longer_than_the_reward_models_window_keeps_its_end_and_is_counted(monkeypatch):
    own = tokenizer(["?", "<stop>", "<user>", "<assistant>", "say", "one", "two", "three"], TEMPLATE)
    score, model = scorer(monkeypatch, own, tokenizer(WORDS), seq_length=6)
    _, metrics = score(*make_batch())
    texts = [own.decode(prompt + response) for prompt, response in model.seen]
    assert texts == ["one <stop> <assistant> one one <stop>", "say two <stop> <assistant> three <stop>"]
    assert metrics["reward/model/cut"] == 2  # of seven and eight tokens


def test_an_empty_response_still_has_a_score(monkeypatch):
    own = tokenizer(["?", "<stop>", "<user>", "<assistant>", "say", "one", "two", "three"], TEMPLATE)
    for actors in (own, tokenizer(WORDS)):
        score, _ = scorer(monkeypatch, own, actors)
        batch = Sequences.from_lists([[1, 2]], [[]])
        batch.prompt_index, batch.rewards = torch.tensor([0]), torch.tensor([float("nan")], dtype=torch.float64)
        rewards, _ = score(batch, [prompt(0, "say one")])
        assert bool(rewards.isfinite().all())
