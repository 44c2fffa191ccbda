"""Of several weights in one directory those are read that transformers loads."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from mindllm.convert import convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.errors import UserError
from mindllm.formats.arrays import to_torch
from mindllm.formats.safetensors_io import SafetensorsReader
from tests.unit.convert.tiny_models import assert_same_tensors, edit_config, edit_tensors, read_all

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
ADDED = 0.5  # to every weight of the shards, so that they are another model than the single file


@pytest.fixture
def folder(hf_qwen2: Path, tmp_path: Path) -> Path:
    """A model in a single file and, beside it, another one of the same form in two shards with an index."""
    folder = shutil.copytree(hf_qwen2, tmp_path / "hf")
    shards: dict[str, dict[str, torch.Tensor]] = {FIRST: {}, SECOND: {}}
    for number, (name, tensor) in enumerate(read_all(folder).items()):
        shards[FIRST if number % 2 else SECOND][name] = tensor + ADDED
    for name, tensors in shards.items():
        save_file(tensors, folder / name, {"format": "pt"})
    write_index(folder, {name: shard for shard, tensors in shards.items() for name in tensors})
    return folder


def read_index(folder: Path) -> dict[str, str]:
    return dict(json.loads((folder / INDEX).read_text())["weight_map"])


def write_index(folder: Path, weight_map: Mapping[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def shards_only(folder: Path) -> None:
    (folder / SINGLE).unlink()


def single_beside_shards(folder: Path) -> None:
    """Leave all as it is."""


def single_beside_an_index_without_shards(folder: Path) -> None:
    for name in (FIRST, SECOND):
        (folder / name).unlink()


def index_that_exchanges_the_shards(folder: Path) -> None:
    shards_only(folder)
    write_index(folder, {name: SECOND if shard == FIRST else FIRST for name, shard in read_index(folder).items()})


def index_that_lists_few_tensors(folder: Path) -> None:
    shards_only(folder)
    write_index(folder, {"model.norm.weight": FIRST, "lm_head.weight": SECOND, "gone.weight": SECOND})


def tensor_in_two_shards(folder: Path) -> None:
    shards_only(folder)
    in_second = sorted(name for name, shard in read_index(folder).items() if shard == SECOND)
    more = {name: torch.zeros_like(tensor) for name, tensor in read_all(folder).items() if name == in_second[0]}
    first = {name: tensor for name, tensor in read_all(folder).items() if name not in in_second}
    save_file({**first, **more}, folder / FIRST, {"format": "pt"})


def file_that_the_config_names(folder: Path) -> None:
    (folder / SINGLE).rename(folder / "chosen.safetensors")
    save_file({"lm_head.weight": torch.zeros(1)}, folder / SINGLE)
    edit_config(folder, transformers_weights="chosen.safetensors")


def index_that_the_config_names(folder: Path) -> None:
    (folder / INDEX).rename(folder / "chosen.safetensors.index.json")
    edit_config(folder, transformers_weights="chosen.safetensors.index.json")


def shards_in_a_folder_of_their_own(folder: Path) -> None:
    shards_only(folder)
    (folder / "weights").mkdir()
    for name in (FIRST, SECOND):
        (folder / name).rename(folder / "weights" / name)
    write_index(folder, {name: f"weights/{shard}" for name, shard in read_index(folder).items()})


def variants_and_pickles_beside_the_shards(folder: Path) -> None:
    (folder / SINGLE).rename(folder / "model.fp16.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"not read")


@pytest.mark.parametrize(
    "arrange",
    [
        shards_only,
        single_beside_shards,
        single_beside_an_index_without_shards,
        index_that_exchanges_the_shards,
        index_that_lists_few_tensors,
        tensor_in_two_shards,
        file_that_the_config_names,
        index_that_the_config_names,
        shards_in_a_folder_of_their_own,
        variants_and_pickles_beside_the_shards,
    ],
)
def test_the_weights_are_those_that_transformers_loads(folder: Path, arrange: Callable[[Path], None]) -> None:
    arrange(folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    named = json.loads((folder / "config.json").read_text()).get("transformers_weights")
    with SafetensorsReader(folder, explicit=named) as reader:
        assert_same_tensors({name: to_torch(reader.read(name)) for name in reader.infos}, theirs)


def test_a_conversion_says_what_it_does_not_read(folder: Path, tmp_path: Path) -> None:
    file_that_the_config_names(folder)
    lines: list[str] = []
    convert_hf_to_mcore(folder, tmp_path / "mcore", verify=True, report=lines.append)
    assert f"note: {FIRST}, {SECOND}, {SINGLE} are not read: transformers loads chosen.safetensors" in lines
    back = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back", verify=True)
    theirs = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert_same_tensors(AutoModelForCausalLM.from_pretrained(back).state_dict(), theirs)


@pytest.mark.parametrize(
    ("arrange", "said"),
    [
        (lambda folder: (folder / FIRST).unlink(), f"shard {FIRST} is not in"),
        (lambda folder: edit_config(folder, transformers_weights="gone.safetensors"), "has no gone.safetensors, which"),
        (
            lambda folder: (folder / INDEX).unlink(),
            f"neither {SINGLE} nor {INDEX}; by itself transformers does not load {FIRST}",
        ),
    ],
)
def test_weights_that_transformers_would_not_find_are_refused(
    folder: Path, tmp_path: Path, arrange: Callable[[Path], None], said: str
) -> None:
    shards_only(folder)
    arrange(folder)
    with pytest.raises(UserError, match=said):
        convert_hf_to_mcore(folder, tmp_path / "mcore")


def test_an_adapter_inside_the_model_is_not_left_out_silently(folder: Path, tmp_path: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="transformers loads the model with this adapter; add --lora-load, or remove"):
        convert_hf_to_mcore(folder, tmp_path / "mcore")
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match="is an adapter; load the model that it was trained for, and add --lora-load"):
        convert_hf_to_mcore(folder, tmp_path / "mcore")


def test_a_tensor_that_the_files_lack_is_refused_whatever_the_index_lists(folder: Path, tmp_path: Path) -> None:
    edit_tensors(folder, {"lm_head.weight": None})
    (folder / SINGLE).unlink()
    weight_map = read_index(folder)
    save_file({"model.norm.weight": torch.ones(64)}, folder / weight_map["lm_head.weight"])
    with pytest.raises(UserError, match="lacks tensors that its config.json implies: lm_head.weight"):
        convert_hf_to_mcore(folder, tmp_path / "mcore")
