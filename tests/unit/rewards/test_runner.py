import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from mindllm.errors import UserError
from mindllm.rewards import RewardError, RewardItem, RewardRunner

PLUGIN = """
import os, sys, time

def behave(completions, prompts, **columns):
    assert len(completions) == len(prompts) == 1
    text = completions[0]
    if text == "raise":
        raise KeyError("my mistake")
    if text == "exit":
        sys.exit(3)
    if text == "die":
        os._exit(7)
    if text == "hang":
        time.sleep(1000)
    if text.startswith("run: "):
        exec(text.removeprefix("run: "))
        return [1.0]
    if text == "none":
        return [None]
    if text == "wrong length":
        return [1.0, 2.0]
    if text == "no list":
        return 1.0
    if text == "text":
        return ["1.0"]
    if text == "nan":
        return [float("nan")]
    if text == "huge":
        return [10**400]
    if text == "inf":
        return [float("inf")]
    return [len(text)]

def large(completions, sign=1):
    return [sign * float(completions[0])]

def level(completions, level, scale=1):
    return [value * scale for value in level]
"""


@dataclass
class Spec:
    name: str
    path: str | None = None
    weight: float = 1.0
    args: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("plugin") / "plugin.py"
    path.write_text(PLUGIN)
    return str(path)


def _items(*completions: str, **columns: Any) -> list[RewardItem]:
    return [RewardItem(f"uid{i}", "a prompt", text, columns) for i, text in enumerate(completions)]


FAILURES = {
    "raise": "KeyError: 'my mistake'",
    "exit": "SystemExit: 3",
    "die": "the reward process ended with exit code 7",
    "hang": "no result within 2 s",
    "wrong length": "ValueError: a reward function must return one value per completion: 1 completion, 2 values",
    "no list": "TypeError: a reward function must return a list, found float",
    "text": "TypeError: a reward must be a number or None, found str",
    "nan": "ValueError: a reward must be finite, found nan; return None for no opinion",
    "huge": "ValueError: a reward must be a number that a float holds, found a larger integer",
    "inf": "ValueError: a reward must be finite, found inf; return None for no opinion",
}


@pytest.fixture(scope="module")
def zero_runner(plugin):
    with RewardRunner([Spec("behave", plugin)], "zero", timeout_s=2, num_workers=1) as runner:
        yield runner


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failing_item_counts_as_zero_and_spares_its_neighbours(zero_runner, failure):
    result = zero_runner.score(_items("a", failure, "abc", failure, "ab"))
    assert result.per_function == {"behave": [1.0, 0.0, 3.0, 0.0, 2.0]}
    assert result.total == [1.0, 0.0, 3.0, 0.0, 2.0]
    assert (result.errors, result.timeouts) == (2, 2 if failure == "hang" else 0)
    assert result.first_traceback.startswith(
        f"reward 'behave' failed on 'uid1', the completion '{failure}' of the prompt 'a prompt':\n"
    )
    assert FAILURES[failure] in result.first_traceback
    assert result.dropped == []


@pytest.mark.parametrize(
    "code",
    [
        "os.close(1)",
        "os.close(2)",
        "sys.stdout.close()",
        "sys.stderr.close()",
        "os.closerange(0, 3)",
        "sys.stdout = None",
    ],
)
def test_a_reward_may_close_its_output(plugin, capfd, code):
    with RewardRunner([Spec("behave", plugin)], num_workers=1) as runner:
        assert runner.score(_items("a", f"run: {code}", "abc")).total == [1.0, 1.0, 3.0]
    assert capfd.readouterr() == ("", "")


