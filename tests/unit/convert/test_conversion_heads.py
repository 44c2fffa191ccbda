"""Scalar heads: put on a language model, exchanged with Hugging Face's classes, named in ``mindllm.json``."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from mindllm.checkpoint import latest_iteration_dir, read_checkpoint_info
from mindllm.convert import Options, convert, convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.convert.cli import main
from mindllm.errors import UserError
from mindllm.formats.arrays import to_torch
from mindllm.formats.torch_dist import TorchDistReader
from tests.unit.convert.tiny_models import assert_same_tensors, edit_config, make_hf_model, read_all

MCORE_TO_MCORE = Options("mcore", "mcore", head="reward")


def head_of(checkpoint: Path) -> torch.Tensor:
    with TorchDistReader(latest_iteration_dir(checkpoint)) as reader:
        return to_torch(reader.read("output_layer.weight"))


@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("qwen2", True), ("qwen3", False)])
def test_a_hugging_face_reward_model_makes_the_round_trip_bit_for_bit(tmp_path: Path, family: str, tied: bool) -> None:
    source = make_hf_model(tmp_path / "hf", family, tied, torch.bfloat16, scoring=True)
    convert_hf_to_mcore(source, tmp_path / "mcore", make_vocab_size_divisible_by=16, verify=True)
    info = read_checkpoint_info(latest_iteration_dir(tmp_path / "mcore"))
    assert info.head == "reward" and info.architecture.scalar_head and not info.architecture.tie_embeddings
    assert head_of(tmp_path / "mcore").shape == (1, 64)
    back = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back", verify=True)
    assert_same_tensors(read_all(source), read_all(back))
    assert (back / "config.json").read_bytes() == (source / "config.json").read_bytes()


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_put_on_a_language_model_is_one_that_transformers_scores_with(tmp_path: Path, tied: bool) -> None:
    source = make_hf_model(tmp_path / "hf", "qwen2", tied, pad_token_id=0)
    convert_hf_to_mcore(source, tmp_path / "mcore", head="reward", seed=3, verify=True)
    back = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back")
    model, report = AutoModelForSequenceClassification.from_pretrained(back, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.config.num_labels == 1 and model.config.architectures == ["Qwen2ForSequenceClassification"]
    assert torch.equal(model.score.weight, head_of(tmp_path / "mcore"))
    kept = {name: tensor for name, tensor in read_all(source).items() if name != "lm_head.weight"}
    assert_same_tensors({**kept, "score.weight": model.score.weight}, read_all(back))
    tokens = torch.tensor([[5, 6, 7, 0], [5, 6, 7, 8]])
    assert model(tokens).logits.shape == (2, 1)


def test_a_new_head_is_small_and_the_same_for_the_same_seed(hf_qwen2: Path, tmp_path: Path) -> None:
    heads = {}
    settings: dict[str, dict[str, Any]] = {
        "a": {"seed": 1},
        "b": {"seed": 1},
        "c": {"seed": 2},
        "d": {"head_init": "zeros"},
    }
    for name, options in settings.items():
        convert_hf_to_mcore(hf_qwen2, tmp_path / name, head="value", **options)
        heads[name] = head_of(tmp_path / name)
    assert torch.equal(heads["a"], heads["b"]) and not torch.equal(heads["a"], heads["c"])
    assert not heads["d"].any()
    assert 0.015 < heads["a"].std() < 0.025  # initializer_range
    assert read_checkpoint_info(latest_iteration_dir(tmp_path / "a")).head == "value"


def test_a_trained_checkpoint_becomes_a_reward_model_and_that_a_critic(
    hf_qwen2: Path, mcore_qwen2: Path, tmp_path: Path
) -> None:
    convert(mcore_qwen2, tmp_path / "reward", MCORE_TO_MCORE)
    convert(tmp_path / "reward", tmp_path / "critic", Options("mcore", "mcore", head="value", verify=True))
    assert torch.equal(head_of(tmp_path / "reward"), head_of(tmp_path / "critic"))
    assert read_checkpoint_info(latest_iteration_dir(tmp_path / "critic")).head == "value"
    convert_hf_to_mcore(hf_qwen2, tmp_path / "direct", head="reward")
    assert torch.equal(head_of(tmp_path / "reward"), head_of(tmp_path / "direct"))


def test_a_head_is_chosen_on_the_command_line(mcore_qwen2: Path, tmp_path: Path, capfd: Any) -> None:
    types = ["--load-model-type", "mcore", "--save-model-type", "mcore", "--load-dir", str(mcore_qwen2)]
    assert main([*types, "--save-dir", str(tmp_path / "a"), "--head", "reward", "--head-init", "zeros"]) == 0
    assert "new scalar head; pad_token_id" in capfd.readouterr().out
    assert main([*types, "--save-dir", str(tmp_path / "b"), "--seed", "1"]) == 2
    assert "--seed has no effect with mcore -> mcore without a new head" in capfd.readouterr().err


def test_a_vocabulary_cannot_come_from_a_scalar_head(tmp_path: Path) -> None:
    source = make_hf_model(tmp_path / "hf", "llama", scoring=True)
    with pytest.raises(UserError, match="--head lm: the source has a reward head"):
        convert_hf_to_mcore(source, tmp_path / "mcore", head="lm")


def test_a_classifier_with_several_labels_is_refused(tmp_path: Path) -> None:
    source = make_hf_model(tmp_path / "hf", "llama", scoring=True, num_labels=3)
    with pytest.raises(UserError, match="has 3 labels; a reward model has num_labels 1"):
        convert_hf_to_mcore(source, tmp_path / "mcore")


def test_the_padding_token_of_the_tokenizer_is_used_before_the_end_token(hf_qwen2: Path, tmp_path: Path) -> None:
    for name, files, expected in (
        ("end", {}, 2),
        ("old", {"tokenizer_config.json": {"pad_token": "<p>", "added_tokens_decoder": {"7": {"content": "<p>"}}}}, 7),
        (
            "new",
            {
                "tokenizer_config.json": {"pad_token": {"content": "<p>"}},
                "tokenizer.json": {"added_tokens": [{"content": "<p>", "id": 9}]},
            },
            9,
        ),
    ):
        source = shutil.copytree(hf_qwen2, tmp_path / name)
        edit_config(source, eos_token_id=[2, 3], pad_token_id=None)
        for file, content in files.items():
            (source / file).write_text(json.dumps(content))
        convert_hf_to_mcore(source, tmp_path / f"{name}-mcore", head="reward")
        config = json.loads((latest_iteration_dir(tmp_path / f"{name}-mcore") / "hf" / "config.json").read_text())
        assert config["pad_token_id"] == expected


def test_a_head_that_contradicts_the_config_is_refused(mcore_qwen2: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(mcore_qwen2, tmp_path / "mcore")
    path = latest_iteration_dir(copy) / "mindllm.json"
    values = json.loads(path.read_text())
    assert values["head"] == "lm"
    path.write_text(json.dumps({**values, "head": "reward"}))
    with pytest.raises(UserError, match="says head = 'reward', but the model of hf/config.json is a language model"):
        read_checkpoint_info(path.parent)
    del values["head"]  # as written by earlier versions
    path.write_text(json.dumps(values))
    assert read_checkpoint_info(path.parent).head == "lm"
