"""docs/data.md: its commands run, and its statements about them hold."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindllm.preprocess.cli import main
from mindllm.preprocess.handlers import handler_names
from mindllm.templates.declared import read_template
from mindllm.templates.lookup import template_names

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "data.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_commands_and_the_python_code_run(
    write_jsonl: Callable[..., Path], tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny").symlink_to(tokenizer_dir)
    (tmp_path / "data").mkdir()
    write_jsonl([{"question": "2 + 2", "solution": "4"}], "data/train.jsonl")
    write_jsonl([{"instruction": "2 + 2", "output": "4"}], "data/dialogues.jsonl")
    pq.write_table(pa.table({"instruction": ["3 + 3"], "output": ["6"]}), tmp_path / "data" / "more.parquet")
    commands = [shlex.split(block.replace("\\\n", " ")) for block in blocks("bash")]
    assert len(commands) == 2 and all(command[:2] == ["python", "preprocess_data.py"] for command in commands)
    assert [main(command[2:]) for command in commands] == [0, 0]
    (code,) = blocks("python")
    names: dict[str, object] = {}
    exec(code, names)
    assert names["prompts"][0].columns == {"solution": "4", "prompt": "2 + 2"}  # type: ignore[index]
    assert len(names["examples"]) == 2  # type: ignore[arg-type]


def test_the_template_example_is_valid(tmp_path: Path) -> None:
    (template,) = blocks("yaml")
    (tmp_path / "mine.yaml").write_text(template)
    assert read_template(tmp_path / "mine.yaml").header == "<|im_start|>assistant\n"


def example(handler: str) -> str:
    """The lines shown for a handler, without their indentation."""
    shown = PAGE.split(f"\n**{handler}**\n\n")[1].split("\n\n")[0]
    return "\n".join(line.removeprefix("    ").rstrip() for line in shown.splitlines())


@pytest.mark.parametrize("handler", handler_names())
def test_the_example_of_a_handler_is_what_preview_prints(
    handler: str,
    write_jsonl: Callable[..., Path],
    tokenizer_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = example(handler)
    write_jsonl([json.loads(shown.splitlines()[0].removeprefix("rows.jsonl:1"))])
    command = ["--input", "rows.jsonl", "--output-prefix", "out", "--preview", "1", "--handler-name", handler]
    command += ["--tokenizer-name-or-path", str(tokenizer_dir)]
    if handler == "AlpacaStyleProcessRewardHandler":
        command += ["--placeholder-token", "<|start_header_id|>", "--reward-tokens", "0", "1"]
    elif handler != "GeneralPretrainHandler":
        command += ["--prompt-type", "qwen3" if handler == "OpenAIInstructionHandler" else "chatml"]
    assert main(command) == 0
    assert "\n".join(line.rstrip() for line in capsys.readouterr().out.strip().splitlines()) == shown


def test_every_handler_and_template_is_documented() -> None:
    assert all(f"`{name}`" in PAGE and f"**{name}**" in PAGE for name in handler_names())
    assert all(f"`{name}`" in PAGE for name in template_names())
