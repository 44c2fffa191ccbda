"""A directory with one file per model-parallel rank (Megatron's ``torch`` format) as one end of a conversion."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from mindllm.checkpoint.rank_layout import Place, RankLayout, rank_files
from mindllm.checkpoint.rank_names import renamed
from mindllm.checkpoint.recipe import Dtype, Recipe, listed
from mindllm.checkpoint.torch_archive import ArchiveReader, ArchiveWriter, StoredTensor
from mindllm.errors import UserError
from mindllm.models.families import EMBEDDING_KEY, Architecture, Weight
from mindllm.models.families.arrays import Array
from mindllm.models.families.transforms import pad_rows

_CHECKPOINT_VERSION = 3.0  # Megatron's, since query, key and value are interleaved per group
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.")


def cut(weight: Weight, tensor: Array, size: int) -> list[Array]:
    """Return the parts of ``tensor`` on ``size`` tensor-parallel ranks, as megatron-core's layers hold them."""
    if weight.parallel is None or size == 1:
        return [tensor] * size
    if weight.parallel == 1:
        return [np.asarray(part, order="C") for part in np.split(tensor, size, axis=1)]
    blocks = np.split(tensor, np.cumsum(weight.blocks)[:-1]) if len(weight.blocks) > 1 else [tensor]
    parts = zip(*(np.split(block, size) for block in blocks), strict=True)
    return [np.concatenate(part) if len(part) > 1 else part[0] for part in parts]


