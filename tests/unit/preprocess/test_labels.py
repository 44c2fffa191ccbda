"""Labels of twenty varied dialogues: what is trained is what the assistant said, and nothing else, packed or not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindllm.data import InstructionDataset
from mindllm.preprocess.output.packing import Packing
from mindllm.preprocess.run import PreprocessOptions, preprocess

CALL = {"name": "add", "arguments": {"a": 1, "text": "é😀"}}
CALL_TEXT = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "text": "é😀"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, *calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {})}


SYSTEM = {"role": "system", "content": "Be brief."}
RESULT = {"role": "tool", "content": "3"}
DIALOGUES: list[tuple[list[dict[str, Any]], list[str]]] = [  # turns, and the answers that are trained
    ([user("a"), assistant("the quick brown fox")], ["the quick brown fox"]),
    ([SYSTEM, user("a"), assistant("b")], ["b"]),
    ([user("a"), assistant("1"), user("b"), assistant("2")], ["1", "2"]),
    ([SYSTEM, *[turn for n in range(8) for turn in (user(f"q{n}"), assistant(f"a{n}"))]], [f"a{n}" for n in range(8)]),
    ([user("a"), assistant(""), user("b"), assistant("2")], ["", "2"]),
    ([user(""), assistant("answer to nothing")], ["answer to nothing"]),
    ([user("😀"), assistant("👩‍👩‍👧 and 🏳️‍🌈")], ["👩‍👩‍👧 and 🏳️‍🌈"]),
    ([user("שלום"), assistant("مرحبا بالعالم")], ["مرحبا بالعالم"]),
    ([user("你好"), assistant("日本語と한국어")], ["日本語と한국어"]),
    ([user("a"), assistant("x" * 10_000)], ["x" * 10_000]),
    ([user("long " * 2000), assistant("short")], ["short"]),
    ([user("a"), assistant("several\n\nlines\n")], ["several\n\nlines\n"]),
    ([user("a"), assistant("  spaces around  ")], ["  spaces around  "]),
    ([user("a"), assistant("tab\tand\r\nreturn")], ["tab\tand\r\nreturn"]),
    ([user("a"), assistant("user\nassistant <|im_start >")], ["user\nassistant <|im_start >"]),
    ([user("{content} {eos}"), assistant("{content} {bos}")], ["{content} {bos}"]),
    ([user("a"), assistant("e\u0301 decomposed")], ["\u00e9 decomposed"]),  # the tokenizer composes characters
    ([user("a"), assistant("", CALL), RESULT, assistant("3")], [CALL_TEXT, "3"]),
    ([user("a"), assistant("Let me see.", CALL, CALL), RESULT, RESULT, assistant("so")],
     [f"Let me see.\n{CALL_TEXT}\n{CALL_TEXT}", "so"]),
    ([user("a"), assistant("\u00a0\u200b\ufeff odd spaces")], ["\u00a0\u200b\ufeff odd spaces"]),
]  # fmt: skip


@pytest.mark.parametrize("history", [True, False], ids=["history", "last"])
@pytest.mark.parametrize("pack", [None, "pack", "neat"])
def test_the_trained_tokens_are_the_answers_and_their_end_tokens(
    pack: Packing | None, history: bool, tokenizer_dir: Path, tmp_path: Path, decode: Callable[[Any], str]
) -> None:
    assert len(DIALOGUES) == 20
    data = tmp_path / "dialogues.jsonl"
    data.write_text("".join(json.dumps({"messages": turns, "tools": [TOOL]}) + "\n" for turns, _ in DIALOGUES))
    preprocess(
        PreprocessOptions(
            [str(data)],
            tmp_path / "sft",
            tokenizer_dir,
            "OpenAIInstructionHandler",
            prompt_type="qwen",
            seq_length=16384,
            pack=pack,
            train_on_history=history,
        )
    )
    examples = InstructionDataset(tmp_path / "sft")
    rows = [examples[index] for index in range(len(examples))]
    ends = "".join("".join(decode(row.labels[row.labels != -100])) for row in rows).split("<|im_end|>")
    expected = [answer for _, answers in DIALOGUES for answer in (answers if history else answers[-1:])]
    assert sorted(ends) == sorted([*expected, ""])
    for row in rows:
        assert np.array_equal(row.input_ids[row.labels != -100], row.labels[row.labels != -100])
        before = row.input_ids[np.flatnonzero(np.diff((row.labels != -100).astype(int)) == 1)]
        assert {decode([token]) for token in before} == {"\n"}  # an answer begins after its header
