"""What tests run on every rank: workers of the given layout, fed as the driver would feed them."""

from pathlib import Path
from typing import Any

from mindllm.config import ActorConfig
from mindllm.data.sequences import Sequences
from mindllm.models.builder import Layout
from mindllm.parallel.groups import coordinates
from mindllm.workers.actor_rollout import ActorRolloutWorker
from mindllm.workers.dispatch import Scatter, Share, combine_metrics
from mindllm.workers.model import batch_limits
from mindllm.workers.objectives import Objective, PolicyObjective, SftObjective
from tests.distributed.models import TinyModel
from tests.distributed.reference import (
    CLIP_HIGH,
    CLIP_LOW,
    DUAL_CLIP,
    ENTROPY_COEFF,
    KL_COEF,
    TEMPERATURE,
    Adam,
)

SEQ_LENGTH = 48

TP1 = Layout()
TP2 = Layout(tensor=2)
PP2 = Layout(pipeline=2)
TP2_PP2 = Layout(tensor=2, pipeline=2)
PP2_VPP2 = Layout(pipeline=2, virtual_pipeline=2)
TP2_SP = Layout(tensor=2, sequence_parallel=True)
TP4 = Layout(tensor=4)  # more ranks than the tiny models have query groups, so that two share one


def actor_config(layout: Layout, adam: Adam | None = None, **changes: Any) -> ActorConfig:
    """The keys that describe ``layout`` and ``adam`` for a model of four layers."""
    adam = adam or Adam()
    chunks = layout.pipeline * (layout.virtual_pipeline or 1)
    values: dict[str, Any] = {
        "load": "unused",
        "data_path": "unused",
        "seq_length": SEQ_LENGTH,
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        "num_layers_per_virtual_pipeline_stage": 4 // chunks if layout.virtual_pipeline else None,
        "sequence_parallel": layout.sequence_parallel,
        "lr": adam.lr,
        "weight_decay": adam.weight_decay,
        "clip_grad": adam.clip_grad,
        "adam_beta1": adam.beta1,
        "adam_beta2": adam.beta2,
        "adam_eps": adam.eps,
    }
    return ActorConfig(**{**values, **changes})


def make_worker(
    model: TinyModel,
    config: ActorConfig,
    total_steps: int = 100,
    resume: bool = False,
    checkpoint: Path | None = None,
) -> ActorRolloutWorker:
    """The actor of this rank, from the converted checkpoint or from ``checkpoint``."""
    return ActorRolloutWorker(config, checkpoint or model.checkpoint, total_steps, resume)


def share_of(batch: Sequences, config: ActorConfig) -> Share:
    """This rank's part of ``batch``, as the driver divides it."""
    place = coordinates()
    return Scatter(batch, batch_limits(config, place.data_size)).shares[place.data_rank]


def objective(kind: str, batch: Sequences) -> Objective:
    """The objective whose terms ``reference.TERMS[kind]`` writes out."""
    num_tokens = int(batch.loss_mask.sum())
    if kind == "sft":
        return SftObjective(num_tokens)
    return PolicyObjective(
        num_tokens, TEMPERATURE, CLIP_LOW, CLIP_HIGH, DUAL_CLIP, ENTROPY_COEFF, KL_COEF, "low_var_kl"
    )


def combined(answers: list[Any]) -> tuple[dict[str, float], float]:
    """Metrics and gradient norm of ``update`` as the driver sees them; ``answers`` of all ranks, None included."""
    heard = [answer for answer in answers if answer is not None]
    metrics = combine_metrics([sums for sums, _ in heard])
    if "loss" not in metrics:
        metrics["loss"] = metrics["pg_loss"] - ENTROPY_COEFF * metrics["entropy"] + KL_COEF * metrics["kl_loss"]
    norms = {step.grad_norm for _, step in heard}
    assert len(norms) == 1, f"ranks report different gradient norms: {norms}"
    return metrics, norms.pop()
