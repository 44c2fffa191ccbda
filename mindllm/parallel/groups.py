"""Process groups of one layout: megatron's parallel state is global, so a process has exactly one."""

from dataclasses import dataclass

from mindllm.device import bind_local_device, collective_backend, current_device, limit_threads

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core import tensor_parallel

from mindllm.models.builder import Layout


@dataclass(frozen=True)
class Coordinates:
    """Where a rank stands in its group."""

    data_rank: int
    data_size: int
    tensor_rank: int
    pipeline_rank: int
    is_collector: bool
    """Whether this rank answers for its data-parallel replica: TP rank 0 of the last pipeline stage."""


def initialize(layout: Layout, rank: int, world_size: int, init_method: str, local_rank: int = 0) -> None:
    """Join the process group at ``init_method`` and create megatron's groups for ``layout``; once per process."""
    limit_threads()
    bind_local_device(local_rank)
    dist.init_process_group(collective_backend(), init_method=init_method, rank=rank, world_size=world_size)
    mpu.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1234)


def coordinates() -> Coordinates:
    """This rank's place."""
    tensor_rank = mpu.get_tensor_model_parallel_rank()
    last = mpu.is_pipeline_last_stage(ignore_virtual=True)
    return Coordinates(
        data_rank=mpu.get_data_parallel_rank(),
        data_size=mpu.get_data_parallel_world_size(),
        tensor_rank=tensor_rank,
        pipeline_rank=mpu.get_pipeline_model_parallel_rank(),
        is_collector=last and tensor_rank == 0,
    )


def broadcast_from_last_stage(value: torch.Tensor) -> torch.Tensor:
    """Overwrite ``value`` on every pipeline stage with the last stage's; same shape and dtype everywhere."""
    if mpu.get_pipeline_model_parallel_world_size() > 1:
        value = value.to(current_device())
        source = mpu.get_pipeline_model_parallel_last_rank()
        dist.broadcast(value, source, group=mpu.get_pipeline_model_parallel_group())
    return value


def shutdown() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        mpu.destroy_model_parallel()
        dist.destroy_process_group()
