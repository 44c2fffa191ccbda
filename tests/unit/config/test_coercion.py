"""YAML's untyped values become the type of their key (an unquoted `1e-7` is a string to PyYAML)."""

from pathlib import Path

import pytest
import yaml

from mindllm.config import build_config, compose_config
from mindllm.errors import UserError


def test_pyyaml_reads_an_unquoted_exponent_as_a_string():
    assert yaml.safe_load("lr: 1e-7") == {"lr": "1e-7"}


@pytest.mark.parametrize("written", ["1e-7", "1E-7", "'1e-7'", "0.0000001", "1.0e-07"])
def test_a_learning_rate_is_a_float_however_it_is_written(write, config_dir: Path, written):
    text = (config_dir / "small_sft.yaml").read_text().replace("lr: 0.001", f"lr: {written}")
    config = compose_config(write(text), [], str(config_dir))
    assert config.actor.lr == 1e-7 and isinstance(config.actor.lr, float)


@pytest.mark.parametrize("written", [True, "true", "True", "TRUE"])
def test_a_boolean_is_a_boolean_however_it_is_written(sft, written):
    sft["training"]["bf16"] = written
    assert build_config(sft).actor.bf16 is True


@pytest.mark.parametrize("written", ["false", "False", False])
def test_false_is_false(grpo, written):
    grpo["training"]["no_shuffle"] = written
    assert build_config(grpo).training.no_shuffle is False


@pytest.mark.parametrize("written", [32, "32", 32.0, "1e3", "32.0"])
def test_a_count_may_be_written_as_text_or_float(sft, written):
    sft["training"]["train_iters"] = written
    assert build_config(sft).training.train_iters == float(written)


@pytest.mark.parametrize("written", ["2.5", 2.5, "two", True, [1]])
def test_a_count_that_is_not_whole_is_refused(sft, written):
    sft["training"]["train_iters"] = written
    with pytest.raises(UserError, match=r"training\.train_iters"):
        build_config(sft)


@pytest.mark.parametrize("written", [".nan", ".inf", "-.inf", "true", "fast"])
def test_a_learning_rate_that_is_not_a_finite_number_is_refused(write, config_dir: Path, written):
    text = (config_dir / "small_sft.yaml").read_text().replace("lr: 0.001", f"lr: {written}")
    with pytest.raises(UserError, match=r"training\.lr"):
        compose_config(write(text), [], str(config_dir))


@pytest.mark.parametrize("written", ["1,2", [1, 2], ["1", "2"]])
def test_end_tokens_may_be_a_comma_string_or_a_list(grpo, written):
    grpo["training"]["eos_token_ids"] = written
    assert build_config(grpo).actor.eos_token_ids == [1, 2]


def test_one_end_token_needs_no_list(grpo):
    grpo["training"]["eos_token_ids"] = 2
    assert build_config(grpo).actor.eos_token_ids == [2]


def test_null_means_that_nothing_was_written(grpo):
    grpo["training"]["micro_batch_size"] = 4
    grpo["actor_rollout_ref"]["actor_rollout"]["micro_batch_size"] = None
    grpo["algorithm"] = None
    assert build_config(grpo).actor.micro_batch_size == 4


@pytest.mark.parametrize(("written", "meant"), [(-1, -1), (0, -1), ("0", -1), (20, 20)])
def test_top_k_zero_is_off_too(grpo, written, meant):
    grpo["training"]["top_k"] = written
    assert build_config(grpo).actor.top_k == meant


def test_wandb_keys_are_read_as_megatron_names_them_and_named_where_nothing_reads_them(sft):
    sft["training"] |= {"trackers": "jsonl,wandb", "wandb-project": "p", "wandb-exp-name": "n", "wandb-save-dir": "/d"}
    training = build_config(sft).training
    assert (training.wandb_project, training.wandb_exp_name, training.wandb_save_dir) == ("p", "n", "/d")
    sft["training"]["trackers"] = "jsonl"
    config = build_config(sft)
    assert config.training.wandb_project is None
    assert {key for key, _ in config.ignored_keys} == {
        f"training.{key}" for key in ("wandb_project", "wandb_exp_name", "wandb_save_dir")
    }
