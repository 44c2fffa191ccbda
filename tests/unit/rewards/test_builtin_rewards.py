import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mindllm.rewards import BUILTINS

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "rewards.json").read_text())
BUILTINS["accuracy"].prepare()
accuracy = BUILTINS["accuracy"].function
format_reward = BUILTINS["format"].function
strict_format = BUILTINS["strict_format"].function
step = BUILTINS["step"].function


@pytest.mark.parametrize("case", VECTORS["accuracy"], ids=lambda c: c["note"])
def test_accuracy_equals_the_recorded_values(case):
    assert accuracy([case["completion"]], [case["solution"]]) == [case["expected"]]


@pytest.mark.parametrize("case", VECTORS["format"], ids=lambda c: c["completion"] or "empty")
def test_format_equals_the_recorded_values(case):
    if isinstance(case["expected"], str):
        completion = {"None": None, "5": 5}[case["completion"]]  # recorded by their text
        with pytest.raises(TypeError):
            format_reward([completion])
    else:
        assert format_reward([case["completion"]]) == [case["expected"]]


@pytest.mark.parametrize(
    ("answer", "solution", "expected"),
    [
        ("1 2 3 4", "1 2 3 4", 1.0),
        ("1  2 3\n4", "1 2 3 4", 1.0),
        ("1, 2, 3, 4", "1 2 3 4", 1.0),
        ("1,2,3,4", "1, 2, 3, 4", 1.0),
        ("\\boxed{1,2}", "1, 2", 1.0),
        ("9 9 9 4", "1 2 3 4", 0.0),
        ("1,2,3,5", "1,2,3,4", 0.0),
        ("9 9 9 4", "4", 0.0),
        ("4", "1 2 3 4", 0.0),
        ("1,234", "1234", 1.0),
        ("1234.0", "1234", 1.0),
        ("0123", "123", 1.0),
        ("-5", "5", 0.0),
        ("12.5\\%", "0.125", 1.0),
        ("C", "B", 0.0),
        ("no", "yes", 0.0),
        ("Paris", "Paris", 1.0),
        ("", "4", 0.0),
    ],
)
def test_an_answer_between_tags_is_compared_as_a_whole(answer, solution, expected):
    assert accuracy([f"<think>is it 4?</think><answer>{answer}</answer>"], [solution]) == [expected]


def test_the_last_closed_answer_block_counts():
    assert accuracy(["I write <answer>3</answer>, no, <answer>4</answer>"], ["4"]) == [1.0]


def test_a_truncated_answer_block_is_no_answer_even_if_the_number_is_in_the_text():
    assert accuracy(["so the result is 42 <answer>The answer is 42"], ["42"]) == [0.0]


def test_solutions_that_are_not_text_are_read_as_text_and_none_is_no_opinion():
    assert accuracy(["4", "4", "0.5", "4"], [4, 4.0, 0.5, None]) == [1.0, 1.0, 1.0, None]


def test_other_columns_are_ignored():
    assert accuracy(["4"], solution=["4"], prompts=["2+2"], source=["x"]) == [1.0]


def test_format_takes_a_pattern_of_the_users():
    assert format_reward([" <answer>1\n2</answer> ", "x"], pattern="<answer>.*</answer>") == [1.0, 0.0]


def test_the_room_imports_neither_torch_nor_ray_nor_sympy():
    code = (
        "import sys, mindllm.rewards.worker, mindllm.rewards; print({'torch','ray','sympy','numpy'} & set(sys.modules))"
    )
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True).strip() == "set()"


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>\nwhy\n</think>\n<answer>\n4\n</answer>", 1.0),
        ("<think>\nwhy\n</think>\n<answer>\n4\n</answer>\n", 1.0),
        ("<think>why</think>\n<answer>4</answer>", 0.0),
        ("<think>\nwhy\n</think><answer>\n4\n</answer>", 0.0),
        ("<think>\nwhy\n</think>\n<answer>\n4\n</answer>\n<answer>\n5\n</answer>", 0.0),
        ("<answer>\n4\n</answer>", 0.0),
    ],
)
def test_the_strict_form_has_every_tag_on_its_own_line(completion, expected):
    assert strict_format([completion]) == [expected]


@pytest.mark.parametrize(
    ("completion", "steps"),
    [
        ("4", 0),
        ("Step 1: add. It is 2.5 apples", 1),
        ("First, add.\n- carry", 2),
        ("1. add\n2. carry\n3. write", 3),
        ("First, a. Second, b. Next, c. Finally, d.", 4),
    ],
)
def test_marked_steps_count_a_third_each_up_to_one(completion, steps):
    assert step([completion]) == [min(1.0, steps / 3)]
