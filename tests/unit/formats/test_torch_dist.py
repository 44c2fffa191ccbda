"""torch_dist directories: chunked reading, PyTorch's own reader as witness, and refusal of what could run code."""

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from mindllm.checkpoint import latest_iteration_dir
from mindllm.errors import UserError
from mindllm.formats.dist_metadata import read_metadata
from mindllm.formats.torch_dist import TorchDistReader, TorchDistWriter

STACKED = np.arange(24, dtype=np.float32).reshape(3, 4, 2)


def written(directory: Path) -> Path:
    with TorchDistWriter(directory) as writer:
        for layer in (2, 0, 1):
            writer.write_layer("stacked", STACKED[layer], layer, 3)
        writer.write("whole", STACKED[0])
        writer.finish(1)
    return directory


def test_pytorch_reads_what_the_writer_wrote(tmp_path: Path) -> None:
    state = {"stacked": torch.zeros(3, 4, 2), "whole": torch.zeros(4, 2)}
    dcp.load(state, checkpoint_id=written(tmp_path), no_dist=True)
    assert np.array_equal(state["stacked"], STACKED) and np.array_equal(state["whole"], STACKED[0])


def test_the_reader_reads_what_pytorch_wrote(tmp_path: Path) -> None:
    dcp.save(
        {"stacked": torch.from_numpy(STACKED), "optimizer.state": torch.ones(3), "step": 7},
        checkpoint_id=tmp_path,
        no_dist=True,
    )
    with TorchDistReader(tmp_path) as reader:
        assert reader.keys() == {"stacked", "optimizer.state"}
        assert np.array_equal(reader.read("stacked"), STACKED)
        assert np.array_equal(reader.read_layer("stacked", 1), STACKED[1])


def test_layers_are_stored_one_chunk_each_and_only_as_large_as_themselves(tmp_path: Path) -> None:
    metadata = read_metadata(written(tmp_path))
    chunks = metadata.state_dict_metadata["stacked"].chunks
    assert sorted((tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in chunks) == [
        ((layer, 0, 0), (1, 4, 2)) for layer in range(3)
    ]
    stored = [place.length for place in metadata.storage_data.values()]
    assert max(stored) < STACKED.nbytes + 1500  # a slice of a larger storage would carry it along


def test_the_writer_refuses_a_layer_twice_and_a_layer_left_out(tmp_path: Path) -> None:
    with TorchDistWriter(tmp_path) as writer:
        writer.write_layer("stacked", STACKED[0], 0, 2)
        with pytest.raises(ValueError, match="twice"):
            writer.write_layer("stacked", STACKED[0], 0, 2)
        with pytest.raises(ValueError, match="never written"):
            writer.finish(1)
    assert not (tmp_path / ".metadata").exists()


def torch_metadata(directory: Path) -> Any:
    """Return what PyTorch's own reader makes of ``.metadata``."""
    return dcp.FileSystemReader(directory).read_metadata()


class Malicious:
    """Unpickling this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_metadata_pickle_that_would_run_code_is_refused_before_it_does(tmp_path: Path) -> None:
    written(tmp_path)
    metadata = torch_metadata(tmp_path)
    metadata.planner_data = Malicious(tmp_path / "executed")
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(UserError, match=r"\.metadata is refused: it refers to posix\.mkdir"):
        TorchDistReader(tmp_path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps({"a": 1})])
def test_a_damaged_metadata_file_is_refused(tmp_path: Path, content: bytes) -> None:
    written(tmp_path)
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(UserError, match=r"\.metadata is refused"):
        TorchDistReader(tmp_path)


def test_a_chunk_that_would_run_code_is_refused_before_it_does(tmp_path: Path) -> None:
    written(tmp_path)
    torch.save(Malicious(tmp_path / "executed"), tmp_path / "evil.pt")
    metadata = torch_metadata(tmp_path)
    for place in metadata.storage_data.values():
        place.relative_path, place.offset, place.length = "evil.pt", 0, (tmp_path / "evil.pt").stat().st_size
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    with TorchDistReader(tmp_path) as reader, pytest.raises(UserError, match=r"evil\.pt is damaged at tensor whole"):
        reader.read("whole")
    assert not (tmp_path / "executed").exists()


def test_a_truncated_or_missing_data_file_is_refused(mcore_qwen2: Path, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(latest_iteration_dir(mcore_qwen2), directory)
    data = directory / "__0_0.distcp"
    os.truncate(data, data.stat().st_size - 1)
    with pytest.raises(UserError, match=r"__0_0\.distcp is truncated"):
        TorchDistReader(directory)
    data.unlink()
    with pytest.raises(UserError, match=r"__0_0\.distcp is missing"):
        TorchDistReader(directory)
    (directory / ".metadata").unlink()
    with pytest.raises(UserError, match="not a complete torch_dist checkpoint"):
        TorchDistReader(directory)


def test_a_tensor_with_a_part_missing_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    metadata = torch_metadata(tmp_path)
    del metadata.state_dict_metadata["stacked"].chunks[0]
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    with TorchDistReader(tmp_path) as reader, pytest.raises(UserError, match="stacked is incomplete"):
        reader.read("stacked")
