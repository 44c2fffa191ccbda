"""The commands of docs/conversion.md run as they are written."""

import re
import shlex
from pathlib import Path

import pytest

from mindllm.convert.cli import main
from tests.unit.convert.test_conversion_lora import make_adapter
from tests.unit.convert.tiny_models import assert_same_tensors, read_all

PAGE = Path(__file__).parents[3] / "docs" / "conversion.md"


def test_every_command_of_the_page_runs(hf_qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    commands = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    assert len(commands) == 7
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "Qwen2.5-7B").symlink_to(hf_qwen2)
    (tmp_path / "adapters").mkdir()
    make_adapter(tmp_path / "adapters" / "math")
    monkeypatch.chdir(tmp_path)
    for command in commands:
        python, door, *arguments = shlex.split(command)
        assert (python, door) == ("python", "convert_ckpt.py")
        assert main(arguments) == 0, command
    assert_same_tensors(read_all(hf_qwen2), read_all(tmp_path / "models" / "Qwen2.5-7B-trained"))
