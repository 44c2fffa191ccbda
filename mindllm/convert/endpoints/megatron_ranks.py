"""A directory with one file per model-parallel rank (Megatron's ``torch`` format) as one end of a conversion."""

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from mindllm.convert.endpoints.rank_layout import Place, Rank, RankLayout, rank_files
from mindllm.convert.endpoints.rank_names import renamed
from mindllm.convert.plan import Dtype, Recipe, Source, check_dtype, listed, share_of
from mindllm.errors import UserError
from mindllm.formats.arrays import Array, name_of, raw
from mindllm.formats.files import LastFile, write_all
from mindllm.formats.torch_archive import ArchiveReader, ArchiveWriter, StoredTensor
from mindllm.models.families import EMBEDDING_KEY, Architecture, Weight
from mindllm.models.families.transforms import pad_rows

_CHECKPOINT_VERSION = 3.0  # Megatron's, since query, key and value are interleaved per group
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.")

_Slices = tuple[slice, ...]


def _pieces(weight: Weight, num_rows: int, size: int) -> list[list[_Slices]]:
    """Return how ``size`` tensor-parallel ranks hold a tensor of ``num_rows`` rows, as megatron-core's layers do.

    For each rank, the pieces of the whole tensor that lie one after the other in its part.
    """
    if weight.parallel is None or size == 1:
        return [[(slice(None),)]] * size
    if weight.parallel == 1:
        return [[(slice(None), part)] for part in _even(0, weight.mcore_shape[1], size)]
    blocks = weight.blocks if len(weight.blocks) > 1 else (num_rows,)
    starts = accumulate(blocks[:-1], initial=0)
    parts = [_even(start, block, size) for start, block in zip(starts, blocks, strict=True)]
    return [[(part,) for part in of_rank] for of_rank in zip(*parts, strict=True)]


def _even(start: int, length: int, size: int) -> list[slice]:
    """Return ``size`` equal runs of the ``length`` numbers from ``start`` on."""
    step = length // size
    return [slice(start + step * rank, start + step * (rank + 1)) for rank in range(size)]


@dataclass(frozen=True)
class _Planned:
    """A tensor that a rank's file will hold."""

    chunk: int
    key: str
    dtype: Dtype
    shape: tuple[int, ...]


class RankTarget:
    """Writes one file per rank of a layout, its vocabulary padded with zero rows.

    The constructor writes everything but the tensors' data, so that whoever has a tensor can write it to its places.
    """

    def __init__(self, directory: Path, recipe: Recipe, source: Source, layout: RankLayout, iteration: int) -> None:
        self._recipe = recipe
        self._layout = layout
        self._pending: dict[tuple[Rank, int, str], tuple[Path, int]] = {}
        self._file = LastFile("r+b")
        planned: dict[Rank, list[_Planned]] = {rank: [] for rank in layout.ranks()}
        for weight in recipe.weights:
            dtype, shape = recipe.dtype_of(source, weight), self._part_shape(weight)
            for rank, place in self._copies(weight):
                planned[rank].append(_Planned(place.chunk, place.key, dtype, shape))
        for rank, tensors in planned.items():
            path = layout.path(directory, *rank)
            offsets = _lay_out(path, tensors, layout, rank, iteration)
            self._pending |= {(rank, *name): (path, offset) for name, offset in offsets.items()}

    def _part_shape(self, weight: Weight) -> tuple[int, ...]:
        """Return the shape of a rank's part."""
        shape = [self._num_rows(weight), *weight.mcore_shape[1:]]
        if weight.parallel is not None:
            shape[weight.parallel] //= self._layout.tensor
        return tuple(shape)

    def _num_rows(self, weight: Weight) -> int:
        return self._recipe.num_vocab_rows if weight.has_vocab_rows else weight.mcore_shape[0]

    def _copies(self, weight: Weight) -> list[tuple[Rank, Place]]:
        return self._layout.copies(weight, self._recipe.architecture.tie_embeddings)

    def write(self, weight: Weight, tensor: Array) -> None:
        """Write every rank's part of one tensor."""
        if weight.has_vocab_rows:
            tensor = pad_rows(tensor, self._recipe.num_vocab_rows)
        parts = _pieces(weight, self._num_rows(weight), self._layout.tensor)
        for rank, place in self._copies(weight):
            path, offset = self._pending.pop((rank, place.chunk, place.key))
            file = self._file.open(path)
            file.seek(offset)
            for piece in parts[rank[0]]:
                write_all(file, raw(np.asarray(tensor[piece], order="C")))

    def share(self, worker: int, num_workers: int) -> Sequence[Weight]:
        """Take a run of the weights; the files are there already, and every tensor has its places in them."""
        return share_of(self._recipe.weights, worker, num_workers)

    def end_share(self) -> set[tuple[Rank, int, str]]:
        """Return what was not written."""
        self._file.close()
        return set(self._pending)

    def merge(self, results: Sequence[set[tuple[Rank, int, str]]]) -> None:
        """Note what nobody has written."""
        unwritten = set.intersection(*results)
        self._pending = {name: place for name, place in self._pending.items() if name in unwritten}

    def finish(self) -> None:
        """Close the file that is open. Raises ValueError if a tensor is missing."""
        self._file.close()
        if self._pending:
            raise ValueError(f"tensors never written: {listed(key for _, _, key in self._pending)}")


