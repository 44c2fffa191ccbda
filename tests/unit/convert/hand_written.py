"""InternLM2 and Baichuan 2 in plain PyTorch, written from their papers: transformers has no class for them."""

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

SIZES = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "internlm2": {
        "architectures": ["InternLM2ForCausalLM"],
        "model_type": "internlm2",
        "auto_map": {"AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM"},
        "bias": False,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rope_theta": 1e6,
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
    },
    "baichuan": {
        "architectures": ["BaichuanForCausalLM"],
        "model_type": "baichuan",
        "auto_map": {"AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM"},
        "z_loss_weight": 0,
        "max_position_embeddings": 256,
    },
    "baichuan-13b": {
        "architectures": ["BaichuanForCausalLM"],
        "model_type": "baichuan",
        "z_loss_weight": 0,
        "model_max_length": 256,
    },
}


def _shapes(family: str) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a model with the names and shapes that its authors' files have."""
    kind = family.split("-")[0]
    if kind == "internlm2":
        outer = {"model.tok_embeddings.weight": (101, 64), "model.norm.weight": (64,), "output.weight": (101, 64)}
        inner = {
            "attention.wqkv.weight": (64 + 2 * 32, 64),
            "attention.wo.weight": (64, 64),
            "attention_norm.weight": (64,),
            "ffn_norm.weight": (64,),
            "feed_forward.w1.weight": (96, 64),
            "feed_forward.w3.weight": (96, 64),
            "feed_forward.w2.weight": (64, 96),
        }
    else:
        outer = {"model.embed_tokens.weight": (101, 64), "model.norm.weight": (64,), "lm_head.weight": (101, 64)}
        inner = {
            "self_attn.W_pack.weight": (3 * 64, 64),
            "self_attn.o_proj.weight": (64, 64),
            "input_layernorm.weight": (64,),
            "post_attention_layernorm.weight": (64,),
            "mlp.gate_proj.weight": (96, 64),
            "mlp.up_proj.weight": (96, 64),
            "mlp.down_proj.weight": (64, 96),
        }
    layers = {f"model.layers.{layer}.{name}": shape for layer in range(4) for name, shape in inner.items()}
    return {**outer, **layers}


def make_hand_written(directory: Path, family: str, dtype: torch.dtype = torch.float32, unit_rows: bool = True) -> Path:
    """Save a random model. With ``unit_rows`` Baichuan's output layer is already normalised."""
    generator = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in _shapes(family).items()}
    if family.startswith("baichuan") and unit_rows:
        tensors["lm_head.weight"] = F.normalize(tensors["lm_head.weight"].float()).to(dtype)
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = {**SIZES, **CONFIGS[family], "tie_word_embeddings": False, "torch_dtype": str(dtype).split(".")[1]}
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    (directory / "generation_config.json").write_text("{}")
    (directory / "tokenizer.model").write_bytes(b"not a real one")
    return directory


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + SIZES["rms_norm_eps"]) * weight


def _rotate(x: Tensor, theta: float) -> Tensor:
    """Rotate [batch, heads, tokens, dim] by position, halves against each other."""
    frequencies = theta ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = torch.outer(torch.arange(x.shape[-2]), frequencies).repeat(1, 2)
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention on [batch, heads, tokens, dim] -> [batch, tokens, heads * dim]."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    hidden = torch.ones_like(scores).triu(1).bool()
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return (weights @ value).transpose(1, 2).flatten(2)


def internlm2_logits(state: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Return InternLM2's logits: per key/value head, wqkv holds its queries, then the key, then the value."""
    x = state["model.tok_embeddings.weight"][tokens]
    for layer in range(4):
        weights = {name: state[f"model.layers.{layer}.{name}.weight"] for name in ("attention.wqkv", "attention.wo")}
        y = _norm(x, state[f"model.layers.{layer}.attention_norm.weight"]) @ weights["attention.wqkv"].T
        y = y.unflatten(-1, (2, 2 + 2, 16))  # groups, queries + key + value, head size
        query = y[..., :2, :].flatten(2, 3).transpose(1, 2)
        key, value = y[..., 2, :].transpose(1, 2), y[..., 3, :].transpose(1, 2)
        x = x + _attend(_rotate(query, 1e6), _rotate(key, 1e6), value) @ weights["attention.wo"].T
        y = _norm(x, state[f"model.layers.{layer}.ffn_norm.weight"])
        gate, up, down = (state[f"model.layers.{layer}.feed_forward.{name}.weight"] for name in ("w1", "w3", "w2"))
        x = x + (F.silu(y @ gate.T) * (y @ up.T)) @ down.T
    return _norm(x, state["model.norm.weight"]) @ state["output.weight"].T


def baichuan_logits(state: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Return Baichuan2-7B's logits: W_pack is query, key, value; the head's rows are normalised in every pass."""
    x = state["model.embed_tokens.weight"][tokens]
    for layer in range(4):
        prefix = f"model.layers.{layer}."
        y = _norm(x, state[prefix + "input_layernorm.weight"]) @ state[prefix + "self_attn.W_pack.weight"].T
        query, key, value = y.unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        y = _attend(_rotate(query, 1e4), _rotate(key, 1e4), value)
        x = x + y @ state[prefix + "self_attn.o_proj.weight"].T
        y = _norm(x, state[prefix + "post_attention_layernorm.weight"])
        gate, up, down = (state[prefix + f"mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        x = x + (F.silu(y @ gate.T) * (y @ up.T)) @ down.T
    return _norm(x, state["model.norm.weight"]) @ F.normalize(state["lm_head.weight"]).T
