"""Gradient buffers, optimizer and learning-rate schedule of one model; a step that refuses non-finite gradients."""

import math
from dataclasses import dataclass

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler


@dataclass(frozen=True)
class OptimizerSettings:
    """Adam and its schedule; ``warmup_steps`` and ``decay_steps`` count optimizer steps."""

    lr: float
    min_lr: float
    decay_style: str
    warmup_steps: int
    decay_steps: int
    weight_decay: float
    clip_grad: float
    adam_beta1: float
    adam_beta2: float
    adam_eps: float
    distributed: bool


@dataclass(frozen=True)
class StepResult:
    """Outcome of one optimizer step; ``skipped`` when the gradient norm was not finite and nothing was changed."""

    grad_norm: float
    lr: float
    skipped: bool


class Trainer:
    """Wraps model chunks for gradient accumulation and owns their optimizer.

    Gradients are summed over micro-batches and data-parallel ranks, never averaged: each loss term carries its global
    denominator already.
    """

    def __init__(self, chunks: list[torch.nn.Module], settings: OptimizerSettings) -> None:
        config = chunks[0].config
        ddp_config = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, use_distributed_optimizer=settings.distributed
        )
        self.chunks = [
            DistributedDataParallel(config, ddp_config, chunk, disable_bucketing=index > 0)
            for index, chunk in enumerate(chunks)
        ]
        config.finalize_model_grads_func = _finalize_without_token_count
        self.optimizer = get_megatron_optimizer(_optimizer_config(settings, config), self.chunks)
        self.settings = settings
        self.scheduler = OptimizerParamScheduler(
            self.optimizer,
            init_lr=0.0,
            max_lr=settings.lr,
            min_lr=settings.min_lr,
            lr_warmup_steps=settings.warmup_steps,
            lr_decay_steps=max(settings.decay_steps, settings.warmup_steps + 1),
            lr_decay_style=settings.decay_style,
            start_wd=settings.weight_decay,
            end_wd=settings.weight_decay,
            wd_incr_steps=0,
            wd_incr_style="constant",
        )

    def zero_grad(self) -> None:
        """Clear the gradient buffers and the optimizer's own view of them."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def step(self) -> StepResult:
        """Clip by the global norm and update, or skip when that norm is not finite; the schedule advances only if not.

        megatron's own ``step`` applies NaN gradients in fp32 and bf16, so the norm is looked at first.
        """
        lr = self.optimizer.param_groups[0]["lr"] if self.optimizer.param_groups else 0.0
        overflow = self.optimizer.prepare_grads()
        norm = float(self.optimizer.get_grad_norm())
        if overflow or not math.isfinite(norm):
            return StepResult(norm, lr, skipped=True)
        parameters = self.optimizer.get_parameters()
        if self.settings.clip_grad > 0 and parameters:
            clip_grad_by_total_norm_fp32(parameters, max_norm=self.settings.clip_grad, total_norm=norm)
        self.optimizer.step_with_ready_grads()
        self.scheduler.step(increment=1)
        return StepResult(norm, lr, skipped=False)

    @property
    def steps_done(self) -> int:
        """Optimizer steps taken, skipped ones not counted."""
        return self.scheduler.num_steps

    def resume_schedule(self, steps_done: int) -> None:
        """Go on after ``steps_done`` steps with this configuration's settings.

        A loaded optimizer state carries the hyperparameters it was saved with; a user who changed them meant to.
        """
        for group in self.optimizer.param_groups:
            group["max_lr"], group["min_lr"] = self.settings.lr, self.settings.min_lr
            group["betas"] = (self.settings.adam_beta1, self.settings.adam_beta2)
            group["eps"] = self.settings.adam_eps
        self.scheduler.num_steps = steps_done
        self.scheduler.step(increment=0)


def _finalize_without_token_count(chunks: list[torch.nn.Module], num_tokens: object = None, **kwargs: object) -> None:
    finalize_model_grads(chunks, None, **kwargs)


def _optimizer_config(settings: OptimizerSettings, config: object) -> OptimizerConfig:
    return OptimizerConfig(
        optimizer="adam",
        lr=settings.lr,
        min_lr=settings.min_lr,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.adam_beta1,
        adam_beta2=settings.adam_beta2,
        adam_eps=settings.adam_eps,
        clip_grad=settings.clip_grad,
        bf16=config.bf16,
        params_dtype=config.params_dtype,
        use_distributed_optimizer=settings.distributed,
    )
