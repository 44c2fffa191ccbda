"""Memory stays near the largest tensor, however large the model."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from mindllm.formats.safetensors_io import PlannedTensor, SafetensorsWriter
from mindllm.models.families import family_of

ROOT = Path(__file__).parents[3]
MIB = 2**20
MEASURE = """
import resource, sys
from mindllm.convert import convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.convert.endpoints import huggingface, megatron_ranks, torch_dist

hf, mcore, back = sys.argv[1:]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
convert_hf_to_mcore(hf, mcore)
convert_mcore_to_hf(mcore, back, max_shard_bytes=40 * 2**20)
convert_hf_to_mcore(hf, mcore + "-ranks", ckpt_format="torch", tensor_parallel_size=2)
convert_mcore_to_hf(mcore + "-ranks", back + "-ranks", max_shard_bytes=40 * 2**20)
print(peak() - before)
"""


def test_a_model_many_times_the_largest_tensor_needs_little_more_than_that_tensor(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "vocab_size": 1000,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
    }
    family = family_of("llama")
    weights = list(family.weights(family.parse(config)))
    planned = [
        PlannedTensor(name, np.dtype("f4"), shape)
        for weight in weights
        for name, shape in zip(weight.hf, weight.hf_shapes, strict=True)
    ]
    source = tmp_path / "hf"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    writer = SafetensorsWriter(source, planned, 10**9)
    for tensor in planned:
        writer.write(tensor.name, np.ones(tensor.shape, "f4"))
    writer.finish()
    assert sum(tensor.num_bytes for tensor in planned) > 190 * MIB
    largest = 8 * MIB  # gate and up projection of one layer

    arguments = [str(source), str(tmp_path / "mcore"), str(tmp_path / "back")]
    result = subprocess.run([sys.executable, "-c", MEASURE, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 4 * largest + 16 * MIB
