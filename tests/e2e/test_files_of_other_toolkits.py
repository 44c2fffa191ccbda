"""A MindSpeed-style Ray PPO or GRPO file, with its model file, trains with nothing but its paths changed."""

from pathlib import Path

import pytest

from mindllm.preprocess.cli import main as preprocess
from tests.e2e.runs import Workspace, metrics, run_here, run_process

BROUGHT = Path(__file__).parent / "brought"
pytestmark = [pytest.mark.slow, pytest.mark.ray]


def with_paths(workspace: Workspace, root: Path) -> Path:
    """Write the files with the paths of this machine in place of theirs; return their directory."""
    paths = {
        "./model_from_hf": workspace.hf,
        "./ckpt_out": root / "saved",
        "./ckpt": workspace.mcore,
        "./rm": workspace.reward,
        "./dataset": root / "dataset",
    }
    directory = root / "configs"
    (directory / "model").mkdir(parents=True)
    for file in BROUGHT.rglob("*.yaml"):
        text = file.read_text()
        for theirs, ours in paths.items():
            text = text.replace(theirs, str(ours))
        (directory / file.relative_to(BROUGHT)).write_text(text)
    return directory


@pytest.fixture
def configs(ppo_workspace, tmp_path) -> Path:
    """The brought configurations, and the data that the same toolkit's handlers would have made for them."""
    answered = ["--handler-name", "R1AlpacaStyleInstructionHandler", "--dataset-additional-keys", "labels"]
    answered += ["--map-keys", '{"prompt": "prompt", "query": "", "response": "digit", "system": ""}']
    plain = ["--handler-name", "PPOAlpacaStyleInstructionHandler", "--map-keys", '{"prompt": "prompt"}']
    for name, options in (("grpo", answered), ("ppo", plain)):
        where = ["--input", ppo_workspace.task / "train.jsonl", "--output-prefix", tmp_path / "dataset" / name]
        text = ["--tokenizer-name-or-path", ppo_workspace.hf, "--prompt-type", "empty"]
        outcome = run_here(preprocess, [*where, *options, *text])
        assert outcome.status == 0, outcome.err
    return with_paths(ppo_workspace, tmp_path)


def test_a_brought_ppo_file_trains(configs, tmp_path):
    where = ["--config-name", "ppo", "--config-dir", configs, f"training.run_dir={tmp_path / 'run'}"]
    out = run_process(where).out
    assert "critic.use_mcore_models" in out and "training.distributed_backend" in out
    lines = metrics(tmp_path / "run")
    assert [line["iteration"] for line in lines] == [1, 2]
    for line in lines:
        assert line["actor/grad_norm"] > 0 and line["critic/grad_norm"] > 0
        assert line["actor/lr"] == 1e-7 and line["critic/kl_coef"] == 0.05
        assert {"reward/model/mean", "critic/vf_loss", "critic/values/mean"} <= line.keys()
    for role in ("actor", "critic"):
        assert (tmp_path / "saved" / role / "latest_checkpointed_iteration.txt").read_text() == "2\n"


def test_a_brought_grpo_file_trains(configs, tmp_path):
    run_process(["--config-name", "grpo", "--config-dir", configs, f"training.run_dir={tmp_path / 'run'}"])
    lines = metrics(tmp_path / "run")
    assert [line["iteration"] for line in lines] == [1, 2]
    for line in lines:
        # the weights of verifier_weight, under the names that the functions have here
        parts = [line[f"reward/{name}/mean"] for name in ("accuracy", "strict_format", "step")]
        assert line["critic/score/mean"] == pytest.approx(parts[0] + 0.5 * parts[1] + 0.1 * parts[2])
        assert line["actor/lr"] == 1e-6
    assert (tmp_path / "saved/latest_checkpointed_iteration.txt").read_text() == "2\n"