def _lay_out(
    path: Path, tensors: Sequence[_Planned], layout: RankLayout, rank: Rank, iteration: int
) -> dict[tuple[int, str], int]:
    """Write a rank's file with room for its tensors; return where the data of each goes, by chunk and key."""
    path.parent.mkdir()
    offsets: dict[tuple[int, str], int] = {}
    chunks: list[dict[str, StoredTensor | None]] = [{} for _ in range(layout.num_chunks)]
    with path.open("wb", buffering=0) as file:
        archive = ArchiveWriter(file)
        for tensor in tensors:
            state = chunks[tensor.chunk]
            if tensor.key in state:
                raise ValueError(f"{tensor.key} is written twice")
            state[tensor.key], offsets[tensor.chunk, tensor.key] = archive.reserve(tensor.dtype, tensor.shape)
            module = tensor.key.rpartition(".")[0]
            if ".linear_" in module or module == "output_layer":  # a linear layer also has an fp8 state, empty here
                state[f"{module}._extra_state"] = None
        if rank[1] == len(layout.stages) - 1:  # has an output layer, also where it borrows the embedding's weight
            chunks[-1].setdefault("output_layer._extra_state", None)
        named: dict[str, Any] = {layout.chunk_name(number): state for number, state in enumerate(chunks)}
        archive.finish({**named, "checkpoint_version": _CHECKPOINT_VERSION, "iteration": iteration})
    return offsets


@dataclass(frozen=True)
class _Loaded:
    """One rank's file that is open: its reader, and its model chunks in order."""

    path: Path
    reader: ArchiveReader
    chunks: list[Mapping[str, Any]]

    def stored(self, place: Place) -> StoredTensor:
        """Return the tensor at a place."""
        stored: StoredTensor = self.chunks[place.chunk][place.key]
        return stored

    def renamed(self, num_local_experts: int) -> "_Loaded":
        """Return the same file under the names that are written here."""
        return _Loaded(self.path, self.reader, [renamed(chunk, num_local_experts) for chunk in self.chunks])


class RankSource:
    """Reads the weights of an architecture from one file per rank, whatever the layout.

    The layout follows from the names and contents of the files. Raises UserError when a file is missing, damaged, or
    refers to anything but tensors, and when tensors are missing, left over or of the wrong shape.
    """

    def __init__(self, directory: Path, architecture: Architecture, weights: Sequence[Weight]) -> None:
        self.directory = directory
        self._tied = architecture.tie_embeddings
        self._stack = ExitStack()
        try:
            found = {numbers: self._load(path) for numbers, path in rank_files(directory).items()}
            self._layout, arranged = _arrange(directory, found)
            experts = 0 if architecture.moe is None else architecture.moe.num_experts // self._layout.expert
            self._files = {rank: loaded.renamed(experts) for rank, loaded in arranged.items()}
            self._check(architecture, weights)
        except BaseException:
            self.close()
            raise

    def _load(self, path: Path) -> _Loaded:
        file = self._stack.enter_context(path.open("rb"))
        try:
            reader = ArchiveReader(file, 0, path.stat().st_size)
            value = reader.value
            chunks = _model_chunks(value)
        except Exception as error:  # a damaged zip or a refused pickle; both are reported as what they are: bad input
            raise UserError(f"{path} is refused: {error}") from None
        return _Loaded(path, reader, chunks)

    def _check(self, architecture: Architecture, weights: Sequence[Weight]) -> None:
        layers = sum(len(layers) for chunks in self._layout.stages for layers in chunks)
        if layers != architecture.num_layers:
            raise UserError(
                f"{self.directory} has {layers} layers; hf/config.json implies {architecture.num_layers} layers"
            )
        expected: dict[Rank, set[tuple[int, str]]] = {rank: set() for rank in self._files}
        for weight in weights:
            for rank, place in self._layout.copies(weight, self._tied):
                expected[rank].add((place.chunk, place.key))
        for rank, loaded in self._files.items():
            present = {
                (number, key)
                for number, chunk in enumerate(loaded.chunks)
                for key, value in chunk.items()
                if isinstance(value, StoredTensor) and not key.endswith("._extra_state")
            }
            missing, left_over = expected[rank] - present, present - expected[rank]
            if missing:
                names = listed(key for _, key in missing)
                raise UserError(f"{loaded.path} lacks tensors that hf/config.json implies: {names}")
            if left_over:
                names = listed(key for _, key in left_over)
                raise UserError(f"{loaded.path} has tensors that hf/config.json does not imply: {names}")
        for weight in weights:
            self._check_parts(weight)

    def _check_parts(self, weight: Weight) -> None:
        """Refuse a part, of any copy, that does not look as those of the other ranks, and parts of another tensor."""
        parts = [(self._files[rank], place) for rank, place in self._layout.copies(weight, self._tied)]
        first_file, first_place = parts[0]
        first = first_file.stored(first_place)
        for file, place in parts:
            stored = file.stored(place)
            check_dtype(file.path, place.key, stored.dtype)
            if (stored.shape, stored.dtype) != (first.shape, first.dtype):
                raise UserError(
                    f"{file.path}: {place.key} is {name_of(stored.dtype)} {stored.shape}, but {first_place.key} in "
                    f"{first_file.path} {name_of(first.dtype)} {first.shape}"
                )
        full = list(first.shape)
        if weight.parallel is not None and weight.parallel < len(full):
            full[weight.parallel] *= self._layout.tensor
        fits = tuple(full) == weight.mcore_shape
        if weight.has_vocab_rows:
            fits = len(full) == 2 and full[0] >= weight.mcore_shape[0] and full[1] == weight.mcore_shape[1]
        if not fits:
            raise UserError(
                f"{self.directory}: {weight.mcore} (layer {weight.layer}) has shape {tuple(full)}; hf/config.json "
                f"implies {weight.mcore_shape}"
            )

    def _stored(self, weight: Weight) -> list[tuple[_Loaded, StoredTensor]]:
        """Return the parts of ``weight`` in the order of the tensor-parallel ranks."""
        copies = self._layout.copies(weight, self._tied)[: self._layout.tensor]
        return [(self._files[rank], self._files[rank].stored(place)) for rank, place in copies]

    def dtype(self, weight: Weight) -> Dtype:
        """Return the dtype of what :meth:`read` returns."""
        return self._stored(weight)[0][1].dtype

    def read(self, weight: Weight) -> Array:
        """Return the tensor of ``weight.mcore_shape``, joined from the ranks' parts, without padding rows."""
        stored = self._stored(weight)
        stored = stored[:1] if weight.parallel is None else stored
        num_rows = sum(part.shape[0] for _, part in stored) if weight.parallel == 0 else weight.mcore_shape[0]
        tensor = np.empty((num_rows, *weight.mcore_shape[1:]), stored[0][1].dtype)
        for (file, part), of_rank in zip(stored, _pieces(weight, num_rows, len(stored)), strict=True):
            try:
                file.reader.read_into(part, [tensor[piece] for piece in of_rank])
            except (ValueError, EOFError) as error:
                raise UserError(f"{file.path} is damaged at tensor {weight.mcore}: {error}") from None
        return tensor[: weight.mcore_shape[0]] if weight.has_vocab_rows else tensor

    def origin(self, weight: Weight) -> str:
        """Return the key on the weight's own rank."""
        return self._layout.places(weight, self._tied)[0].key

    def close(self) -> None:
        """Close the files."""
        self._stack.close()


