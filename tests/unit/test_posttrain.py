"""How posttrain_gpt.py ends when the operating system refuses something."""

import errno
import os
from pathlib import Path

import pytest

from mindllm import posttrain

FULL = (errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [
        (OSError(*FULL, "a"), "a: No space left on device; free some space and start the same command again"),
        (OSError(*FULL, "from", None, "to"), "to: No space left on device; free some space and start the same command"),
        (PermissionError(errno.EACCES, "Permission denied", b"b"), "b: Permission denied"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", Path("c")), "c: No such file or directory"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), f"BrokenPipeError: Broken pipe ({__file__}, line "),
        (OSError("no errno"), f"OSError: no errno ({__file__}, line "),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, OSError) else "",
)
def test_what_the_operating_system_refuses_is_one_sentence(monkeypatch, capsys, refusal, sentence):
    def refuse(_):
        raise refusal

    monkeypatch.setattr(posttrain, "_run", refuse)
    assert posttrain.main(["--config-name", "x"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {sentence}") and err.count("\n") == 1


def test_output_that_nobody_reads_is_no_second_failure(monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(posttrain.sys, "stdout", closed)
        monkeypatch.setattr(posttrain, "_run", lambda _: print("x" * 10, flush=True))
        assert posttrain.main(["--config-name", "x"]) == 2
