"""--preview: the rows as they turn out, and nothing written."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mindllm.preprocess.cli import main


def test_rows_are_shown_with_their_trained_text_and_nothing_is_written(
    write_jsonl: Callable[..., Path], tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_jsonl([{"instruction": "2 + 2", "output": "4"}, {"instruction": "a", "output": None}, {"output": "x"}])
    command = ["--input", str(data), "--output-prefix", str(tmp_path / "out" / "data"), "--preview", "2"]
    command += ["--handler-name", "AlpacaStyleInstructionHandler", "--tokenizer-name-or-path", str(tokenizer_dir)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "text       <|im_start|>user\\n2 + 2<|im_end|>\\n<|im_start|>assistant\\n»4<|im_end|>«\\n" in shown
    assert "rows.jsonl:2" in shown and "dropped: null_response" in shown and "rows.jsonl:3" not in shown
    assert not (tmp_path / "out").exists()
