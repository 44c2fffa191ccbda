"""Fields of ``config.json`` that no family reads: what can stand there without changing what a model computes.

Collected from configurations that are published, by transformers and by the tools that write beside it.
"""

from collections.abc import Mapping
from typing import Any

# Whatever their value, these say nothing about the weights or the forward pass of a decoder: special tokens and
# generation (generation_config.json and the tokenizer have them), task heads, lengths for tokenizers, how attention is
# computed, how the model was trained, bookkeeping. Names that begin with an underscore are transformers' own notes.
IRRELEVANT = frozenset(
    "add_cross_attention attn_implementation bad_words_ids begin_suppress_tokens bos_token bos_token_id "
    "chat_format chunk_size_feed_forward cls_token_id context_length cross_attention_hidden_size "
    "decoder_start_token_id diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size eos_token "
    "eos_token_id eos_token_ids exponential_decay_length_penalty finetuning_task flash_attention flash_attn "
    "forced_bos_token_id forced_eos_token_id fuse_cross_entropy fuse_linear_cross_entropy fuse_norm fuse_swiglu "
    "fused_mlp gradient_checkpointing initializer_factor is_decoder is_encoder_decoder is_llama_config "
    "keys_to_ignore_at_inference label2id length_penalty mask_token_id max_input_length max_length max_new_tokens "
    "max_seq_len max_seq_length max_sequence_length min_length model_max_length n_ctx n_positions name_or_path "
    "neftune_noise_alpha no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions "
    "output_hidden_states output_router_logits output_scores pad_token pad_token_id padding_side prefix "
    "pretraining_tp problem_type pruned_heads recompute remove_invalid_values repetition_penalty return_dict "
    "return_dict_in_generate router_aux_loss_coef sep_token_id seq_length sequence_parallel suppress_tokens "
    "task_specific_params temperature tensor_parallel_degree tf_legacy_loss tie_encoder_decoder tokenizer_class "
    "tokenizer_model_max_length tokenizer_padding_side top_k top_p torchscript transformers.js_config "
    "transformers_version transformers_weights truncation_side typical_p unk_token unk_token_id unsloth_fixed "
    "unsloth_version use_bfloat16 use_cache use_flash_attention use_flash_attention_2 use_flash_attn "
    "use_fused_rms_norm use_fused_rope use_recompute use_reentrant use_return_dict".split()
)

# These would change what a model computes; with the values given they say what holds without them. Family fields come
# first: a family that reads one of them, or fixes its value, decides by itself.
INERT: Mapping[str, tuple[Any, ...]] = {
    # another form of attention
    "attention_sink": (False,),
    "attn_output_gate": (False,),
    "dual_chunk_attention_config": ({},),
    "full_attn_mod": (1,),
    "is_causal": (True,),
    "no_rope_layer_interval": (0,),
    "no_rope_layers": ([],),
    "parallel_attn": (False,),
    "sliding_window": (0,),
    "sliding_window_pattern": (1,),
    "use_attention_sink": (False,),
    "use_bidirectional_attention": (False,),
    "use_logn_attn": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
    "use_sliding_window": (False,),
    "use_swa": (False,),
    # another form of positions
    "interpolate_factor": (1,),
    "position_embedding_type": ("rope", "rotary"),
    "rope_interleave": (False,),
    "rope_interleaved": (False,),
    "rotary_emb_interleaved": (False,),
    "rotary_pct": (1,),
    "use_alibi": (False,),
    "alibi": (False,),
    "use_dynamic_ntk": (False,),
    "use_mrope": (False,),
    "use_rope": (True,),
    # biases, norms, activations
    "activation": ("swiglu",),
    "attention_bias": (False,),
    "attention_out_bias": (False,),
    "bias": (False,),
    "hidden_activation": ("silu",),
    "lm_head_bias": (False,),
    "mlp_bias": (False,),
    "no_bias": (True,),
    "norm_type": ("rmsnorm",),
    "qkv_bias": (False,),
    "use_bias": (False,),
    # factors
    "embedding_multiplier": (1,),
    "embedding_scale": (1,),
    "lm_head_multiplier": (1,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "residual_multiplier": (1,),
    "scale_emb": (1,),
    # layers that are left out, added or replaced
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "num_mtp_layers": (0,),
    "num_nextn_predict_layers": (0,),
    "mtp_num_layers": (0,),
    # dropout of a training that is not repeated here
    "attention_dropout": (0,),
    "attn_pdrop": (0,),
    "classifier_dropout": (0,),
    "dropout": (0,),
    "embd_pdrop": (0,),
    "embedding_dropout": (0,),
    "hidden_dropout": (0,),
    "resid_pdrop": (0,),
    "residual_dropout": (0,),
}

_NOT_RUN = "code shipped with a model is never run, and the weights are read as those of the family '{family}'"
REFUSED: Mapping[str, str] = {"auto_map": _NOT_RUN}


def is_bookkeeping(name: str) -> bool:
    """Return whether the field changes nothing, whatever its value."""
    return name in IRRELEVANT or name.startswith("_")