def test_a_reward_that_closes_the_files_of_its_process_gets_one_sentence(plugin, capfd):
    with RewardRunner([Spec("behave", plugin)], "zero", num_workers=1) as runner:
        result = runner.score(_items("a", "run: os.closerange(0, 500)", "abc"))
    assert (result.total, result.errors) == ([1.0, 0.0, 3.0], 1)
    _, sentence = result.first_traceback.split(":\n")
    assert sentence == ("the reward process lost its connection: a reward must not close files that it has not opened")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "write", ["print('é' * 50_000)", "os.write(1, b'x' * 60_000)", "sys.stderr.write('x' * 60_000)"]
)
def test_what_rewards_print_is_shown_up_to_a_limit(plugin, capsys, write):
    with RewardRunner([Spec("behave", plugin)], "zero", timeout_s=5, num_workers=1) as runner:
        printed = [f"run: {write}"] * 3
        result = runner.score(
            _items("run: print('first')", *printed, "run: print('last'); os._exit(3)", *printed, "abc")
        )
    shown = capsys.readouterr().out
    assert result.total == [1.0] * 4 + [0.0] + [1.0] * 3 + [3.0]
    assert result.first_traceback.endswith("last") and len(result.first_traceback) < 3000
    assert "the reward process ended with exit code 3; it printed last:" in result.first_traceback
    assert shown.startswith("first\n") and "\ufffd" not in shown
    end = "(a reward process has printed more than 256 KiB; the rest is not shown)"
    assert shown.count(end) == 1 and 256 * 1024 <= len(shown.encode()) < 257 * 1024


def test_what_is_printed_before_a_hang_is_told(plugin, capsys):
    with RewardRunner([Spec("behave", plugin)], "zero", timeout_s=0.5, num_workers=1) as runner:
        result = runner.score(_items("run: print('step 1'); time.sleep(1000)"))
    assert result.first_traceback.endswith("no result within 0.5 s; it printed last:\nstep 1")
    assert capsys.readouterr().out == "step 1\n"


def test_the_traceback_shows_the_users_code_only(zero_runner):
    traceback = zero_runner.score(_items("raise")).first_traceback
    assert 'raise KeyError("my mistake")' in traceback
    assert "worker.py" not in traceback


def test_none_is_no_opinion_and_not_zero(plugin):
    specs = [Spec("behave", plugin, weight=2.0), Spec("format", weight=0.5)]
    with RewardRunner(specs, num_workers=1) as runner:
        result = runner.score(_items("none", "abc"))
    assert result.per_function == {"behave": [None, 3.0], "format": [0.0, 0.0]}
    assert result.total == [0.0, 6.0]
    assert result.metrics() == {
        "reward/behave/mean": 3.0,
        "reward/format/mean": 0.0,
        "reward/errors": 0.0,
        "reward/timeouts": 0.0,
        "reward/dropped": 0.0,
    }


def test_sums_and_means_of_rewards_near_the_largest_float_are_exact(plugin):
    largest = sys.float_info.max
    specs = [
        Spec("large", plugin, weight=10.0),
        Spec("large", plugin, weight=10.0, args={"sign": -0.95}),
        Spec("large", plugin, weight=0.25),
    ]
    with RewardRunner(specs, num_workers=1) as runner:
        result = runner.score(_items(repr(largest), "1e308", "3.0"))
    for total, value in zip(result.total, [largest, 1e308, 3.0], strict=True):
        exact = 10 * Fraction(value) + 10 * Fraction(-0.95 * value) + Fraction(value) / 4
        assert total == pytest.approx(float(exact), rel=1e-15)
    expected = float((Fraction(largest) + Fraction(1e308) + 3) / 3)
    assert result.metrics()["reward/large_1/mean"] == expected


def test_a_sum_that_no_float_holds_is_refused_in_a_sentence_that_names_the_function(plugin):
    specs = [Spec("large", plugin, weight=4.0), Spec("format")]
    with RewardRunner(specs, "zero", num_workers=1) as runner, pytest.raises(RewardError) as caught:
        runner.score(_items("1e308"))
    assert str(caught.value) == (
        "reward 'large': 1e+308 with weight 4 makes the reward of '1e308' larger than the largest float (1.8e+308); "
        "give it a smaller weight"
    )


