import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch

from mindllm.errors import UserError
from mindllm.observe import RunLog
from mindllm.observe.progress import Progress


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _iterations(run_dir: Path) -> list[int]:
    return [record["iteration"] for record in _lines(run_dir / "metrics.jsonl")]


def test_each_iteration_is_one_line_of_strict_json(tmp_path):
    log = RunLog(tmp_path, ["jsonl"], 2)
    log.log(1, {"actor/pg_loss": 0.5, "actor/grad_norm": float("nan"), "timing/rollout": 1.25})
    log.log(2, {"actor/pg_loss": torch.tensor(0.25), "count": 3})
    assert _lines(tmp_path / "metrics.jsonl") == [
        {"iteration": 1, "actor/pg_loss": 0.5, "actor/grad_norm": None, "timing/rollout": 1.25},
        {"iteration": 2, "actor/pg_loss": 0.25, "count": 3},
    ]
    log.close()


def test_an_iteration_cannot_be_logged_twice(tmp_path):
    log = RunLog(tmp_path, ["jsonl"], 3)
    log.log(2, {})
    with pytest.raises(ValueError, match="iteration 2 logged after iteration 2"):
        log.log(2, {})


def test_after_a_resume_each_iteration_appears_exactly_once(tmp_path):
    first = RunLog(tmp_path, ["jsonl"], 5)
    for iteration in (1, 2, 3, 4):
        first.log(iteration, {"session": 1})
        first.samples(iteration, [{"completion": "one"}])
    kept = (tmp_path / "metrics.jsonl").read_text().splitlines()[:2]

    second = RunLog(tmp_path, ["jsonl"], 5)
    second.truncate_after(2)
    for iteration in (3, 4, 5):
        second.log(iteration, {"session": 2})
        second.samples(iteration, [{"completion": "two"}])
    second.close()
    assert (tmp_path / "metrics.jsonl").read_text().splitlines()[:2] == kept
    assert [(r["iteration"], r["session"]) for r in _lines(tmp_path / "metrics.jsonl")] == [
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
        (5, 2),
    ]
    samples = {path.name: _lines(path)[0]["completion"] for path in (tmp_path / "samples").iterdir()}
    assert samples == {f"iter_000000{i}.jsonl": "one" if i <= 2 else "two" for i in range(1, 6)}


def test_a_fresh_start_forgets_all_iterations(tmp_path):
    with RunLog(tmp_path, ["jsonl"], 1) as log:
        log.log(1, {})
        log.samples(1, [])
    again = RunLog(tmp_path, ["jsonl"], 1)
    again.truncate_after(0)
    assert _iterations(tmp_path) == []
    assert list((tmp_path / "samples").iterdir()) == []


