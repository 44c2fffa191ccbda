from dataclasses import dataclass, field
from typing import Any

import pytest

from mindllm.errors import UserError
from mindllm.rewards import check_rewards, describe_lists, describe_tags
from mindllm.rewards.checks import labels


@dataclass
class Spec:
    name: str
    weight: float = 1.0
    path: str | None = None
    args: dict[str, Any] = field(default_factory=dict)


def _plugin(tmp_path, text: str) -> str:
    path = tmp_path / "plugin.py"
    path.write_text(text)
    return str(path)


GOOD = "raise RuntimeError('a check must not run this file')\ndef mine(completions, level, scale=1.0, **columns): ..."


def test_rewards_without_fault_pass_and_user_code_does_not_run(tmp_path):
    path = _plugin(tmp_path, GOOD)
    specs = [Spec("accuracy"), Spec("format"), Spec("mine", path=path), Spec("mine", path=path, args={"scale": 2.0})]
    check_rewards(specs, ["solution", "level"])
    assert labels(specs) == ["accuracy", "format", "mine_1", "mine_2"]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            Spec("acuracy"),
            "unknown reward 'acuracy', the built-in ones are accuracy, format, step, strict_format; did you mean",
        ),
        (Spec("helpfulness"), "a function of your own needs a 'path'"),
        (Spec("accuracy"), "reward 'accuracy' needs the column 'solution', columns in the data: answer, source"),
        (Spec("accuracy", args={"patern": "x", "source": 1}), "the argument 'source' hides the data of that name"),
        (Spec("mine", path="/nowhere/mine.py"), "reward 'mine': no file '/nowhere/mine.py'"),
        (Spec("accuracy", args={"prompts": []}), "the argument 'prompts' hides the data"),
        (Spec("accuracy", args={"solution_list": "al"}), "'solution_list' is 'al', allowed are any, all"),
    ],
)
def test_a_faulty_reward_is_named_in_one_sentence(spec, sentence):
    with pytest.raises(UserError) as caught:
        check_rewards([spec], ["answer", "source"])
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "args", "sentence"),
    [
        ("def mime(completions): ...", {}, "no such function in"),
        ("def mime(completions): ...", {}, "did you mean 'mime'?"),
        ("x = 1", {}, "functions there: none"),
        ("async def mine(completions): ...", {}, "is async"),
        ("def mine(completions:", {}, "is not a Python file"),
        ("def mine(texts): ...", {}, "takes no 'completions'"),
        (
            "def mine(completions, difficulty, **kw): ...",
            {},
            "needs the column 'difficulty', columns in the data: level",
        ),
        ("def mine(completions, *, difficulty): ...", {}, "needs the column 'difficulty'"),
        ("def mine(completions, levels): ...", {}, "did you mean 'level'?"),
        ("def mine(completions, scale=1): ...", {"scal": 2}, "takes no argument 'scal'; did you mean 'scale'?"),
    ],
)
def test_a_faulty_user_function_is_named_in_one_sentence(tmp_path, text, args, sentence):
    with pytest.raises(UserError) as caught:
        check_rewards([Spec("mine", path=_plugin(tmp_path, text), args=args)], ["level"])
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "from os.path import join as mine",
        "mine = object()",
        "class mine: ...",
        "try:\n    import x\nexcept ImportError:\n    def mine(completions): ...",
    ],
)
def test_a_name_that_is_bound_without_def_is_left_to_the_worker(tmp_path, text):
    check_rewards([Spec("mine", path=_plugin(tmp_path, text))], [])


def test_arguments_can_fill_a_required_parameter(tmp_path):
    path = _plugin(tmp_path, "def mine(prompts, completions, difficulty): ...")
    check_rewards([Spec("mine", path=path, args={"difficulty": 3})], [])


def test_no_rewards_and_a_reward_listed_twice_are_refused():
    with pytest.raises(UserError, match="reward.functions: none given; the built-in ones are accuracy, format"):
        check_rewards([], [])
    with pytest.raises(UserError, match="reward 'format' is listed twice"):
        check_rewards([Spec("format"), Spec("format", weight=2.0)], [])


def test_the_answer_may_be_in_the_column_that_other_toolkits_keep_it_in():
    check_rewards([Spec("accuracy")], ["labels"])


@pytest.mark.parametrize(
    ("spec", "columns", "said"),
    [
        (Spec("accuracy"), ["solution"], ["'solution' holds lists; any one item of a list is right"]),
        (Spec("accuracy"), ["labels"], ["'labels' holds lists; any one item of a list is right"]),
        (Spec("accuracy", args={"solution_list": "all"}), ["solution"], ["all items of a list must be given"]),
        (Spec("accuracy"), ["tags"], []),
        (Spec("format"), ["solution"], []),
    ],
)
def test_what_a_list_of_solutions_means_is_said_at_the_start(spec, columns, said):
    lines = describe_lists([spec], columns)
    assert len(lines) == len(said) and all(part in line for part, line in zip(said, lines, strict=True))


@pytest.mark.parametrize(
    ("spec", "texts", "is_said"),
    [
        (Spec("format"), ["2 + 2", "template"], True),
        (Spec("strict_format"), ["think: 2 + 2"], True),
        (Spec("format"), ["2 + 2", "Answer within <answer> </answer>."], False),
        (Spec("format", args={"pattern": ".*4"}), ["2 + 2"], False),
        (Spec("format", path="mine.py"), ["2 + 2"], False),
        (Spec("accuracy"), ["2 + 2"], False),
    ],
)
def test_a_reward_for_tags_that_nothing_asks_for_is_said_at_the_start(spec, texts, is_said):
    lines = describe_tags([spec], texts)
    assert len(lines) == is_said and all(f"'{spec.name}'" in line and "qwen_r1" in line for line in lines)
