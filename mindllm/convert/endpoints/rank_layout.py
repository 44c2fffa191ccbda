"""Which rank has which tensor under which name, in checkpoints with a file per model-parallel rank. No torch."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindllm.errors import UserError
from mindllm.models.families import EMBEDDING_KEY, OUTPUT_KEY, Weight

FILE_NAME = "model_optim_rng.pt"
_LAYERS = "decoder.layers."
_DIRECTORY = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?")

Rank = tuple[int, int, int]
"""Tensor, pipeline and expert rank."""
Stages = tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True)
class Place:
    """Where one copy of a weight lies: pipeline rank, model chunk on that rank, and name there."""

    pipeline: int
    chunk: int
    key: str


@dataclass(frozen=True)
class RankLayout:
    """Sizes of the tensor and expert groups, and the layers of every model chunk: ``stages[pipeline rank][chunk]``."""

    tensor: int
    expert: int
    stages: Stages

    @property
    def num_chunks(self) -> int:
        """Return the model chunks per rank; more than one with a virtual pipeline."""
        return len(self.stages[0])

    def ranks(self) -> Iterator[Rank]:
        """Yield every (tensor, pipeline, expert) rank."""
        for pipeline in range(len(self.stages)):
            for expert in range(self.expert):
                for tensor in range(self.tensor):
                    yield tensor, pipeline, expert

    def path(self, directory: Path, tensor: int, pipeline: int, expert: int) -> Path:
        """Return the file of a rank, as Megatron names it."""
        name = f"mp_rank_{tensor:02d}"
        name += f"_{pipeline:03d}" if len(self.stages) > 1 else ""
        name += f"_{expert:03d}" if self.expert > 1 else ""
        return directory / name / FILE_NAME

    def chunk_name(self, chunk: int) -> str:
        """Return the key of a model chunk in a rank's file."""
        return f"model{chunk}" if self.num_chunks > 1 else "model"

    def places(self, weight: Weight, tied: bool) -> list[Place]:
        """Return every place of ``weight``; a tied embedding is on the first and the last pipeline rank."""
        last = (len(self.stages) - 1, self.num_chunks - 1)
        if weight.layer is not None:
            return [self._layer_place(weight, weight.layer)]
        if weight.mcore != EMBEDDING_KEY:
            return [Place(*last, weight.mcore)]
        first = Place(0, 0, EMBEDDING_KEY)
        return [first, Place(*last, OUTPUT_KEY)] if tied and len(self.stages) > 1 else [first]

    def copies(self, weight: Weight, tied: bool) -> list[tuple[Rank, Place]]:
        """Return every rank and place that has ``weight`` or a part of it, tensor-parallel ranks next to each other."""
        return [
            ((tensor, place.pipeline, expert), place)
            for place in self.places(weight, tied)
            for expert in self.expert_ranks(weight)
            for tensor in range(self.tensor)
        ]

    def num_copies(self, weight: Weight, tied: bool) -> int:
        """Return how many times the bytes of ``weight`` are in the ranks' files together."""
        parts = len(self.copies(weight, tied))
        return parts if weight.parallel is None else parts // self.tensor

    def _layer_place(self, weight: Weight, layer: int) -> Place:
        for pipeline, chunks in enumerate(self.stages):
            for chunk, layers in enumerate(chunks):
                if layer in layers:
                    rest = weight.mcore.removeprefix(_LAYERS).removeprefix(f"{layer}.")
                    if weight.expert is not None:
                        local = weight.expert % (weight.extent[-1] // self.expert)
                        rest = rest.replace("experts.experts.", f"experts.local_experts.{local}.")
                    return Place(pipeline, chunk, f"{_LAYERS}{layers.index(layer)}.{rest}")
        raise ValueError(f"layer {layer} is on no rank")

    def expert_ranks(self, weight: Weight) -> Sequence[int]:
        """Return the expert-parallel ranks that have ``weight``."""
        if weight.expert is None:
            return range(self.expert)
        return [weight.expert // (weight.extent[-1] // self.expert)]


def plan_stages(
    num_layers: int, pipeline: int, layers_per_virtual_stage: int | None, num_layer_list: Sequence[int] | None
) -> Stages:
    """Return the layers of every model chunk for the command line's options.

    Raises UserError when they do not fit ``num_layers``.
    """
    if num_layer_list is not None:
        if layers_per_virtual_stage is not None:
            raise UserError("num-layer-list and num-layers-per-virtual-pipeline-stage cannot be combined")
        if len(num_layer_list) != pipeline or sum(num_layer_list) != num_layers:
            raise UserError(
                f"num-layer-list {','.join(map(str, num_layer_list))} has {len(num_layer_list)} stages and "
                f"{sum(num_layer_list)} layers; target-pipeline-parallel-size is {pipeline}, the model has {num_layers}"
            )
        starts = [sum(num_layer_list[:rank]) for rank in range(pipeline)]
        pairs = zip(starts, num_layer_list, strict=True)
        return tuple((tuple(range(start, start + count)),) for start, count in pairs)
    per_rank = num_layers // pipeline
    per_chunk = layers_per_virtual_stage or per_rank
    if per_rank % per_chunk:
        raise UserError(
            f"num-layers-per-virtual-pipeline-stage {per_chunk} does not divide the {per_rank} layers of a rank"
        )
    if layers_per_virtual_stage is not None and pipeline == 1:
        raise UserError("num-layers-per-virtual-pipeline-stage needs target-pipeline-parallel-size of at least 2")
    num_chunks = per_rank // per_chunk
    return tuple(
        tuple(
            tuple(range(first := (chunk * pipeline + rank) * per_chunk, first + per_chunk))
            for chunk in range(num_chunks)
        )
        for rank in range(pipeline)
    )


def rank_files(directory: Path) -> dict[tuple[int, ...], Path]:
    """Return the rank files under an iteration directory by the numbers in their names."""
    files: dict[tuple[int, ...], Path] = {}
    for path in sorted(directory.glob("mp_rank_*")):
        match = _DIRECTORY.fullmatch(path.name)
        if match is not None and (path / FILE_NAME).is_file():
            files[tuple(int(number) for number in match.groups() if number is not None)] = path / FILE_NAME
    return files
