"""Baichuan 2: Llama's form with a fused query-key-value tensor and an output layer with rows of length one.

7B rotates queries and keys; 13B, which states ``model_max_length`` and no ``max_position_embeddings``, uses ALiBi.
transformers has no class for it, so nothing here is run from the model's own code (``auto_map``).
"""

import dataclasses

from mindllm.models.families.base import Family
from mindllm.models.families.weights import (
    ATTENTION_NORM,
    ATTENTION_OUTPUT,
    DENSE_MLP,
    EMBEDDING,
    FINAL_NORM,
    OUTPUT,
    QKV_WEIGHT,
)

_W_PACK = dataclasses.replace(
    QKV_WEIGHT,
    hf=("model.layers.{layer}.self_attn.W_pack.weight",),
    hf_shapes=(("query+kv+kv", "hidden"),),
)
# Baichuan's head normalises its rows in every forward pass; here it is done once.
_OUTPUT = dataclasses.replace(OUTPUT, transform="unit_rows")

BAICHUAN = Family(
    name="baichuan",
    hf_class="BaichuanForCausalLM",
    rules=(EMBEDDING, FINAL_NORM, _OUTPUT, ATTENTION_NORM, _W_PACK, ATTENTION_OUTPUT, *DENSE_MLP),
    defaults={
        "initializer_range": 0.02,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    fixed={"hidden_act": "silu"},
    irrelevant=frozenset({"auto_map", "z_loss_weight"}),
    released_vocab_size=125696,
    required={"z_loss_weight": "only Baichuan 2 states it; Baichuan 1, whose head is another, is not supported"},
    rope_types=("default",),
    alibi_length="model_max_length",
)
