"""Forward and backward over micro-batches, whatever the pipeline: megatron's schedules behind two functions."""

from collections.abc import Callable, Iterator
from typing import Any

from mindllm.device import current_device

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.utils import get_attr_wrapped_model
from torch import Tensor

from mindllm.models.packed import packed_forward
from mindllm.parallel.microbatch import MicroBatch

LossFunction = Callable[[MicroBatch, Tensor], tuple[Tensor, dict[str, Tensor]]]
"""(micro-batch, logits [response tokens, vocab / tp]) -> (loss summed over tokens and divided by its global
denominator, metric sums). Called on the last pipeline stage only."""


def forward_backward(
    chunks: list[torch.nn.Module], micro_batches: list[MicroBatch], loss_function: LossFunction
) -> dict[str, Tensor]:
    """Accumulate gradients over ``micro_batches`` and finalise them over all ranks.

    Args:
        chunks: this rank's DDP-wrapped model chunks, gradients zeroed.
        micro_batches: this rank's share; every rank passes the same number.

    Returns:
        Metrics over this rank's micro-batches on the last pipeline stage, summed (or, where a name ends in ``_max``,
        maximised) in fp64; an empty dictionary elsewhere.
    """

    def step(batches: Iterator[MicroBatch], chunk: torch.nn.Module) -> tuple[Tensor, Any]:
        batch = next(batches)
        output = _forward(chunk, batch)

        def loss(logits: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            value, sums = loss_function(batch, logits)
            # Denominators are in the loss already; megatron's own token count plays no part.
            return value, torch.zeros((), dtype=torch.int, device=current_device()), sums

        return output, loss

    collected = _run(chunks, micro_batches, step, forward_only=False)
    names = collected[0].keys() if collected else ()
    columns = {name: torch.stack([sums[name].detach().double() for sums in collected]) for name in names}
    return {name: column.amax(0) if name.endswith("_max") else column.sum(0) for name, column in columns.items()}


@torch.no_grad()
def forward_only(
    chunks: list[torch.nn.Module],
    micro_batches: list[MicroBatch],
    score: Callable[[MicroBatch, Tensor], Any],
) -> list[Any]:
    """Run ``score(micro_batch, logits)`` on every micro-batch; its results in order on the last stage, else []."""

    def step(batches: Iterator[MicroBatch], chunk: torch.nn.Module) -> tuple[Tensor, Any]:
        batch = next(batches)
        output = _forward(chunk, batch)
        zero = torch.zeros((), device=current_device())
        return output, lambda logits: (zero, zero.to(torch.int), score(batch, logits))

    return _run(chunks, micro_batches, step, forward_only=True)


def _forward(chunk: torch.nn.Module, batch: MicroBatch) -> Tensor:
    with packed_forward(batch.pack):
        return chunk(batch.tokens[None], batch.pack.positions[None], None)


def _run(
    chunks: list[torch.nn.Module], micro_batches: list[MicroBatch], step: Callable[..., Any], forward_only: bool
) -> list[Any]:
    iterators = [iter(micro_batches) for _ in chunks]
    return get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=iterators if len(chunks) > 1 else iterators[0],
        model=chunks if len(chunks) > 1 else chunks[0],
        num_microbatches=len(micro_batches),
        seq_length=1,  # ignored: the shapes travel with the activations
        micro_batch_size=1,
        forward_only=forward_only,
    )


def unwrap(chunk: torch.nn.Module) -> Any:
    """The GPTModel inside its wrappers."""
    return get_attr_wrapped_model(chunk, "decoder", return_model_obj=True)
