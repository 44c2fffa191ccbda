"""Saving and resuming a run: what counts as a checkpoint, and when."""

import contextlib
import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mindllm.checkpoint import run_state
from mindllm.checkpoint.run_state import RunState, complete_iterations
from mindllm.errors import UserError


def role_writer(text: str) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        assert directory.is_dir() and not list(directory.iterdir())
        (directory / "weights").write_text(text)

    return write


def make(tmp_path: Path, keep_last: int | None = None) -> RunState:
    return RunState(tmp_path / "run", {"actor": tmp_path / "actor", "critic": tmp_path / "critic"}, keep_last)


def save(state: RunState, iteration: int) -> None:
    writers = {role: role_writer(f"{role} {iteration}") for role in ("actor", "critic")}
    state.save(iteration, {"sampler": {"epoch": iteration}}, writers)


def manifest(tmp_path: Path, iteration: int) -> Path:
    return tmp_path / "run" / "checkpoints" / f"iter_{iteration:07d}.json"


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    assert make(tmp_path).latest() is None
    save(make(tmp_path), 3)
    saved = make(tmp_path).latest()
    assert saved is not None and saved.iteration == 3 and saved.state == {"sampler": {"epoch": 3}}
    for role, directory in saved.roles.items():
        assert directory == tmp_path / role / "iter_0000003"
        assert (directory / "weights").read_text() == f"{role} 3"
        assert (tmp_path / role / "latest_checkpointed_iteration.txt").read_text() == "3\n"


def test_the_newest_counts_whatever_its_number_of_digits(tmp_path: Path) -> None:
    for iteration in (9, 10, 100):
        save(make(tmp_path), iteration)
    saved = make(tmp_path).latest()
    assert saved is not None and saved.iteration == 100


def test_nothing_counts_before_every_role_is_written(tmp_path: Path) -> None:
    state = make(tmp_path)
    save(state, 1)

    def fail(directory: Path) -> None:
        (directory / "weights").write_text("half of it")
        assert not manifest(tmp_path, 2).exists()
        assert not (tmp_path / "critic" / "iter_0000002").exists()
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        state.save(2, {}, {"actor": role_writer("actor 2"), "critic": fail})
    saved = make(tmp_path).latest()
    assert saved is not None and saved.iteration == 1
    assert (tmp_path / "actor" / "latest_checkpointed_iteration.txt").read_text() == "1\n"


def test_what_an_interrupted_save_left_is_written_anew(tmp_path: Path) -> None:
    for leftover in ("iter_0000002", "iter_0000002.tmp"):
        (tmp_path / "actor" / leftover).mkdir(parents=True)
        (tmp_path / "actor" / leftover / "stale").touch()
    assert make(tmp_path).latest() is None
    save(make(tmp_path), 2)
    assert {path.name for path in (tmp_path / "actor" / "iter_0000002").iterdir()} == {"weights"}
    assert not (tmp_path / "actor" / "iter_0000002.tmp").exists()


def test_a_death_at_any_write_leaves_the_earlier_or_the_new_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, written = run_state.write_atomically, []
    state = make(tmp_path, keep_last=1)
    save(state, 1)

    class Killed(BaseException):
        pass

    for survive in range(4):  # the manifest, two trackers, and none that dies
        written.clear()

        def dying(path: Path, lines: list[str], limit: int = survive) -> None:
            if len(written) == limit:
                raise Killed
            written.append(path)
            original(path, lines)

        monkeypatch.setattr(run_state, "write_atomically", dying)
        if survive < 3:
            with pytest.raises(Killed):
                save(state, 2 + survive)
        else:
            save(state, 2 + survive)
        saved = make(tmp_path).latest()
        assert saved is not None and saved.iteration == (1 if survive == 0 else 2 + survive)
        assert (saved.roles["actor"] / "weights").read_text() == f"actor {saved.iteration}"
        tracked = int((tmp_path / "critic" / "latest_checkpointed_iteration.txt").read_text())
        assert (tmp_path / "critic" / f"iter_{tracked:07d}" / "weights").is_file()


@pytest.mark.parametrize("survives", range(5), ids="dies at removal {}".format)
def test_a_death_at_any_removal_leaves_no_directory_that_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    save(make(tmp_path), 1)
    save(make(tmp_path), 2)
    for foreign in ("iter_0000000", "iter_0000003", "best", "iter_0000001_backup"):
        (tmp_path / "actor" / foreign).mkdir()
    original, removed = shutil.rmtree, []

    class Killed(BaseException):
        pass

    def dying(path: Path, **options: bool) -> None:
        if not path.exists():
            return
        if len(removed) == survives:
            (path / "weights").unlink()
            raise Killed
        removed.append(path)
        original(path, **options)

    monkeypatch.setattr(shutil, "rmtree", dying)
    with contextlib.suppress(Killed):
        save(make(tmp_path, keep_last=1), 4)
    monkeypatch.undo()
    state = make(tmp_path)
    saved = state.latest()
    state.clean_up()
    assert saved is not None and saved.iteration == 4
    assert {path.name for path in (tmp_path / "critic").glob("iter_*")} == {"iter_0000004"}
    assert {path.name for path in (tmp_path / "actor").iterdir() if path.is_dir()} == {
        "iter_0000004",
        "iter_0000000",
        "iter_0000003",
        "best",
        "iter_0000001_backup",
    }
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["iter_0000004.json"]


