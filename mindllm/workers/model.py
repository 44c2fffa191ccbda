"""What every model role does on a rank: build its shard, load it, run its head over a share of a batch."""

from collections.abc import Callable
from pathlib import Path

from mindllm.device import current_device

import torch
from torch import Tensor

from mindllm.checkpoint import read_checkpoint_info
from mindllm.checkpoint.model_io import load_model
from mindllm.config import RoleConfig
from mindllm.models.builder import Layout, build_model
from mindllm.models.gpt import Head
from mindllm.parallel.groups import coordinates
from mindllm.parallel.microbatch import MicroBatch, Rows, make_micro_batch
from mindllm.parallel.schedule import forward_only
from mindllm.workers.dispatch import BatchLimits, Share


def role_layout(config: RoleConfig, num_layers: int) -> Layout:
    """The layout a role's keys describe; ``num_layers`` turns layers per virtual stage into chunks per rank."""
    per_chunk, stages = config.num_layers_per_virtual_pipeline_stage, config.pipeline_model_parallel_size
    return Layout(
        tensor=config.tensor_model_parallel_size,
        pipeline=stages,
        virtual_pipeline=num_layers // stages // per_chunk if per_chunk else None,
        sequence_parallel=config.sequence_parallel,
    )


def batch_limits(config: RoleConfig, data_parallel: int) -> BatchLimits:
    """Bounds of this role's micro-batches."""
    interleaved = config.num_layers_per_virtual_pipeline_stage is not None
    return BatchLimits(
        data_parallel=data_parallel,
        max_tokens=config.max_tokens_per_micro_batch,
        max_sequences=config.micro_batch_size,
        multiple=config.pipeline_model_parallel_size if interleaved else 1,
    )


class ModelWorker:
    """One rank's shard of a model.

    ``report(done)`` tells whoever watches the rank how far a long call is; the rank's process sets it.
    """

    report: Callable[[int], None] | None = None

    def __init__(self, config: RoleConfig, checkpoint: Path, head: Head) -> None:
        """
        Args:
            config: the role's keys.
            checkpoint: iteration directory with the weights (and the architecture) to start from.
            head: what the model ends in; the checkpoint has the same.
        """
        info = read_checkpoint_info(checkpoint)
        self.vocab_size = info.architecture.vocab_size
        self.layout = role_layout(config, info.architecture.num_layers)
        dtype = torch.bfloat16 if config.bf16 else torch.float32
        self.chunks: list[torch.nn.Module] = list(
            build_model(info.architecture, self.layout, dtype, config.make_vocab_size_divisible_by, head)
        )
        load_model(self.chunks, checkpoint)
        for chunk in self.chunks:
            chunk.eval()

    def pack(self, share: Share, rows: Rows = "actions") -> list[MicroBatch]:
        """The share's micro-batches, packed for this layout."""
        multiple = self.layout.tensor if self.layout.sequence_parallel else 1
        return [make_micro_batch(sequences, multiple, rows) for sequences in share.micro_batches()]

    def score(self, share: Share, rows: Rows, read: Callable[[MicroBatch, Tensor], Tensor]) -> Tensor | None:
        """Apply ``read`` to the head's output of every micro-batch, without gradients.

        Returns:
            Its values end to end, fp32 on the host, on the rank that answers for its replica; None on the others.
        """
        values = forward_only(self.chunks, self.pack(share, rows), read)
        if not coordinates().is_collector:
            return None
        return torch.cat([torch.empty(0, device=current_device()), *values]).float().cpu()
