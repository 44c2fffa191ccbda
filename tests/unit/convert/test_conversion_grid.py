"""Hugging Face -> mcore -> Hugging Face keeps every bit: every family, dtype, format and layout, tied and untied.

The vocabulary of 101 tokens is divisible by no tensor-parallel size, and TP4 is more than the two query groups that
most of the families have here.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from mindllm.checkpoint import latest_iteration_dir, read_checkpoint_info
from mindllm.convert import convert_hf_to_mcore, convert_mcore_to_hf
from tests.unit.convert.hand_written import CONFIGS, make_hand_written
from tests.unit.convert.tiny_models import (
    FAMILY_VALUES,
    assert_same_tensors,
    edit_config,
    edit_tensors,
    make_hf_model,
    read_all,
)

OUTPUTS = {"internlm2": "output.weight", "baichuan": "lm_head.weight", "baichuan-13b": "lm_head.weight"}
LAYOUTS: dict[str, dict[str, Any]] = {"torch_dist": {}}
for tensor in (1, 2, 4):
    files = {"ckpt_format": "torch", "tensor_parallel_size": tensor}
    for pipeline in (1, 2):
        LAYOUTS[f"tp{tensor}pp{pipeline}"] = {**files, "pipeline_parallel_size": pipeline}
    virtual = {"pipeline_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 1}
    LAYOUTS[f"tp{tensor}pp2vpp2"] = {**files, **virtual}
    LAYOUTS[f"tp{tensor}pp3-1-2-1"] = {**files, "pipeline_parallel_size": 3, "num_layer_list": (1, 2, 1)}


def make(directory: Path, name: str, dtype: torch.dtype, tied: bool) -> Path:
    """Save a tiny random model; a tied one has no output layer in its files."""
    if name not in CONFIGS:
        return make_hf_model(directory, name, tied, dtype)
    make_hand_written(directory, name, dtype)
    if tied:
        edit_config(directory, tie_word_embeddings=True)
        edit_tensors(directory, {OUTPUTS[name]: None})
    return directory


# The two other pairs go through the same code.
KINDS = [
    pytest.param(torch.bfloat16, False, id="bf16-untied"),
    pytest.param(torch.float32, True, id="fp32-tied"),
    pytest.param(torch.bfloat16, True, id="bf16-tied", marks=pytest.mark.slow),
    pytest.param(torch.float32, False, id="fp32-untied", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("dtype", "tied"), KINDS)
@pytest.mark.parametrize("name", [*FAMILY_VALUES, *CONFIGS])
def test_the_round_trip_is_bit_exact(tmp_path: Path, name: str, dtype: torch.dtype, tied: bool) -> None:
    hf = make(tmp_path / "hf", name, dtype, tied)
    original, config = read_all(hf), (hf / "config.json").read_bytes()
    for layout in LAYOUTS.values():
        convert_hf_to_mcore(hf, tmp_path / "mcore", make_vocab_size_divisible_by=8, **layout)
        info = read_checkpoint_info(latest_iteration_dir(tmp_path / "mcore"))
        assert info.padded_vocab_size == {1: 104, 2: 112, 4: 128}[layout.get("tensor_parallel_size", 1)]
        back = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back")
        assert_same_tensors(original, read_all(back))
        assert (back / "config.json").read_bytes() == config
        shutil.rmtree(tmp_path / "mcore")
        shutil.rmtree(back)
