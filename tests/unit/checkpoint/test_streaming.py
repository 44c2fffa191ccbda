"""The writer of training states: what it writes is what was given, and one copy is alive at a time."""

import weakref
from pathlib import Path
from typing import Any

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import pytest
import torch
import torch.distributed.checkpoint as dcp

from mindllm.checkpoint import streaming


def test_the_copies_of_views_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = torch.randn(8, 1000)  # as megatron's parameters are views of one buffer
    written, most_alive, write_item = [], 0, streaming._write_item

    def counted(transforms: Any, file: Any, data: Any, *rest: Any) -> Any:
        nonlocal most_alive
        if isinstance(data, torch.Tensor):
            written.append(weakref.ref(data))
        most_alive = max(most_alive, sum(reference() is not None for reference in written))
        return write_item(transforms, file, data, *rest)

    monkeypatch.setattr(streaming, "_write_item", counted)
    views = {f"weight{row}": buffer[row] for row in range(8)}
    dcp.save(views, storage_writer=streaming._StreamingWriter(tmp_path / "saved"), no_dist=True)
    assert len(written) == 8
    assert most_alive <= 2
    assert (tmp_path / "saved/__0_0.distcp").stat().st_size < 3 * buffer.nbytes  # not the whole buffer eight times

    loaded = {name: torch.zeros(1000) for name in views}
    dcp.load(loaded, checkpoint_id=tmp_path / "saved", no_dist=True)
    assert all(torch.equal(loaded[name], view) for name, view in views.items())
