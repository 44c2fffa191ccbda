"""Phi-3 and Phi-4: Llama's form with one tensor for query, key and value and one for gate and up projection."""

import dataclasses

from mindllm.models.families.base import Family
from mindllm.models.families.weights import ATTENTION, DENSE_MLP, OUTER, QKV_WEIGHT, Rule

_FUSED = {
    QKV_WEIGHT.mcore: ("model.layers.{layer}.self_attn.qkv_proj.weight", "query+kv+kv"),
    DENSE_MLP[1].mcore: ("model.layers.{layer}.mlp.gate_up_proj.weight", "ffn+ffn"),
}


def _fused(rule: Rule) -> Rule:
    """Return ``rule`` for the tensor that Phi-3 has in place of several; gate and up lie in megatron-core's order."""
    if rule.mcore not in _FUSED:
        return rule
    name, rows = _FUSED[rule.mcore]
    transform = "qkv" if rule.transform == "qkv" else "identity"
    return dataclasses.replace(rule, hf=(name,), hf_shapes=((rows, "hidden"),), transform=transform)


PHI3 = Family(
    name="phi3",
    hf_class="Phi3ForCausalLM",
    rules=(*OUTER, *(_fused(rule) for rule in (*ATTENTION, *DENSE_MLP))),
    defaults={
        "initializer_range": 0.02,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
    },
    fixed={
        "attention_bias": False,
        "attention_dropout": 0.0,
        "embd_pdrop": 0.0,
        "hidden_act": "silu",
        "resid_pdrop": 0.0,
    },
    irrelevant=frozenset({"auto_map", "original_max_position_embeddings"}),  # of longrope, which is refused
    sliding_window="always",
    partial_rotary=True,
)
