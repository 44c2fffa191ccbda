"""How much memory the ranks of a run will need, from architecture and configuration alone."""

import math
import os
from dataclasses import dataclass, field

from mindllm.device import has_accelerator, total_memory_bytes

from mindllm.checkpoint import CheckpointInfo
from mindllm.config import RoleConfig, RunConfig, TrainedRoleConfig
from mindllm.errors import UserError
from mindllm.models.families import Architecture, family_of
from mindllm.workers.rollout import concurrent_sequences, inference_config

_GIB = 2**30
_LIBRARIES_BYTES = 0.35 * _GIB  # interpreter, torch and megatron-core in the resident set of a CPU rank
_HIDDEN_BYTES = {4: 25, 2: 17}  # saved for the backward pass per token, layer and hidden unit; by bytes of the dtype
_LOGIT_BYTES = 20  # per logit: fp32 copies of the softmax and its backward
_SAMPLER_BYTES = 32  # per logit of a decode step: four fp64 copies
# Unfused operations, and freed blocks that the C library keeps: measured with a model of 135 M parameters.
_CPU_FACTOR = 1.7


@dataclass
class RankMemory:
    """Bytes on the largest rank of a group: what stays (by kind), and what the largest call needs beside it."""

    ranks: int
    lasting: dict[str, float] = field(default_factory=dict)
    calls: dict[str, float] = field(default_factory=dict)

    def hold(self, kind: str, size: float) -> None:
        """Add ``size`` bytes that stay."""
        self.lasting[kind] = self.lasting.get(kind, 0.0) + size

    @property
    def peak(self) -> float:
        """Bytes at the largest call."""
        return sum(self.lasting.values()) + max(self.calls.values(), default=0.0)

    def __str__(self) -> str:
        parts = [f"{kind} {size / _GIB:.1f}" for kind, size in self.lasting.items()]
        if self.calls:
            call = max(self.calls, key=lambda name: self.calls[name])
            parts.append(f"{call} {self.calls[call] / _GIB:.1f}")
        return f"up to about {self.peak / _GIB:.1f} GiB ({', '.join(parts)})"


def check_memory(config: RunConfig, infos: dict[str, CheckpointInfo]) -> list[str]:
    """Estimate the memory of each group of ranks; returns a line for each.

    Raises:
        UserError: weights, gradients and optimizers alone are more than this machine has. Only for CPU ranks started
            here; a cluster's nodes are not seen from the driver.
    """
    groups = estimate(config, infos)
    local = not os.environ.get("RAY_ADDRESS")
    if local and not has_accelerator():
        needed = sum(group.ranks * sum(group.lasting.values()) for group in groups.values())
        if needed > total_memory_bytes():
            raise UserError(
                f"load: {', '.join(infos)} need {needed / _GIB:.0f} GiB on {sum(g.ranks for g in groups.values())} "
                f"rank(s) for weights, gradients and optimizers, this machine has {total_memory_bytes() / _GIB:.0f} GiB"
            )
    lines = [
        f"memory: {group} per rank of {name}" + (f", {group.ranks} ranks" if group.ranks > 1 else "")
        for name, group in groups.items()
    ]
    if local and lines:
        what = "a GPU has" if has_accelerator() else "this machine has"
        lines[-1] += f"; {what} {total_memory_bytes() / _GIB:.0f} GiB"
    return lines


def estimate(config: RunConfig, infos: dict[str, CheckpointInfo]) -> dict[str, RankMemory]:
    """Memory of the largest rank of each group of processes, by the role that owns the group."""
    inline = config.training.executor == "inline"
    groups: dict[str, RankMemory] = {}
    for role, settings in config.roles().items():
        owner = "actor_rollout" if inline else config.resource_pool.owner(role)
        group = groups.setdefault(owner, RankMemory(1 if inline else config.world_size(owner)))
        _add_role(group, config, role, settings, infos[role].architecture)
    if config.training.stage in ("ray_grpo", "ray_ppo"):
        settings, arch = config.actor, infos["actor_rollout"].architecture
        if config.generates_apart:
            settings = inference_config(settings)
            groups["rollout"] = RankMemory(config.world_size("rollout"))
            groups["rollout"].hold("weights", _parameters(settings, arch) * _width(settings))
        where = "rollout" if config.generates_apart else "actor_rollout"
        replicas = config.data_parallel_size("rollout" if config.generates_apart else "actor")
        groups[where].calls["generating"] = _generation(config, settings, arch, replicas)
    if not has_accelerator():
        for group in groups.values():
            group.hold("libraries", _LIBRARIES_BYTES)
    return groups