def join(weight: Weight, parts: Sequence[Array]) -> Array:
    """Return the tensor that :func:`cut` made ``parts`` from."""
    if weight.parallel is None or len(parts) == 1:
        return parts[0]
    if weight.parallel == 1 or len(weight.blocks) == 1:
        return np.concatenate(parts, axis=weight.parallel)
    ends = np.cumsum([block // len(parts) for block in weight.blocks])[:-1]
    return np.concatenate(
        [block for blocks in zip(*(np.split(part, ends) for part in parts), strict=True) for block in blocks]
    )


class _RankFile:
    """One rank's file being written."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir()
        self._file: IO[bytes] = path.open("wb", buffering=0)
        self._archive = ArchiveWriter(self._file)
        self._chunks: dict[int, dict[str, StoredTensor | None]] = {}

    def add(self, chunk: int, key: str, tensor: Array) -> None:
        """Write one tensor of a model chunk; a linear layer also has an empty fp8 state."""
        state = self._chunks.setdefault(chunk, {})
        if key in state:
            raise ValueError(f"{key} is written twice")
        state[key] = self._archive.add(tensor)
        module = key.rpartition(".")[0]
        if ".linear_" in module or module == "output_layer":
            state[f"{module}._extra_state"] = None

    def finish(self, layout: RankLayout, is_last_stage: bool, iteration: int) -> None:
        """Write the description of what was added."""
        if is_last_stage:  # has an output layer, also where it borrows the embedding's weight
            self._chunks[layout.num_chunks - 1].setdefault("output_layer._extra_state", None)
        value: dict[str, Any] = {layout.chunk_name(chunk): self._chunks[chunk] for chunk in range(layout.num_chunks)}
        self._archive.finish({**value, "checkpoint_version": _CHECKPOINT_VERSION, "iteration": iteration})

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class RankTarget:
    """Writes one file per rank of a layout, its vocabulary padded with zero rows."""

    def __init__(self, directory: Path, recipe: Recipe, layout: RankLayout, iteration: int) -> None:
        self._recipe = recipe
        self._layout = layout
        self._iteration = iteration
        self._files = {rank: _RankFile(layout.path(directory, *rank)) for rank in layout.ranks()}

    def write(self, weight: Weight, tensor: Array) -> None:
        """Write every rank's part of one tensor."""
        if weight.has_vocab_rows:
            tensor = pad_rows(tensor, self._recipe.num_vocab_rows)
        parts = cut(weight, tensor, self._layout.tensor)
        for place, rank in self._copies(weight):
            if rank in self._files:
                self._files[rank].add(place.chunk, place.key, parts[rank[0]])

    def _copies(self, weight: Weight) -> Iterator[tuple[Place, tuple[int, int, int]]]:
        """Yield every place and rank that has ``weight``, or a part of it."""
        for place in self._layout.places(weight, self._recipe.architecture.tie_embeddings):
            for expert in self._layout.expert_ranks(weight):
                for tensor in range(self._layout.tensor):
                    yield place, (tensor, place.pipeline, expert)

    def share(self, worker: int, num_workers: int) -> Sequence[Weight]:
        """Take some of the files, and all weights of which they hold a part."""
        ordered = sorted(self._files, key=lambda rank: (rank[1], rank[2], rank[0]))
        bounds = [len(ordered) * part // num_workers for part in (worker, worker + 1)]
        self._files = {rank: self._files[rank] for rank in ordered[bounds[0] : bounds[1]]}
        return [
            weight for weight in self._recipe.weights if any(rank in self._files for _, rank in self._copies(weight))
        ]

    def end_share(self) -> None:
        """Complete this process's files."""
        self.finish()

    def merge(self, results: Sequence[None]) -> None:
        """Leave the files to the processes that have completed them."""
        self.close()
        self._files = {}

    def finish(self) -> None:
        """Write the descriptions and close the files."""
        last = len(self._layout.stages) - 1
        for (_, pipeline, _), file in self._files.items():
            file.finish(self._layout, pipeline == last, self._iteration)
        self.close()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


@dataclass(frozen=True)
class _Loaded:
    """One rank's file that is open: its reader, and its model chunks in order."""

    path: Path
    reader: ArchiveReader
    chunks: list[Mapping[str, Any]]

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
            names = ["model"] if "model" in value else sorted(name for name in value if re.fullmatch(r"model\d+", name))
            chunks = [value[name] for name in names]
            if not chunks or not all(isinstance(chunk, Mapping) for chunk in chunks):
                raise ValueError("it holds no model")
        except Exception as error:  # a damaged zip or a refused pickle; both are reported as what they are: bad input
            raise UserError(f"{path} is refused: {error}") from None
        return _Loaded(path, reader, chunks)

    def _check(self, architecture: Architecture, weights: Sequence[Weight]) -> None:
        layers = sum(len(layers) for chunks in self._layout.stages for layers in chunks)
        if layers != architecture.num_layers:
            raise UserError(
                f"{self.directory} has {layers} layers; hf/config.json implies {architecture.num_layers} layers"
            )
        expected: dict[tuple[int, int, int], set[tuple[int, str]]] = {rank: set() for rank in self._files}
        for weight in weights:
            for place in self._layout.places(weight, self._tied):
                for expert in self._layout.expert_ranks(weight):
                    for tensor in range(self._layout.tensor):
                        expected[tensor, place.pipeline, expert].add((place.chunk, place.key))
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
            self._check_shape(weight)

    def _check_shape(self, weight: Weight) -> None:
        shapes = [stored.shape for _, stored in self._stored(weight)]
        full = list(shapes[0])
        if weight.parallel is not None:
            full[weight.parallel] = sum(shape[weight.parallel] for shape in shapes)
        fits = tuple(full) == weight.mcore_shape
        if weight.has_vocab_rows:
            fits = full[0] >= weight.mcore_shape[0] and tuple(full[1:]) == weight.mcore_shape[1:]
        if not fits:
            raise UserError(
                f"{self.directory}: {weight.mcore} (layer {weight.layer}) has shape {tuple(full)}; hf/config.json "
                f"implies {weight.mcore_shape}"
            )

    def _stored(self, weight: Weight) -> list[tuple[_Loaded, StoredTensor]]:
        """Return the parts of ``weight`` in the order of the tensor-parallel ranks."""
        place: Place = self._layout.places(weight, self._tied)[0]
        expert = self._layout.expert_ranks(weight)[0]
        files = [self._files[tensor, place.pipeline, expert] for tensor in range(self._layout.tensor)]
        return [(file, file.chunks[place.chunk][place.key]) for file in files]

    def dtype(self, weight: Weight) -> Dtype:
        """Return the dtype of what :meth:`read` returns."""
        return self._stored(weight)[0][1].dtype

    def read(self, weight: Weight) -> Array:
        """Return the tensor of ``weight.mcore_shape``, joined from the ranks' parts, without padding rows."""
        stored = self._stored(weight)
        stored = stored[:1] if weight.parallel is None else stored
        parts = []
        for file, part in stored:
            try:
                parts.append(file.reader.read(part))
            except (ValueError, EOFError) as error:
                raise UserError(f"{file.path} is damaged at tensor {weight.mcore}: {error}") from None
        tensor = join(weight, parts)
        return tensor[: weight.mcore_shape[0]] if weight.has_vocab_rows else tensor

    def origin(self, weight: Weight) -> str:
        """Return the key on the weight's own rank."""
        return self._layout.places(weight, self._tied)[0].key

    def close(self) -> None:
        """Close the files."""
        self._stack.close()


def _arrange(
    directory: Path, found: Mapping[tuple[int, ...], _Loaded]
) -> tuple[RankLayout, dict[tuple[int, int, int], _Loaded]]:
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


def _num_layers(chunk: Mapping[str, Any]) -> int:
    """Return how many layers a model chunk has."""
    matches = (_LAYER.match(key) for key in chunk)
    return max((int(match[1]) + 1 for match in matches if match is not None), default=0)