def test_an_item_without_any_opinion_has_no_reward(plugin):
    with RewardRunner([Spec("behave", plugin)], num_workers=1) as runner:
        result = runner.score(_items("none", "abc"))
    assert math.isnan(result.total[0])
    assert (result.total[1], result.dropped, result.errors) == (3.0, [], 0)


def test_failed_items_are_dropped_by_uid(plugin):
    with RewardRunner([Spec("format"), Spec("behave", plugin)], "drop", num_workers=2) as runner:
        result = runner.score(_items("a", "raise", "abc", "die"))
    assert result.dropped == ["uid1", "uid3"]
    assert [math.isnan(total) for total in result.total] == [False, True, False, True]
    assert result.per_function["behave"] == [1.0, None, 3.0, None]
    assert result.errors == 2


def test_by_default_a_failure_stops_with_the_traceback_and_the_runner_still_works(plugin):
    with RewardRunner([Spec("behave", plugin)], num_workers=2) as runner:
        with pytest.raises(RewardError, match="reward 'behave' failed on 'uid1'") as caught:
            runner.score(_items("a", "raise", *["hang"] * 4))
        assert "KeyError: 'my mistake'" in str(caught.value)
        assert runner.score(_items("abc")).total == [3.0]


def test_the_first_failure_of_a_function_is_logged_once(plugin, caplog):
    with RewardRunner([Spec("behave", plugin)], "zero", num_workers=1) as runner:
        runner.score(_items("raise", "raise"))
        runner.score(_items("raise"))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "my mistake" in caplog.text


def test_hanging_items_are_worked_off_in_parallel_and_the_others_keep_their_order(plugin):
    texts = ["x" * (1 + i % 7) for i in range(60)]
    texts[5] = texts[40] = "hang"
    with RewardRunner([Spec("behave", plugin)], "zero", timeout_s=0.5, num_workers=2) as runner:
        result = runner.score(_items(*texts))
    assert result.total == [0.0 if text == "hang" else float(len(text)) for text in texts]
    assert result.timeouts == 2


def test_results_do_not_depend_on_the_number_of_processes(plugin):
    items = _items(*["y" * (i % 11) for i in range(200)], level=4)
    specs = [Spec("behave", plugin, 0.1), Spec("level", plugin, 0.3), Spec("format", None, 0.7)]
    results = []
    for num_workers in (1, 3):
        with RewardRunner(specs, num_workers=num_workers) as runner:
            results.append(runner.score(items))
    assert results[0] == results[1]


def test_functions_receive_the_columns_and_arguments_they_name(plugin):
    specs = [Spec("level", plugin), Spec("level", plugin, args={"scale": 10})]
    with RewardRunner(specs, num_workers=1) as runner:
        result = runner.score(_items("a", level=3, unused="x"))
    assert result.per_function == {"level_1": [3.0], "level_2": [30.0]}


def test_files_of_the_same_name_are_both_loaded_and_shadow_nothing(tmp_path):
    for folder, value in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "json.py").write_text(
            f"import json\njson.dumps({{}})\ndef score(completions, **_): return [{value}]"
        )
    specs = [Spec("score", str(tmp_path / folder / "json.py")) for folder in ("one", "two")]
    with RewardRunner(specs, num_workers=1) as runner:
        assert runner.score(_items("a")).per_function == {"score_1": [1.0], "score_2": [2.0]}


def test_the_working_folder_shadows_nothing(tmp_path, monkeypatch, plugin):
    (tmp_path / "json.py").write_text("raise RuntimeError('shadowed')")
    monkeypatch.chdir(tmp_path)
    with RewardRunner([Spec("behave", plugin)], num_workers=1) as runner:
        assert runner.score(_items("a")).total == [1.0]