def test_what_an_interrupted_save_left_goes_even_if_its_iteration_is_not_saved_again(tmp_path: Path) -> None:
    save(make(tmp_path), 1)

    class Killed(BaseException):
        pass

    def die(directory: Path) -> None:
        (directory / "weights").write_text("half of it")
        raise Killed

    with pytest.raises(Killed):
        make(tmp_path).save(2, {}, {"actor": role_writer("actor 2"), "critic": die})
    assert (tmp_path / "actor/iter_0000002").is_dir() and (tmp_path / "critic/iter_0000002.tmp").is_dir()
    state = make(tmp_path)
    saved = state.latest()
    state.clean_up()
    assert saved is not None and saved.iteration == 1
    for role in ("actor", "critic"):
        assert [path.name for path in (tmp_path / role).glob("iter_*")] == ["iter_0000001"]


def test_training_s_own_directories_older_than_all_that_are_kept_go_and_no_others(tmp_path: Path) -> None:
    actor = tmp_path / "run/checkpoints/actor"
    for name, provenance in [
        ("iter_0000001", {"iteration": 1}),
        ("iter_0000002", {"converted_from": "hf"}),
        ("iter_0000003", {"iteration": 1}),  # somebody's copy
        ("iter_0000004", {"iteration": 4}),
        ("iter_0000005", {"iteration": 5}),
    ]:
        (actor / name).mkdir(parents=True)
        (actor / name / "mindllm.json").write_text(json.dumps({"provenance": provenance}))
    states = [RunState(tmp_path / "run", {"actor": actor}, keep_last) for keep_last in (None, 1)]
    manifest(tmp_path, 4).write_text(json.dumps({"iteration": 4, "roles": {"actor": "iter_0000004"}, "state": {}}))
    for state, gone in zip(states, [set(), {"iter_0000001"}], strict=True):
        state.clean_up()
        names = {f"iter_{n:07d}" for n in range(1, 6)} - gone
        assert {path.name for path in actor.iterdir()} == names


def test_a_save_that_fails_names_its_directory_and_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    state = make(tmp_path, keep_last=1)
    save(state, 1)

    def fill_the_disk(directory: Path) -> None:
        (directory / "weights").write_text("half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError) as failure:
        state.save(2, {}, {"actor": role_writer("actor 2"), "critic": fill_the_disk})
    assert failure.value.filename == str(tmp_path / "critic/iter_0000002.tmp")
    assert {path.name for path in tmp_path.glob("*/iter_*")} == {"iter_0000001"}
    saved = make(tmp_path).latest()
    assert saved is not None and saved.iteration == 1


@pytest.mark.parametrize("content", [b"", b"\0" * 300, b"[1]", b'{"iteration": 2}', b"\xff\xfe"])
def test_a_damaged_manifest_is_named_with_the_way_back(tmp_path: Path, content: bytes) -> None:
    save(make(tmp_path), 1)
    manifest(tmp_path, 2).write_bytes(content)
    with pytest.raises(UserError, match=r"iter_0000002.json: not a readable checkpoint manifest .*delete the file to"):
        make(tmp_path).latest()


def test_files_with_other_names_are_no_manifests(tmp_path: Path) -> None:
    save(make(tmp_path), 3)
    shutil.copy(manifest(tmp_path, 3), manifest(tmp_path, 3).with_name("iter_0000003 (copy).json"))
    assert list(complete_iterations(tmp_path / "run")) == [3]


def test_only_the_last_ones_are_kept(tmp_path: Path) -> None:
    for iteration in range(1, 6):
        save(make(tmp_path, keep_last=2), iteration)
    kept = {"iter_0000004", "iter_0000005"}
    for role in ("actor", "critic"):
        assert {path.name for path in (tmp_path / role).glob("iter_*")} == kept
    assert {path.stem for path in (tmp_path / "run" / "checkpoints").iterdir()} == kept
    save(make(tmp_path), 6)
    assert {path.name for path in (tmp_path / "actor").glob("iter_*")} == kept | {"iter_0000006"}


def test_a_manifest_that_names_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    save(make(tmp_path), 1)
    save(make(tmp_path), 2)
    (tmp_path / "critic" / "iter_0000002").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"critic checkpoint .*iter_0000002 it names is gone"):
        make(tmp_path).latest()
    manifest(tmp_path, 2).unlink()
    saved = make(tmp_path).latest()
    assert saved is not None and saved.iteration == 1


def test_checkpoints_of_another_run_are_not_overwritten(tmp_path: Path) -> None:
    save(make(tmp_path), 1)
    other = RunState(tmp_path / "other", {"critic": tmp_path / "critic"}, None)
    with pytest.raises(UserError, match="critic.save: .*critic holds checkpoints that are not of this run_dir"):
        other.latest()
    assert (tmp_path / "critic" / "iter_0000001" / "weights").read_text() == "critic 1"


@pytest.mark.parametrize(
    "text", ["", '{"iteration": 1', '{"iteration": 1}', "[]", '{"iteration": 1, "state": {}, "roles": []}']
)
def test_an_unreadable_manifest_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    save(make(tmp_path), 1)
    manifest(tmp_path, 1).write_text(text)
    with pytest.raises(UserError, match="iter_0000001.json: not a readable checkpoint manifest"):
        make(tmp_path).latest()


def test_the_manifest_is_plain_json_without_temporary_files_beside_it(tmp_path: Path) -> None:
    save(make(tmp_path), 1)
    assert [path.name for path in manifest(tmp_path, 1).parent.iterdir()] == ["iter_0000001.json"]
    values = json.loads(manifest(tmp_path, 1).read_text())
    assert values["iteration"] == 1 and set(values["roles"]) == {"actor", "critic"}
