"""What every end-to-end test starts from, made once a session by the real commands."""

import pytest

from mindllm.convert.cli import main as convert
from mindllm.preprocess.cli import main as preprocess
from tests.e2e import tiny
from tests.e2e.runs import Workspace, run_here, write_configs
from tests.e2e.tiny_ppo import make_ppo_workspace


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """hf/, mcore/, task/, data/ and configs/ under one root; read only."""
    made = Workspace(tmp_path_factory.mktemp("e2e"))
    tiny.write_model(made.hf)
    tiny.write_tasks(made.task)
    prompts = ["--handler-name", "PPOAlpacaStyleInstructionHandler", "--map-keys", '{"prompt": "prompt"}']
    examples = ["--handler-name", "AlpacaStyleInstructionHandler"]
    for name, options in (("train", prompts), ("heldout", prompts), ("sft", examples)):
        where = ["--input", made.task / f"{name}.jsonl", "--output-prefix", made.data / name]
        text = ["--tokenizer-name-or-path", made.hf, "--prompt-type", "empty"]
        outcome = run_here(preprocess, [*where, *options, *text])
        assert outcome.status == 0, outcome.err
    kinds = ["--load-model-type", "hf", "--save-model-type", "mcore"]
    outcome = run_here(convert, [*kinds, "--load-dir", made.hf, "--save-dir", made.mcore])
    assert outcome.status == 0, outcome.err
    write_configs(made)
    return made


@pytest.fixture(scope="session")
def ppo_workspace(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The workspace of PPO and reward-model runs; read only."""
    return make_ppo_workspace(workspace, tmp_path_factory.mktemp("ppo"))