def test_a_line_torn_by_a_kill_is_dropped(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n{"iteration": 2, "actor/pg')
    log = RunLog(tmp_path, ["jsonl"], 2)
    log.log(2, {})
    assert _iterations(tmp_path) == [1, 2]


def test_half_written_samples_are_removed_and_never_seen_under_the_final_name(tmp_path):
    log = RunLog(tmp_path, [], 2)

    def rows():
        yield {"completion": "a"}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log.samples(1, rows())
    assert not (tmp_path / "samples" / "iter_0000001.jsonl").exists()
    log.truncate_after(1)
    assert list((tmp_path / "samples").iterdir()) == []


def test_a_corrupt_metrics_file_is_reported_with_its_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"iteration": 1}\n\xff\xfe\x00\n{"iteration": 2}\n')
    with pytest.raises(UserError, match="metrics.jsonl, line 2: not a JSON object"):
        RunLog(tmp_path, ["jsonl"], 2).truncate_after(2)


TWO = b'{"iteration": 1, "a": 0.1}\n{"iteration": 2, "a": 0.2}'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (TWO, ""),
        (TWO.replace(b"\n", b"\r\n") + b"\r\n\n \n", ""),
        (b"\xef\xbb\xbf" + TWO, ""),
        (TWO + b"\0" * 4096, ""),
        (TWO + b"\n" + b"\0" * 4096, ""),
        (TWO + b'\n{"iteration": 3, "a": 0', ""),
        (TWO + b'\n{"iteration": 3}\n\xff\xfe\x80garbage\n{"iteration": 4}\n', "1 damaged line(s) at its end were"),
        (TWO + b'\n[3]\n3\n{"iteration": "2"}\n{"iteration": true}\n' + b"[" * 100_000 + b"\n", "5 damaged line(s)"),
        (b'{"iteration": 1, "a": 5}\n' + TWO + b'\n{"iteration": 3}', "1 repeated line(s) were dropped"),
    ],
    ids=["no newline", "CRLF", "BOM", "NUL", "NUL after newline", "torn", "garbage", "other JSON", "repeated"],
)
def test_every_iteration_before_the_checkpoint_is_kept_whatever_the_file_ends_with(tmp_path, capsys, content, said):
    (tmp_path / "metrics.jsonl").write_bytes(content)
    log = RunLog(tmp_path, ["jsonl"], 3)
    log.truncate_after(2)
    out = capsys.readouterr().out
    log.log(3, {"a": 0.3})
    lines = (tmp_path / "metrics.jsonl").read_text("utf-8-sig").splitlines()
    assert [json.loads(line) for line in lines] == [{"iteration": i, "a": i / 10} for i in (1, 2, 3)]
    assert said in out and out.count("\n") == bool(said)


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b'{"iteration": 3}\n'], ids=["empty", "NUL", "later ones"])
def test_iterations_that_are_missing_from_the_metrics_are_said(tmp_path, capsys, content):
    (tmp_path / "metrics.jsonl").write_bytes(content)
    RunLog(tmp_path, ["jsonl"], 3).truncate_after(2)
    assert (
        "metrics.jsonl: it has no lines for 2 of the iterations 1 to 2, which are not done" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: os.truncate(file, 20), "is damaged: 20 bytes instead of 40"),
        (lambda file: os.truncate(file, 0), "is damaged: 0 bytes instead of 40"),
        (
            lambda file: file.write_bytes(file.read_bytes()[:20] + bytes(20)),
            "is damaged: it does not end with a newline",
        ),
        (lambda file: file.unlink(), ""),
    ],
    ids=["cut", "empty", "NUL", "removed"],
)
def test_a_damaged_samples_file_of_an_iteration_before_the_checkpoint_is_said(tmp_path, capsys, damage, said):
    with RunLog(tmp_path, ["jsonl"], 2) as log:
        for iteration in (1, 2):
            log.samples(iteration, [{"response": "one"}, {"response": "two"}])
            log.log(iteration, {"a": 1})
    capsys.readouterr()
    damage(tmp_path / "samples/iter_0000001.jsonl")
    damage(tmp_path / "samples/iter_0000002.jsonl")  # written anew: it is not said
    RunLog(tmp_path, ["jsonl"], 2).truncate_after(1)
    out = capsys.readouterr().out
    assert said in out and out.count("\n") == bool(said)