def test_a_file_that_cannot_be_loaded_is_reported_at_the_start(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import module_that_is_not_there\ndef mine(completions): ...")
    with pytest.raises(UserError, match="could not be loaded") as caught:
        RewardRunner([Spec("mine", str(path))])
    assert "No module named 'module_that_is_not_there'" in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [({"labels": "4"}, 1.0), ({"solution": "4", "labels": "5"}, 1.0), ({"solution": "5", "labels": "4"}, 0.0)],
)
def test_accuracy_reads_labels_only_where_there_is_no_solution(columns, expected):
    with RewardRunner([Spec("accuracy")], num_workers=1) as runner:
        assert runner.score([RewardItem(0, "2 + 2", "4", columns)]).total == [expected]


def test_no_items_give_an_empty_result(zero_runner):
    result = zero_runner.score([])
    assert (result.total, result.per_function) == ([], {"behave": []})


def test_accuracy_that_takes_too_long_is_a_wrong_answer_not_an_error():
    hard = r"\boxed{9^{9^{9^{9}}}}"
    with RewardRunner([Spec("accuracy")], "fail", timeout_s=0.7, num_workers=1) as runner:
        result = runner.score(_items("<answer>4</answer>", hard, "<answer>4</answer>", solution="4"))
    assert result.total == [1.0, 0.0, 1.0]
    assert (result.errors, result.timeouts) == (0, 1)


def test_accuracy_scores_more_answers_than_fit_in_a_chunk():
    items = [RewardItem(i, "p", f"<answer>{i}</answer>", {"solution": str(i - i % 2)}) for i in range(6000)]
    with RewardRunner([Spec("accuracy")], num_workers=2) as runner:
        result = runner.score(items)
    assert result.total == [1.0, 0.0] * 3000


def test_a_runner_outlives_the_thread_that_made_it(plugin):
    made = []
    thread = threading.Thread(target=lambda: made.append(RewardRunner([Spec("behave", plugin)], num_workers=1)))
    thread.start()
    thread.join()
    time.sleep(0.1)
    with made[0] as runner:
        assert _is_running(runner._pool._workers[0]._process.pid)
        assert runner.score(_items("abc")).total == [3.0]


def test_close_ends_all_processes(plugin):
    runner = RewardRunner([Spec("behave", plugin)], num_workers=2)
    pids = [worker._process.pid for worker in runner._pool._workers]
    runner.close()
    assert not any(_is_running(pid) for pid in pids)


@pytest.mark.parametrize("hang", ["while True: pass", "3 ** 10**9"], ids=["in Python", "in C, holding the interpreter"])
def test_no_process_outlives_a_driver_that_is_killed(tmp_path, hang):
    (tmp_path / "plugin.py").write_text(
        f"import os, pathlib, sys\nsys.set_int_max_str_digits(0)\n"
        f"def mine(completions, prompts):\n"
        f"    pathlib.Path(prompts[0], str(os.getpid())).touch()\n    power = 10**9\n    {hang}\n".replace(
            "3 ** 10**9", "3 ** power"
        )
    )
    driver = textwrap.dedent(f"""
        import sys, types
        from mindllm.rewards import RewardItem, RewardRunner
        spec = types.SimpleNamespace(name="mine", path={str(tmp_path / "plugin.py")!r}, weight=1.0, args={{}})
        pids = {str(tmp_path / "pids")!r}
        RewardRunner([spec], timeout_s=1000).score([RewardItem(i, pids, "c", {{}}) for i in range(8)])
    """)
    pids = tmp_path / "pids"
    pids.mkdir()
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    process = subprocess.Popen([sys.executable, "-c", driver], env=env)
    try:
        _wait_until(lambda: len(list(pids.iterdir())) == 2)
        workers = [int(path.name) for path in pids.iterdir()]
        assert all(_is_running(pid) for pid in workers)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    _wait_until(lambda: not any(_is_running(pid) for pid in workers))


def _wait_until(condition, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def _is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
