"""The estimate of memory: exact where it counts parameters, with the known bytes per parameter of mixed precision."""

from pathlib import Path
from typing import Any

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from mindllm.checkpoint import CheckpointInfo
from mindllm.config import build_config
from mindllm.errors import UserError
from mindllm.models.families import load_architecture
from mindllm.preflight import memory
from mindllm.preflight.memory import check_memory, estimate

SIZES = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 4, "vocab_size": 100}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
MODELS = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
}


def info_of(name: str, folder: Path) -> tuple[CheckpointInfo, int]:
    """A checkpoint's description, and the number of parameters that transformers makes of it."""
    MODELS[name].save_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(MODELS[name])
    arch = load_architecture(folder)
    return CheckpointInfo(arch, 100, 100, "float32", folder, "lm"), sum(p.numel() for p in model.parameters())


def sft(processes: int = 1, **changes: Any) -> Any:
    training = {"stage": "sft", "train_iters": 2, "global_batch_size": 8, "seq_length": 16}
    training |= {"load": "ckpt", "data_path": "data", "lr": 1e-3} | changes
    return build_config({"training": training, "resource_pool": {"actor_rollout": processes}})


@pytest.mark.parametrize("name", MODELS)
def test_what_stays_is_16_bytes_per_parameter_in_fp32_and_18_in_bf16(name, tmp_path):
    info, parameters = info_of(name, tmp_path)
    for bf16, expected in ((False, 16), (True, 18)):
        (group,) = estimate(sft(bf16=bf16), {"actor_rollout": info}).values()
        lasting = sum(size for kind, size in group.lasting.items() if kind != "libraries")
        assert lasting == expected * parameters


def test_parallelism_divides_what_it_shards(tmp_path):
    info, parameters = info_of("llama", tmp_path)
    (two_replicas,) = estimate(sft(2), {"actor_rollout": info}).values()
    assert two_replicas.lasting["optimizer"] == 4 * parameters
    assert two_replicas.lasting["weights"] == 4 * parameters
    (whole_optimizer,) = estimate(sft(2, use_distributed_optimizer=False), {"actor_rollout": info}).values()
    assert whole_optimizer.lasting["optimizer"] == 8 * parameters
    (halves,) = estimate(sft(2, tensor_model_parallel_size=2), {"actor_rollout": info}).values()
    assert halves.lasting["weights"] == 2 * parameters
    (stages,) = estimate(sft(2, pipeline_model_parallel_size=2), {"actor_rollout": info}).values()
    assert stages.lasting["weights"] == pytest.approx(2 * parameters, rel=0.01)


def test_an_update_needs_more_for_longer_micro_batches(tmp_path):
    info, _ = info_of("llama", tmp_path)
    short, long = (
        next(
            iter(
                estimate(sft(max_tokens_per_micro_batch=tokens, global_batch_size=64), {"actor_rollout": info}).values()
            )
        )
        for tokens in (256, 512)
    )
    assert long.calls["updating actor_rollout"] == 2 * short.calls["updating actor_rollout"]


def test_roles_that_share_processes_are_added_up_and_generation_keeps_keys_and_values(tmp_path):
    info, parameters = info_of("llama", tmp_path)
    training = {"stage": "ray_grpo", "train_iters": 2, "global_batch_size": 4, "seq_length": 32, "load": "ckpt"}
    actor = {"data_path": "data", "lr": 1e-3, "max_new_tokens": 16, "max_prompt_length": 16, "n_samples_per_prompt": 2}
    config = build_config(
        {
            "training": training,
            "actor_rollout_ref": {"actor_rollout": actor},
            "algorithm": {"use_kl_loss": True, "kl_loss_coef": 0.1},
            "reward": {"functions": [{"name": "format"}]},
        }
    )
    (group,) = estimate(config, {"actor_rollout": info, "ref": info}).values()
    assert group.lasting["weights"] == 2 * 4 * parameters
    # 8 sequences of up to 32 tokens; per token and layer a key and a value of 2 heads of 16 numbers of 4 bytes.
    assert group.calls["generating"] - 8 * 100 * memory._SAMPLER_BYTES == 8 * 32 * 4 * 2 * 2 * 16 * 4


def test_what_fits_is_a_line_and_what_cannot_fit_is_refused_with_both_figures(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(memory, "has_accelerator", lambda: False)
    info, _ = info_of("llama", tmp_path)
    (line,) = check_memory(sft(2), {"actor_rollout": info})
    assert line.startswith("memory: up to about 0.4 GiB (weights 0.0, ")
    assert " per rank of actor_rollout, 2 ranks; this machine has " in line
    monkeypatch.setattr(memory, "total_memory_bytes", lambda: 2**29)
    with pytest.raises(UserError, match=r"actor_rollout need 1 GiB on 2 rank.* optimizers, this machine has 0 GiB"):
        check_memory(sft(2), {"actor_rollout": info})
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")  # whose memory is not known here
    (line,) = check_memory(sft(2), {"actor_rollout": info})
    assert "machine" not in line
