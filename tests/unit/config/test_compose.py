"""Files are found, composed and overridden; what cannot be is refused in one sentence."""

from pathlib import Path

import pytest

from mindllm.config import compose_config
from mindllm.errors import UserError
from tests.unit.config.conftest import here

ROLE = "actor_rollout_ref.actor_rollout"


def test_a_defaults_list_of_model_names_makes_them_available_to_roles(write, config_dir: Path):
    (config_dir / "model" / "other.yaml").write_text("other:\n  num_layers: 8\n")
    text = (config_dir / "small_grpo.yaml").read_text().replace("- tiny", "- tiny\n  - other")
    config = compose_config(write(text), [f"{ROLE}.model=other"], str(config_dir))
    assert config.actor.model_keys == {"num_layers": 8}
    assert config.ignored_keys == [("model.tiny", "no role picks it with model: tiny")]


def test_shipped_model_files_are_found_from_another_directory(write, config_dir: Path):
    text = (config_dir / "small_grpo.yaml").read_text().replace("- tiny", "- qwen25_7b")
    config = compose_config(write(text), ["training.model=qwen25_7b"], str(config_dir))
    assert config.actor.model_keys["num_layers"] == 28


def test_a_configuration_may_be_named_by_its_path(config_dir: Path):
    assert compose_config(str(config_dir / "small_sft.yaml"), []).training.stage == "sft"


def test_the_run_directory_is_named_after_the_configuration(config_dir: Path):
    config = compose_config("small_sft", [], str(config_dir))
    assert config.training.run_dir == here("runs/small_sft")
    assert config.actor.save == here("runs/small_sft/checkpoints/actor")


def test_interpolations_are_resolved_after_the_overrides(write, config_dir: Path):
    text = (config_dir / "small_sft.yaml").read_text().replace("data/sft", "data/${training.seed}")
    config = compose_config(write(text + "  seed: 3\n"), ["training.seed=7"], str(config_dir))
    assert config.actor.data_path == here("data/7")


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        (f"{ROLE}.lr=1e-5", "lr", 1e-5),
        ("training.lr=1e-5", "lr", 1e-5),
        ("actor_rollout.lr=1e-5", "lr", 1e-5),
        ("+training.lr=1e-5", "lr", 1e-5),
        ("training.top_p=0.5", "top_p", 0.5),
        ("training.bf16=True", "bf16", True),
        ("training.eos_token_ids=[1,2]", "eos_token_ids", [1, 2]),
        ("training.eos_token_ids=1,2", "eos_token_ids", [1, 2]),
        ("training.load=/a/b=c:d", "load", "/a/b=c:d"),
        ("training.data_path=1.0,data/x", "data_path", here("data/x")),
        ("training.max-prompt-length=16", "max_prompt_length", 16),
    ],
)
def test_an_override_sets_a_key_whether_the_file_has_it_or_not(config_dir: Path, override, key, value):
    assert getattr(compose_config("small_grpo", [override], str(config_dir)).actor, key) == value


def test_the_last_override_counts(config_dir: Path):
    overrides = [f"{ROLE}.lr=1", "training.lr=2", f"{ROLE}.lr=3"]
    assert compose_config("small_grpo", overrides, str(config_dir)).actor.lr == 3
    assert compose_config("small_grpo", overrides[:2], str(config_dir)).actor.lr == 2


def test_an_override_of_a_key_written_with_hyphens_replaces_it(write, config_dir: Path):
    text = (config_dir / "small_sft.yaml").read_text().replace("  lr:", "  micro-batch-size: 2\n  lr:")
    assert compose_config(write(text), [], str(config_dir)).actor.micro_batch_size == 2
    assert compose_config(write(text), ["training.micro_batch_size=3"], str(config_dir)).actor.micro_batch_size == 3


def test_a_tilde_removes_a_key(config_dir: Path):
    with pytest.raises(UserError, match=r"\.lr is missing"):
        compose_config("small_grpo", [f"~{ROLE}.lr"], str(config_dir))


def test_model_files_may_be_chosen_on_the_command_line(config_dir: Path):
    overrides = ["model=[qwen25_7b]", f"{ROLE}.model=qwen25_7b"]
    assert compose_config("small_grpo", overrides, str(config_dir)).actor.model_keys["hidden_size"] == 3584


def test_items_of_a_list_may_be_overridden(config_dir: Path):
    config = compose_config("small_grpo", ["reward.functions.0.weight=2"], str(config_dir))
    assert config.reward.functions[0].weight == 2
    config = compose_config("small_grpo", ["reward.functions=[{name:format,weight:0.5},accuracy]"], str(config_dir))
    assert [(item.name, item.weight) for item in config.reward.functions] == [("format", 0.5), ("accuracy", 1.0)]