def _add_role(group: RankMemory, config: RunConfig, role: str, settings: RoleConfig, arch: Architecture) -> None:
    parameters, width = _parameters(settings, arch), _width(settings)
    group.hold("weights", parameters * width)
    if not isinstance(settings, TrainedRoleConfig):
        return
    replicas = config.data_parallel_size("critic" if role == "critic" else "actor")
    shards = replicas if settings.use_distributed_optimizer else 1
    group.hold("gradients", parameters * 4)
    group.hold("optimizer", parameters * (8 if width == 4 else 12) / shards)
    group.calls[f"updating {role}"] = max(_update(config, settings, arch, replicas), parameters * 4 / shards)


def _parameters(settings: RoleConfig, arch: Architecture) -> float:
    """Parameters of the largest rank; what tensor parallelism does not split is too small to count."""
    layers = embeddings = 0
    for weight in family_of(arch.family).weights(arch):
        if weight.layer is None:
            embeddings += math.prod(weight.mcore_shape)
        else:
            layers += math.prod(weight.mcore_shape)
    stages = settings.pipeline_model_parallel_size
    if stages > 1 and not arch.tie_embeddings:
        embeddings //= 2  # one on the first stage, one on the last
    return (layers / stages + embeddings) / settings.tensor_model_parallel_size


def _width(settings: RoleConfig) -> int:
    """Bytes of a weight."""
    return 2 if settings.bf16 else 4


def _update(config: RunConfig, settings: RoleConfig, arch: Architecture, replicas: int) -> float:
    """Activations and logits of the largest micro-batch of an update."""
    training, actor = config.training, config.actor
    rl = training.stage in ("ray_grpo", "ray_ppo")
    sequences = training.global_batch_size * (actor.n_samples_per_prompt if rl else 1)
    sequences = math.ceil(min(sequences, settings.micro_batch_size or sequences) / replicas)
    tokens = min(max(settings.max_tokens_per_micro_batch, settings.seq_length), sequences * settings.seq_length)
    width, tp = _width(settings), settings.tensor_model_parallel_size
    attention = 2 * arch.head_dim * (arch.num_attention_heads + arch.num_query_groups)
    split = width * (attention + 3 * arch.ffn_hidden_size) / tp
    whole = _HIDDEN_BYTES[width] * arch.hidden_size / (tp if settings.sequence_parallel else 1)
    activations = tokens * arch.num_layers / settings.pipeline_model_parallel_size * (split + whole)
    scored = tokens * (min(1.0, actor.max_new_tokens / settings.seq_length) if rl else 1.0)
    logits = 0.0 if arch.scalar_head else scored * arch.vocab_size / tp * _LOGIT_BYTES
    return activations * (1.0 if has_accelerator() else _CPU_FACTOR) + logits


def _generation(config: RunConfig, settings: RoleConfig, arch: Architecture, replicas: int) -> float:
    """Keys and values of the sequences that are decoded together, and what the sampler needs."""
    requests = config.training.global_batch_size * config.actor.n_samples_per_prompt
    slots = min(math.ceil(requests / replicas), concurrent_sequences(config.actor))
    tp, pp = settings.tensor_model_parallel_size, settings.pipeline_model_parallel_size
    per_token = 2 * arch.num_layers / pp * arch.head_dim * arch.num_query_groups / tp * _width(settings)
    return slots * (settings.seq_length * per_token + arch.vocab_size / tp * _SAMPLER_BYTES)
