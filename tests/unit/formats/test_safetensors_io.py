"""Our safetensors files are those of the safetensors library, and damaged ones are refused by name."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mindllm.errors import UserError
from mindllm.formats.arrays import DTYPES, from_torch, to_torch
from mindllm.formats.safetensors_io import PlannedTensor, SafetensorsReader, SafetensorsWriter

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b": torch.arange(5, dtype=torch.bfloat16),
    "c": torch.tensor(7, dtype=torch.int64),
    "d": torch.zeros(0, 4, dtype=torch.float16),
}
INDEX = "model.safetensors.index.json"


def sharded(directory: Path) -> dict[str, Any]:
    """Write TENSORS into two shards and return the index."""
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    save_file({"a": TENSORS["a"]}, directory / first)
    save_file({name: TENSORS[name] for name in "bcd"}, directory / second)
    index = {"metadata": {}, "weight_map": {"a": first, "b": second, "c": second, "d": second}}
    (directory / INDEX).write_text(json.dumps(index))
    return index


def refused(directory: Path) -> str:
    with pytest.raises(UserError) as error:
        SafetensorsReader(directory)
    return str(error.value)


def raw_file(path: Path, header: str, data: bytes) -> None:
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + data)


def test_the_reader_returns_what_the_library_wrote(tmp_path: Path) -> None:
    sharded(tmp_path)
    with SafetensorsReader(tmp_path) as reader:
        for name, tensor in TENSORS.items():
            assert to_torch(reader.read(name)).dtype == tensor.dtype
            assert torch.equal(to_torch(reader.read(name)), tensor)


@pytest.mark.parametrize("limit", [10, 10**9])
def test_the_library_reads_what_the_writer_wrote_in_any_order(tmp_path: Path, limit: int) -> None:
    arrays = {name: from_torch(tensor) for name, tensor in TENSORS.items()}
    planned = [PlannedTensor(name, array.dtype, array.shape) for name, array in arrays.items()]
    writer = SafetensorsWriter(tmp_path, planned, limit)
    for name in reversed(TENSORS):
        writer.write(name, arrays[name])
    writer.finish()
    paths = list(tmp_path.glob("*.safetensors"))
    assert len(paths) == (1 if limit > 10 else 3)
    loaded = {name: tensor for path in paths for name, tensor in load_file(path).items()}
    assert loaded.keys() == TENSORS.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())
    with SafetensorsReader(tmp_path) as reader:
        assert reader.infos.keys() == TENSORS.keys()


def test_the_writer_accepts_every_tensor_exactly_once(tmp_path: Path) -> None:
    writer = SafetensorsWriter(tmp_path, [PlannedTensor("a", DTYPES["float32"], (2, 3))], 100)
    with pytest.raises(ValueError, match="never written: a"):
        writer.finish()
    with pytest.raises(ValueError, match="a was not planned"):
        writer.write("a", from_torch(TENSORS["a"].double()))
    writer.write("a", from_torch(TENSORS["a"]))
    with pytest.raises(ValueError, match="already written"):
        writer.write("a", from_torch(TENSORS["a"]))


def test_a_truncated_shard_is_refused(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    path = tmp_path / index["weight_map"]["b"]
    path.write_bytes(path.read_bytes()[:-3])
    assert refused(tmp_path).startswith(f"{path} is truncated")
    path.write_bytes(path.read_bytes()[:5])
    assert refused(tmp_path).startswith(f"{path} is truncated")


def test_trailing_bytes_are_refused(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    with (tmp_path / index["weight_map"]["a"]).open("ab") as file:
        file.write(b"more")
    assert "bytes after the last tensor" in refused(tmp_path)


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    (tmp_path / index["weight_map"]["a"]).unlink()
    assert "model-00001-of-00002.safetensors is not in" in refused(tmp_path)


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": {}}', '{"weight_map": ["a"]}'])
def test_a_broken_index_is_refused(tmp_path: Path, text: str) -> None:
    sharded(tmp_path)
    (tmp_path / INDEX).write_text(text)
    assert INDEX in refused(tmp_path)


@pytest.mark.parametrize("shard", ["../model-00001-of-00002.safetensors", "{outside}/model-00001-of-00002.safetensors"])
def test_an_index_that_points_outside_the_directory_is_refused(tmp_path: Path, shard: str) -> None:
    (tmp_path / "x").mkdir()
    sharded(tmp_path)
    weight_map = {"a": shard.format(outside=tmp_path)}
    (tmp_path / "x" / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert "is not in" in refused(tmp_path / "x")


ENTRY = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (f'{{"a":{ENTRY},"a":{ENTRY}}}', "a appears twice"),
        (f'{{"a":{ENTRY},"b":{ENTRY}}}', "does not follow"),
        ('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', "does not follow"),
        ('{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,4]}}', "dtype F4"),
        ('{"a":{"dtype":"F32","shape":[1]}}', "malformed"),
        ("[1, 2]", "malformed"),
        ('{"a":', "malformed"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path: Path, header: str, said: str) -> None:
    raw_file(tmp_path / "model.safetensors", header, b"\0\0\0\0")
    message = refused(tmp_path)
    assert said in message and "model.safetensors" in message


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "pickled .bin weights are not read" in refused(tmp_path)