@pytest.fixture
def full_disk(monkeypatch):
    """``full_disk()`` makes every file take half of what is written to it and then no more."""
    write = os.write

    def write_half(descriptor, data):
        write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def no_room(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill():
        monkeypatch.setattr(os, "write", write_half)
        monkeypatch.setattr(os, "fsync", no_room)

    return fill


def test_a_line_that_a_full_disk_does_not_take_leaves_the_lines_before(tmp_path, full_disk, monkeypatch):
    log = RunLog(tmp_path, ["jsonl"], 2)
    log.log(1, {"a": 1})
    full_disk()
    with pytest.raises(OSError) as failure:
        log.log(2, {"a": 2})
    assert failure.value.filename == str(tmp_path / "metrics.jsonl")
    monkeypatch.undo()
    assert _iterations(tmp_path) == [1]


def test_samples_that_a_full_disk_does_not_take_leave_nothing(tmp_path, full_disk):
    log = RunLog(tmp_path, [], 2)
    full_disk()
    with pytest.raises(OSError) as failure:
        log.samples(1, [{"a": 1}])
    assert failure.value.filename == str(tmp_path / "samples/iter_0000001.jsonl")
    assert list((tmp_path / "samples").iterdir()) == []


def test_a_report_that_a_full_disk_does_not_take_hides_no_earlier_failure(tmp_path, full_disk):
    full_disk()
    with pytest.raises(RuntimeError, match="worker died"), RunLog(tmp_path, ["jsonl"], 2):
        raise RuntimeError("worker died")
    with pytest.raises(OSError) as failure:
        RunLog(tmp_path, ["jsonl"], 2).close("finished")
    assert failure.value.filename == str(tmp_path / "report.json")


def test_a_logged_line_survives_kill_9(tmp_path):
    code = (
        "import os, signal, sys\nfrom mindllm.observe import RunLog\n"
        "log = RunLog(sys.argv[1], ['jsonl'], 9)\n"
        "log.log(1, {'a': 1}); log.samples(1, [{'b': 2}])\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    assert subprocess.run([sys.executable, "-c", code, tmp_path], env=env).returncode == -signal.SIGKILL
    assert _lines(tmp_path / "metrics.jsonl") == [{"iteration": 1, "a": 1}]
    assert _lines(tmp_path / "samples" / "iter_0000001.jsonl") == [{"b": 2}]


def test_samples_keep_any_text_and_unusual_values(tmp_path):
    log = RunLog(tmp_path, [], 1)
    log.samples(7, [{"completion": "line\nbreak — 数", "reward": None, "tokens": (1, 2), "path": Path("x")}])
    row = _lines(tmp_path / "samples" / "iter_0000007.jsonl")
    assert row == [{"completion": "line\nbreak — 数", "reward": None, "tokens": [1, 2], "path": "x"}]


def _tensorboard_scalars(run_dir: Path, tag: str) -> dict[int, float]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(tag)}


def test_tensorboard_shows_each_iteration_once_after_a_resume(tmp_path):
    first = RunLog(tmp_path, ["jsonl", "tensorboard"], 3)
    for iteration in (1, 2, 3):
        first.log(iteration, {"loss": 1.0, "broken": float("inf")})
    first.close()
    second = RunLog(tmp_path, ["jsonl", "tensorboard"], 3)
    second.truncate_after(1)
    second.log(2, {"loss": 0.5})
    second.close()
    assert _tensorboard_scalars(tmp_path, "loss") == {1: 1.0, 2: 0.5}


@pytest.mark.parametrize("failure", ["import", "start", "log"])
def test_a_failing_tracker_warns_once_and_the_run_goes_on(tmp_path, monkeypatch, caplog, failure):
    def fail(*args, **kwargs):
        raise ConnectionError("no network")

    run = types.SimpleNamespace(log=fail, finish=fail)
    fake = types.SimpleNamespace(init=fail if failure == "start" else lambda **_: run, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", None if failure == "import" else fake)
    log = RunLog(tmp_path, ["jsonl", "wandb"], 3)
    for iteration in (1, 2, 3):
        log.log(iteration, {"loss": 1.0})
    log.close()
    assert _iterations(tmp_path) == [1, 2, 3]
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "tracker 'wandb' is off from now on, the run continues" in caplog.text


def test_a_resumed_run_goes_on_in_the_same_wandb_run(tmp_path, monkeypatch):
    started, sent = [], []
    run = types.SimpleNamespace(log=lambda scalars, step: sent.append((step, scalars)), finish=lambda: None)
    fake = types.SimpleNamespace(init=lambda **kw: started.append(kw["id"]) or run, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for iteration in (1, 2):
        with RunLog(tmp_path, ["wandb"], 2) as log:
            log.log(iteration, {"loss": 0.5})
    assert started[0] == started[1]
    assert sent == [(1, {"loss": 0.5}), (2, {"loss": 0.5})]


def test_an_unknown_tracker_is_refused_with_a_suggestion(tmp_path):
    with pytest.raises(UserError, match="unknown 'tensorbord', allowed: jsonl, tensorboard, wandb; did you mean"):
        RunLog(tmp_path, ["tensorbord"], 1)


def test_the_package_imports_neither_torch_nor_tensorboard():
    code = (
        "import sys, mindllm.observe; print([m for m in ('torch', 'tensorboard', 'rich', 'wandb') if m in sys.modules])"
    )
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True).strip() == "[]"


def test_progress_lines_show_reward_speed_and_time_left():
    stream = io.StringIO()
    progress = Progress(4, {"reward": "critic/score/mean", "tokens/s": "timing/tokens_per_s"}, 2, stream)
    for iteration in (1, 2, 3, 4):
        progress.update(iteration, {"critic/score/mean": 0.5, "timing/tokens_per_s": 12345.6})
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["2/4", "4/4"]
    assert "reward 0.5  tokens/s 12,346" in lines[0]
    assert "s/iteration" in lines[0]
    assert lines[1].endswith("eta 0:00:00")


def test_the_pace_does_not_count_what_went_before_the_first_iteration(monkeypatch):
    clock = iter([100.0, 102.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    stream = io.StringIO()
    progress = Progress(10, {}, 1, stream)
    for iteration in (1, 2):
        progress.update(iteration, {"timing/iteration": 1.5})
    first, second = stream.getvalue().splitlines()
    assert "1.50 s/iteration  eta 0:00:14" in first  # 9 more of 1.5 s
    assert "1.75 s/iteration  eta 0:00:14" in second  # 3.5 s in two


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_a_log_names_each_phase_once(clock):
    stream = io.StringIO()
    progress = Progress(3, {}, 1, stream)
    with progress.phase("loading"):
        pass
    for iteration in (1, 2, 3):
        with progress.phase("generating", 8, iteration):
            clock.now += 5
            progress.advance(4)
        with progress.phase("updating", iteration=iteration):
            clock.now += 5
    assert stream.getvalue().splitlines() == [
        "loading",
        "iteration 1/3: generating: 0 of 8",
        "iteration 1/3: updating",
    ]


def test_a_log_names_a_slow_phase_every_time_and_says_once_a_minute_how_far_it_is(clock):
    stream = io.StringIO()
    progress = Progress(2, {}, 1, stream)
    for iteration in (1, 2):
        with progress.phase("generating", 8, iteration):
            for done in (1, 2, 3, 4):
                clock.now += 40
                progress.advance(done)
    assert stream.getvalue().splitlines() == [
        *("iteration 1/2: generating: 0 of 8", "generating: 2 of 8", "generating: 4 of 8"),
        *("iteration 2/2: generating: 0 of 8", "generating: 2 of 8", "generating: 4 of 8"),
    ]


def test_what_counts_nothing_is_not_advanced():
    stream = io.StringIO()
    progress = Progress(1, {}, 1, stream)
    progress.advance(1)
    with progress.phase("updating"):
        progress.advance(1)
    assert stream.getvalue().splitlines() == ["updating"]


def test_a_phase_that_fails_is_over():
    stream = io.StringIO()
    stream.isatty = lambda: True
    progress = Progress(1, {"reward": "r"}, 1, stream)
    with pytest.raises(RuntimeError), progress.phase("updating"):
        raise RuntimeError
    progress.update(1, {"r": 0.5})
    progress.close()
    assert "[updating]" not in stream.getvalue().splitlines()[-1]


def test_a_terminal_shows_phases_in_place_beside_the_bar():
    stream = io.StringIO()
    stream.isatty = lambda: True
    progress = Progress(9, {"reward": "r"}, 1, stream)
    progress.resume(2)
    with progress.phase("generating", 8, 3):
        progress.advance(3)
        progress.close()
    assert "2/9" in stream.getvalue()
    assert "[generating: 3 of 8]" in stream.getvalue()


def test_a_terminal_gets_a_live_bar():
    stream = io.StringIO()
    stream.isatty = lambda: True
    progress = Progress(3, {"reward": "r"}, 1, stream)
    progress.update(1, {"r": 0.25})
    progress.close()
    assert "1/3" in stream.getvalue()
    assert "reward 0.25" in stream.getvalue()


def test_the_report_compares_both_ends_of_the_whole_run(tmp_path, capsys):
    for session in (range(1, 21), range(21, 41)):
        with RunLog(tmp_path, ["jsonl"], 40) as log:
            for iteration in session:
                log.log(iteration, {"critic/score/mean": iteration / 40})
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["outcome"], report["iterations"], report["last_iteration"]) == ("finished", 40, 40)
    assert report["reward"]["first"] == pytest.approx(5.5 / 40)
    assert report["reward"]["last"] == pytest.approx(35.5 / 40)
    assert "reward: 0.1375 -> 0.8875 (means of the first and last 10)" in capsys.readouterr().out


@pytest.mark.parametrize(("length", "first", "last", "over"), [(1, 1, 1, 1), (5, 1.5, 4.5, 2), (6, 2, 5, 3)])
def test_the_two_ends_of_a_short_run_have_no_iteration_in_common(tmp_path, length, first, last, over):
    with RunLog(tmp_path, ["jsonl"], length) as log:
        for iteration in range(1, length + 1):
            log.log(iteration, {"critic/score/mean": iteration})
    report = json.loads((tmp_path / "report.json").read_text())["reward"]
    assert (report["first"], report["last"], report["over"]) == (first, last, over)


def test_a_single_value_is_not_shown_as_a_change(tmp_path, capsys):
    with RunLog(tmp_path, ["jsonl"], 2, headline={"reward": "r", "eval": "e"}) as log:
        log.log(1, {"r": 0.25})
        log.log(2, {"r": 0.5, "e": 0.75})
    printed = capsys.readouterr().out
    assert "  reward: 0.25 -> 0.5 (first and last)\n  eval: 0.75\n" in printed


def test_iterations_are_counted_without_a_metrics_file_too(tmp_path, capsys):
    with RunLog(tmp_path, ["tensorboard"], 3) as log:
        log.truncate_after(1)
        log.log(2, {})
        log.log(3, {})
    assert "finished: 3 iterations in all" in capsys.readouterr().out


def test_the_report_names_the_largest_peak_of_memory_even_after_the_last_iteration(tmp_path, capsys):
    with RunLog(tmp_path, ["jsonl"], 2) as log:
        log.log(1, {"memory/actor_update_peak_gib": 2.5, "memory/actor_save_peak_gib": 1.0})
        log.note_memory({"memory/actor_save_peak_gib": 3.25})
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["peak_memory_gib"], report["peak_memory_in"]) == (3.25, "actor_save")
    assert "peak memory of a rank: 3.2 GiB, in actor_save" in capsys.readouterr().out


def test_an_exception_is_reported_as_a_failed_run(tmp_path):
    with pytest.raises(RuntimeError), RunLog(tmp_path, ["jsonl"], 2) as log:
        log.log(1, {})
        raise RuntimeError("worker died")
    assert json.loads((tmp_path / "report.json").read_text())["outcome"] == "failed"
