"""Config fields of mixtures of experts and of latent attention, whose names differ between families."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mindllm.errors import UserError
from mindllm.models.families.architecture import LatentAttention, MixtureOfExperts
from mindllm.models.families.fields import boolean, positive_float, positive_int


@dataclass(frozen=True)
class MoeFields:
    """How a family's config names its mixture of experts; what is not named does not exist in the family.

    ``num_experts`` are the names in use, the newest first.
    ``shared_size`` names the width of the shared experts, ``shared_count`` their number (each as wide as an expert).
    ``normalize_top_k`` is the field, or None for always. ``scores_per_group`` is how many of a group's best scores
    are summed to choose among groups.
    """

    num_experts: tuple[str, ...]
    ffn: str
    shared_size: str | None = None
    shared_count: str | None = None
    shared_gate: bool = False
    score_function: Literal["softmax", "sigmoid"] = "softmax"
    normalize_top_k: str | None = None
    scaling_factor: str | None = None
    groups: tuple[str, str] | None = None
    scores_per_group: int = 1
    expert_bias: bool = False
    dense_layers: Literal["none", "listed", "first"] = "none"

    def names(self) -> set[str]:
        """Return every config field that is read."""
        named = (*self.num_experts, self.ffn, self.shared_size, self.shared_count, self.normalize_top_k)
        dense = {"listed": ("mlp_only_layers", "decoder_sparse_step"), "first": ("first_k_dense_replace",), "none": ()}
        names = {"num_experts_per_tok", *named, self.scaling_factor, *(self.groups or ()), *dense[self.dense_layers]}
        return {name for name in names if name is not None}

    def parse(self, values: Mapping[str, Any], num_layers: int, source: str) -> MixtureOfExperts | None:
        """Return the mixture that ``values`` describe, or None when no layer has one."""
        dense = self._dense_layers(values, num_layers, source)
        if len(dense) == num_layers:
            return None
        name = next((name for name in self.num_experts if name in values), self.num_experts[0])
        num_experts = positive_int(values, name, source)
        top_k = positive_int(values, "num_experts_per_tok", source)
        if top_k > num_experts:
            raise UserError(f"{source}: num_experts_per_tok {top_k} is more than {name} {num_experts}")
        ffn = positive_int(values, self.ffn, source)
        groups = self._groups(values, num_experts, source)
        return MixtureOfExperts(
            num_experts=num_experts,
            top_k=top_k,
            ffn_hidden_size=ffn,
            shared_ffn_hidden_size=self._shared_size(values, ffn, source),
            shared_gate=self.shared_gate,
            score_function=self.score_function,
            normalize_top_k=self.normalize_top_k is None or boolean(values, self.normalize_top_k, source),
            scaling_factor=1.0 if self.scaling_factor is None else positive_float(values, self.scaling_factor, source),
            num_groups=groups[0],
            num_chosen_groups=groups[1],
            scores_per_group=self.scores_per_group,
            expert_bias=self.expert_bias,
            dense_layers=dense,
        )

    def _shared_size(self, values: Mapping[str, Any], ffn: int, source: str) -> int:
        if self.shared_size is not None:
            return positive_int(values, self.shared_size, source)
        if self.shared_count is None or not values.get(self.shared_count):
            return 0
        return positive_int(values, self.shared_count, source) * ffn

    def _groups(self, values: Mapping[str, Any], num_experts: int, source: str) -> tuple[int | None, int | None]:
        if self.groups is None or (values.get(self.groups[0]) or 1) == 1 or values.get("topk_method") == "greedy":
            return None, None
        count, chosen = (positive_int(values, name, source) for name in self.groups)
        if num_experts % count or chosen > count:
            raise UserError(f"{source}: {self.groups[0]} {count} and {self.groups[1]} {chosen} do not fit together")
        return count, chosen

    def _dense_layers(self, values: Mapping[str, Any], num_layers: int, source: str) -> tuple[int, ...]:
        if self.dense_layers == "first":
            first = values.get("first_k_dense_replace") or 0
            return tuple(range(min(first, num_layers)))
        if self.dense_layers == "none":
            return ()
        listed, step = set(values.get("mlp_only_layers") or ()), positive_int(values, "decoder_sparse_step", source)
        return tuple(layer for layer in range(num_layers) if layer in listed or (layer + 1) % step)


LATENT_FIELDS = frozenset({"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})


def parse_latent_attention(values: Mapping[str, Any], source: str) -> LatentAttention:
    """Return the latent attention that DeepSeek's fields describe."""
    rank = values.get("q_lora_rank")
    return LatentAttention(
        query_rank=None if rank is None else positive_int(values, "q_lora_rank", source),
        kv_rank=positive_int(values, "kv_lora_rank", source),
        nope_dim=positive_int(values, "qk_nope_head_dim", source),
        rope_dim=positive_int(values, "qk_rope_head_dim", source),
        value_dim=positive_int(values, "v_head_dim", source),
    )
