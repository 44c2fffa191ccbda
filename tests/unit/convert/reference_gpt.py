"""megatron-core's own GPTModel for any architecture, unpacked, filled from a converted checkpoint at any layout."""

import math
from pathlib import Path
from typing import Any

import mindllm.device  # noqa: F401  prepares the process for megatron-core
from mindllm.device.backend import has_transformer_engine

import torch
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer import TransformerConfig, multi_latent_attention
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import MLATransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from mindllm.models.builder import inverse_frequencies
from mindllm.models.families import Architecture, YarnRopeScaling
from mindllm.models.norm import RMSNorm

# Without Transformer Engine, megatron-core leaves a name undefined that it then compares with None, and in latent
# attention takes the engine to be there.
moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
multi_latent_attention.HAVE_TE = has_transformer_engine()

_LATENT = {
    "self_attention.q_layernorm.": "self_attention.linear_q_up_proj.layer_norm_",
    "self_attention.kv_layernorm.": "self_attention.linear_kv_up_proj.layer_norm_",
}


def _moe_settings(architecture: Architecture) -> dict[str, Any]:
    moe = architecture.moe
    if moe is None:
        return {}
    return {
        "num_moe_experts": moe.num_experts,
        "moe_ffn_hidden_size": moe.ffn_hidden_size,
        "moe_router_topk": moe.top_k,
        "moe_router_pre_softmax": not moe.normalize_top_k,
        "moe_router_score_function": moe.score_function,
        "moe_router_topk_scaling_factor": moe.scaling_factor,
        "moe_router_num_groups": moe.num_groups,
        "moe_router_group_topk": moe.num_chosen_groups,
        "moe_router_enable_expert_bias": moe.expert_bias,
        "moe_router_load_balancing_type": "none",
        "moe_router_dtype": "fp32",
        "moe_aux_loss_coeff": 0.0,
        "moe_shared_expert_intermediate_size": moe.shared_ffn_hidden_size or None,
        "moe_shared_expert_gate": moe.shared_gate,
        "moe_layer_freq": [int(architecture.is_moe_layer(layer)) for layer in range(architecture.num_layers)]
        if moe.dense_layers
        else 1,
        "moe_token_dispatcher_type": "allgather",
    }


def _latent_settings(architecture: Architecture) -> dict[str, Any]:
    mla, scaling = architecture.mla, architecture.rope_scaling
    if mla is None:
        return {}
    settings: dict[str, Any] = {
        "multi_latent_attention": True,
        "q_lora_rank": mla.query_rank,
        "kv_lora_rank": mla.kv_rank,
        "qk_head_dim": mla.nope_dim,
        "qk_pos_emb_head_dim": mla.rope_dim,
        "v_head_dim": mla.value_dim,
        "rotary_base": architecture.rotary_base,
        "rope_type": "rope",
    }
    if isinstance(scaling, YarnRopeScaling):
        settings |= {
            "rope_type": "yarn",
            "rotary_scaling_factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_max_position_embeddings,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "mscale": scaling.mscale,
            "mscale_all_dim": scaling.mscale_all_dim,
        }
    return settings


class _Attention(torch.nn.Module):
    """Causal attention on [tokens, batch, heads, dim]; megatron's local one needs values as wide as queries."""

    def __init__(self, config: Any, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__()
        self.scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        grouped = key.shape[1] != query.shape[1]
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=self.scale, enable_gqa=grouped
        )
        return out.permute(2, 0, 1, 3).flatten(2)


def _config(architecture: Architecture) -> TransformerConfig:
    config_class = TransformerConfig if architecture.mla is None else MLATransformerConfig
    return config_class(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.ffn_hidden_size,
        num_attention_heads=architecture.num_attention_heads,
        num_query_groups=architecture.num_query_groups,
        kv_channels=architecture.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.norm_epsilon,
        qk_layernorm=architecture.qk_layernorm or architecture.mla is not None,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=architecture.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        rotary_interleaved=architecture.rotary_interleaved,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        tensor_model_parallel_size=mpu.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=mpu.get_pipeline_model_parallel_world_size(),
        virtual_pipeline_model_parallel_size=mpu.get_virtual_pipeline_model_parallel_world_size(),
        expert_model_parallel_size=mpu.get_expert_model_parallel_world_size(),
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        **_moe_settings(architecture),
        **_latent_settings(architecture),
    )


def build_reference(architecture: Architecture, vp_stage: int | None = None) -> GPTModel:
    """Build this rank's part of the model, or one chunk of it; its sharded keys carry Transformer Engine's names."""
    config = _config(architecture)
    block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage)
    block.layer_norm = RMSNorm
    for layer, spec in enumerate(block.layer_specs, start=get_transformer_layer_offset(config, vp_stage)):
        modules, attention = spec.submodules, spec.submodules.self_attention.submodules
        modules.input_layernorm = modules.pre_mlp_layernorm = RMSNorm
        attention.core_attention = _Attention
        names = dict(_LATENT) if architecture.mla is not None else {}
        if architecture.mla is None:
            names["input_layernorm."] = "self_attention.linear_qkv.layer_norm_"
        else:
            attention.q_layernorm = attention.kv_layernorm = RMSNorm
        if architecture.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = RMSNorm
        if not architecture.is_moe_layer(layer):
            names["pre_mlp_layernorm."] = "mlp.linear_fc1.layer_norm_"
        modules.sharded_state_dict_keys_map = names
    model = GPTModel(
        config=config,
        transformer_layer_spec=block,
        vocab_size=architecture.vocab_size,
        max_sequence_length=architecture.max_position_embeddings,
        pre_process=mpu.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=mpu.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
        vp_stage=vp_stage,
        share_embeddings_and_output_weights=architecture.tie_embeddings,
        position_embedding_type="rope",
        rotary_percent=architecture.rotary_fraction,
        rotary_base=architecture.rotary_base,
    )
    if architecture.mla is None and architecture.rotary_fraction == 1.0:
        model.rotary_pos_emb.inv_freq = inverse_frequencies(architecture)
    return model.eval()


def load_reference(architecture: Architecture, iteration_dir: Path) -> list[GPTModel]:
    """Build this rank's model, or all its chunks, and let megatron-core load every parameter of it."""
    stages = range(mpu.get_virtual_pipeline_model_parallel_world_size() or 0)
    chunks = [build_reference(architecture, stage) for stage in stages] or [build_reference(architecture)]
    for parameter in (parameter for chunk in chunks for parameter in chunk.parameters()):
        parameter.data.fill_(torch.nan)
    wanted = {str(number): chunk.sharded_state_dict() for number, chunk in enumerate(chunks)}
    loaded = dist_checkpointing.load(wanted, str(iteration_dir))
    for number, chunk in enumerate(chunks):
        chunk.load_state_dict(loaded[str(number)])
        assert all(parameter.isfinite().all() for parameter in chunk.parameters())
    return chunks


def reference_logits(architecture: Architecture, iteration_dir: Path, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits [batch, tokens, vocab] of the converted checkpoint for ``tokens`` [batch, tokens]."""
    (model,) = load_reference(architecture, iteration_dir)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    with torch.no_grad():
        return model(tokens, positions, attention_mask=None)