@pytest.mark.parametrize(
    ("override", "fragment"),
    [
        ("training.lr", "write key=value"),
        ("lr=1", "lr: this key needs its section; write actor_rollout_ref.actor_rollout.lr"),
        ("training.train_iters.x=1", "'train_iters' is 4, which has no keys"),
        ("reward.functions.3.weight=1", "list's 1 items"),
        ("model=[tinny]", "model file 'tinny', which does not exist; did you mean tiny"),
        (f"{ROLE}.model=tinny", "did you mean 'tiny'"),
        ("training.load=${nothing.there}", "nothing"),
        ("training.load=???", "load"),
        ("training=3", "training: a section with keys is needed"),
    ],
)
def test_an_override_that_cannot_be_is_refused(config_dir: Path, override, fragment):
    with pytest.raises(UserError) as refused:
        compose_config("small_grpo", [override], str(config_dir))
    assert fragment in str(refused.value) and "\n" not in str(refused.value)


def test_an_unknown_configuration_lists_near_names(config_dir: Path):
    with pytest.raises(UserError, match="did you mean small_grpo"):
        compose_config("smal_grpo", [], str(config_dir))
    with pytest.raises(UserError, match="available: small_grpo, small_ppo, small_sft"):
        compose_config("zzz", [], str(config_dir))


def test_a_missing_directory_is_named(config_dir: Path):
    with pytest.raises(UserError, match="--config-dir .*nowhere: no such directory"):
        compose_config("small_grpo", [], str(config_dir / "nowhere"))


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("training: [1, 2\n", "written.yaml, line 2, column 1: not YAML: expected ',' or ']', but got '<stream end>'"),
        ("training:\n  lr: 1\n  lr: 2\n", "duplicate key"),
        ("- a\n- b\n", "written.yaml is a list, not a mapping of sections"),
        ("defaults: model\n", "defaults must be a list"),
        ("", "training.stage is missing"),
        ("defaults:\n  - model: [gone]\n", "model file 'gone', which does not exist"),
    ],
)
def test_a_file_that_cannot_be_composed_is_named(write, config_dir: Path, text, fragment):
    with pytest.raises(UserError) as refused:
        compose_config(write(text), [], str(config_dir))
    assert fragment in str(refused.value)


def test_a_file_that_is_no_text_is_named(config_dir: Path):
    (config_dir / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="binary.yaml .*: it is not UTF-8 text"):
        compose_config("binary", [], str(config_dir))


def test_a_model_file_whose_key_is_not_its_name_is_explained(config_dir: Path):
    (config_dir / "model" / "tiny.yaml").write_text("num_layers: 4\n")
    with pytest.raises(UserError, match="must be its own name"):
        compose_config("small_grpo", [f"{ROLE}.model=tiny"], str(config_dir))


def test_an_override_of_training_wins_over_critic_and_reward_too_but_for_the_reward_models_tokenizer(config_dir: Path):
    overrides = ["reward.tokenizer_name_or_path=its", "reward.micro_batch_size=2", "critic.lr=1"]
    overrides += ["training.lr=1e-5", "training.micro_batch_size=8", "training.tokenizer_name_or_path=theirs"]
    config = compose_config("small_ppo", overrides, str(config_dir))
    assert (config.actor.lr, config.critic.lr) == (1e-5, 1e-5)
    assert (config.critic.micro_batch_size, config.reward_model.micro_batch_size) == (8, 8)
    assert (config.actor.tokenizer_name_or_path, config.reward_model.tokenizer_name_or_path) == (
        here("theirs"),
        here("its"),
    )
    assert compose_config("small_ppo", ["critic.lr=2"], str(config_dir)).critic.lr == 2


def test_a_training_override_of_a_rule_reward_key_leaves_the_reward_section_alone(config_dir: Path):
    with pytest.raises(UserError, match=r"training\.timeout_s: this section has no such key; write reward\.timeout_s"):
        compose_config("small_ppo", ["training.timeout_s=3"], str(config_dir))


@pytest.mark.parametrize(
    ("override", "fragment"),
    [
        ("~training.sede", "override '~training.sede': there is no such key to remove"),
        ("training/lr=3", "is not an override: write training.lr=VALUE"),
        ("hydra.run.dir=x", "training.run_dir says where a run lies"),
        ("=3", "'=3' is not an override: write key=value"),
        ("training.seed=99999999999999999999", "training.seed"),
    ],
)
def test_an_override_that_could_mean_nothing_is_refused(config_dir: Path, override: str, fragment: str):
    with pytest.raises(UserError) as caught:
        compose_config("small_grpo", [override], str(config_dir))
    assert fragment in str(caught.value)


def test_a_file_that_is_not_there_is_named_by_its_path(config_dir: Path):
    with pytest.raises(UserError, match="--config-name /none.yaml: no such file"):
        compose_config("/none.yaml", [])
