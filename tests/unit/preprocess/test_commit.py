"""Outputs count when all of them are in place, and not a moment before, wherever a run is killed."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindllm.data import PromptDataset
from mindllm.data.manifest import manifest_path
from mindllm.errors import UserError
from mindllm.preprocess.output.commit import commit
from mindllm.preprocess.output.order import OrderOptions
from mindllm.preprocess.output.outputs import output_prefixes
from mindllm.preprocess.run import PreprocessOptions, preprocess

PPO = "PPOAlpacaStyleInstructionHandler"
SPLIT = OrderOptions(split=(2, 1, 1))


@pytest.fixture
def options(write_jsonl: Callable[..., Path], tokenizer_dir: Path, tmp_path: Path) -> Callable[..., PreprocessOptions]:
    """`options(directory)`: a run on eight prompts that is split into three outputs."""
    data = str(write_jsonl([{"instruction": f"question {n}"} for n in range(8)]))

    def make(directory: Path, **others: Any) -> PreprocessOptions:
        others = {"order": SPLIT, **others}
        return PreprocessOptions([data], directory / "data", tokenizer_dir, PPO, "chatml", **others)

    return make


def commit_killed_at(step: int, out: Path, staged: dict[Path, list[Path]]) -> bool:
    """Commit in a process that is killed before its n-th rename or removal; whether there were so many."""
    child = os.fork()
    if child == 0:
        left = [step]

        def counted(work: Callable[..., Any]) -> Callable[..., Any]:
            def run(*arguments: Any, **named: Any) -> Any:
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return work(*arguments, **named)

            return run

        Path.replace, Path.unlink = counted(Path.replace), counted(Path.unlink)  # type: ignore[method-assign]
        commit(out / "data", output_prefixes(out / "data", is_split=True), staged)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("replaces", [False, True], ids=["new", "overwrite"])
def test_a_kill_at_any_step_leaves_all_or_nothing_and_a_rerun_succeeds(
    replaces: bool, options: Callable[..., PreprocessOptions], tmp_path: Path
) -> None:
    preprocess(options(tmp_path / "source"))
    files = sorted((tmp_path / "source").iterdir(), key=lambda path: path.name.endswith("manifest.json"))
    steps = 0
    while True:
        out = tmp_path / f"out-{steps}"
        out.mkdir()
        if replaces:
            shutil.copytree(tmp_path / "source", out, dirs_exist_ok=True)
        staging = out / "data.tmp-elsewhere-1"
        staging.mkdir()
        staged = {out / "data": [Path(shutil.copy(file, staging)) for file in files]}
        prefixes = output_prefixes(out / "data", is_split=True)
        if not commit_killed_at(steps, out, staged):
            break
        if steps or not replaces:  # before the first step older data is whole
            for prefix in prefixes:
                with pytest.raises(UserError, match=r"does not exist|was killed at the very end .*; run it again"):
                    PromptDataset(prefix)
        if steps in (1, 3, 9):
            preprocess(options(out))
            assert {path.name for path in out.iterdir()} == {file.name for file in files} | {staging.name}
            assert sum(len(PromptDataset(prefix)) for prefix in prefixes) == 8
        steps += 1
    assert steps == (26 if replaces else 14)  # a journal, twelve files, and its removal; twelve older files before
    assert sum(len(PromptDataset(prefix)) for prefix in prefixes) == 8
    assert not list(out.glob("*.incomplete"))


def test_a_split_is_replaced_only_when_asked_and_with_all_its_parts(
    options: Callable[..., PreprocessOptions], tmp_path: Path
) -> None:
    preprocess(options(tmp_path))
    two = OrderOptions(split=(1, 1))
    with pytest.raises(UserError, match=r"data_train_manifest\.json exists already; --overwrite replaces that data"):
        preprocess(options(tmp_path, order=two))
    preprocess(options(tmp_path, order=two, overwrite=True))
    assert not list(tmp_path.glob("data_test_*"))  # it would share rows with the new parts
    listed = [json.loads(manifest_path(tmp_path / f"data_{name}").read_text()) for name in ("train", "valid")]
    assert [manifest["samples"]["samples"] for manifest in listed] == [4, 4]
