"""From an Architecture and a layout to the model chunks of this rank."""

import math
from dataclasses import dataclass

from mindllm.device import current_device, layer_spec, megatron_kernel_flags

import torch
from megatron.core import parallel_state as mpu
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from torch import Tensor

from mindllm.models.attention import PackedAttention, PackedRotaryEmbedding
from mindllm.models.families.architecture import Architecture
from mindllm.models.gpt import Head, ScoringGPTModel
from mindllm.models.norm import RMSNorm


@dataclass(frozen=True)
class Layout:
    """How one model is split: sizes in ranks, ``virtual_pipeline`` in model chunks per rank (None: no interleaving)."""

    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int | None = None
    sequence_parallel: bool = False

    @property
    def model_ranks(self) -> int:
        """Ranks that hold one copy of the model."""
        return self.tensor * self.pipeline


def padded_vocab_size(vocab_size: int, divisible_by: int, tensor: int) -> int:
    """Rows of the embedding: the true size rounded up so that every tensor-parallel rank holds the same number."""
    multiple = divisible_by * tensor
    return math.ceil(vocab_size / multiple) * multiple


def transformer_config(arch: Architecture, layout: Layout, dtype: torch.dtype) -> TransformerConfig:
    """megatron-core's description of ``arch`` under ``layout``, with the losses' denominators left to the caller."""
    vpp = layout.virtual_pipeline
    return TransformerConfig(
        num_layers=arch.num_layers,
        hidden_size=arch.hidden_size,
        ffn_hidden_size=arch.ffn_hidden_size,
        num_attention_heads=arch.num_attention_heads,
        num_query_groups=arch.num_query_groups,
        kv_channels=arch.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=arch.norm_epsilon,
        qk_layernorm=arch.qk_layernorm,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=arch.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        init_method_std=arch.init_std,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=vpp,
        sequence_parallel=layout.sequence_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        variable_seq_lengths=True,
        # variable_seq_lengths demands this dispatcher, also of dense models
        moe_token_dispatcher_type="alltoall",
        calculate_per_token_loss=True,
        batch_p2p_comm=vpp is None,
        overlap_p2p_comm=vpp is not None,
        **megatron_kernel_flags(),
    )


def inverse_frequencies(arch: Architecture) -> Tensor:
    """Rotary inverse frequencies [head_dim / 2] in fp32, with Llama 3's scaling where the checkpoint has it.

    Long wavelengths are divided by ``factor``, short ones kept, those between interpolated (Llama 3.1 model card).
    """
    exponents = torch.arange(0, arch.head_dim, 2, dtype=torch.int64).float() / arch.head_dim
    frequencies = 1.0 / (arch.rotary_base**exponents)
    scaling = arch.rope_scaling
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    length = scaling.original_max_position_embeddings
    longest, shortest = length / scaling.low_freq_factor, length / scaling.high_freq_factor
    smooth = (length / wavelengths - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blended = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    scaled = torch.where(wavelengths > longest, frequencies / scaling.factor, frequencies)
    return torch.where((wavelengths <= longest) & (wavelengths >= shortest), blended, scaled)


def build_model(
    arch: Architecture, layout: Layout, dtype: torch.dtype, vocab_divisible_by: int = 1, head: Head = "lm"
) -> list[ScoringGPTModel]:
    """Build this rank's model chunks (one, or one per virtual stage) with fresh weights.

    A scalar head makes the embedding untied: its gradients on two pipeline stages must not meet the head. Model
    parallel groups must be initialised. Weights are on the current device in ``dtype``.
    """
    config = transformer_config(arch, layout, dtype)
    spec = layer_spec(arch.qk_layernorm, RMSNorm, PackedAttention)
    chunks = []
    for stage in range(layout.virtual_pipeline or 1):
        vp_stage = stage if layout.virtual_pipeline else None
        block = TransformerBlockSubmodules(
            layer_specs=[spec] * get_num_layers_to_build(config, vp_stage=vp_stage), layer_norm=RMSNorm
        )
        chunk = ScoringGPTModel(
            config=config,
            transformer_layer_spec=block,
            vocab_size=padded_vocab_size(arch.vocab_size, vocab_divisible_by, layout.tensor),
            max_sequence_length=arch.max_position_embeddings,
            pre_process=mpu.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
            post_process=mpu.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
            share_embeddings_and_output_weights=arch.tie_embeddings and head == "lm",
            position_embedding_type="rope",
            rotary_base=arch.rotary_base,
            vp_stage=vp_stage,
            rotary=PackedRotaryEmbedding(inverse_frequencies(arch)),
            head=head,
        )
        chunks.append(chunk.to(current_device()))
    return chunks