def _arrange(directory: Path, found: Mapping[tuple[int, ...], _Loaded]) -> tuple[RankLayout, dict[Rank, _Loaded]]:
    """Return the layout, and the files by (tensor, pipeline, expert) rank."""
    numbers = {len(key) for key in found}
    if len(numbers) != 1:
        raise UserError(f"{directory} has no mp_rank_*/model_optim_rng.pt, or they are named in several ways")
    # A second number alone is the pipeline rank, unless every rank has an embedding: then it is the expert rank.
    is_expert = numbers == {2} and all(EMBEDDING_KEY in loaded.chunks[0] for loaded in found.values())
    files = {}
    for key, loaded in found.items():
        tensor, pipeline, expert = (key[0], 0, key[1]) if is_expert else (*key, 0, 0)[:3]
        files[tensor, pipeline, expert] = loaded
    sizes = [max(rank[axis] for rank in files) + 1 for axis in range(3)]
    missing = sizes[0] * sizes[1] * sizes[2] - len(files)
    if missing or len({len(loaded.chunks) for loaded in files.values()}) != 1:
        raise UserError(f"{directory}: {missing} of the files of {sizes} tensor, pipeline and expert ranks are missing")
    counts = [[_num_layers(chunk) for chunk in files[0, pipeline, 0].chunks] for pipeline in range(sizes[1])]
    stages: list[list[tuple[int, ...]]] = [[] for _ in counts]
    done = 0
    for chunk in range(len(counts[0])):
        for pipeline, of_rank in enumerate(counts):
            stages[pipeline].append(tuple(range(done, done + of_rank[chunk])))
            done += of_rank[chunk]
    return RankLayout(sizes[0], sizes[2], tuple(tuple(chunks) for chunks in stages)), files


def _model_chunks(value: Any) -> list[Mapping[str, Any]]:
    """Return the model chunks in what a rank's file holds, in order. Raises ValueError when there are none."""
    names = [name for name in value if re.fullmatch(r"model\d*", str(name))] if isinstance(value, Mapping) else []
    chunks = [value[name] for name in sorted(names, key=lambda name: int(name.removeprefix("model") or 0))]
    if not chunks or not all(
        isinstance(chunk, Mapping) and all(isinstance(key, str) for key in chunk) for chunk in chunks
    ):
        raise ValueError("it holds no model")
    return chunks


def _num_layers(chunk: Mapping[str, Any]) -> int:
    """Return how many layers a model chunk has."""
    matches = (_LAYER.match(key) for key in chunk)
    return max((int(match[1]) + 1 for match in matches if match is not None), default=0)
