"""The CPU stand-ins for CUDA leave other libraries as they were."""

from pathlib import Path

import mindllm.device

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def test_a_hugging_face_model_loads_with_its_rotary_frequencies(tmp_path: Path) -> None:
    assert mindllm.device.collective_backend() == "gloo"
    config = LlamaConfig(
        vocab_size=11, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    expected = 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, expected)


def test_a_tensor_asked_for_on_cuda_is_made_on_the_cpu() -> None:
    assert torch.zeros(2, device="cuda").device.type == "cpu"
    assert torch.empty(1).cuda().type() == "torch.cuda.FloatTensor"
