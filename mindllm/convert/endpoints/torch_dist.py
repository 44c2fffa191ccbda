"""A torch_dist directory as one end of a conversion."""

from collections.abc import Sequence
from pathlib import Path

from mindllm.convert.plan import Dtype, Recipe, check_dtype, listed, share_of
from mindllm.errors import UserError
from mindllm.formats.arrays import Array
from mindllm.formats.torch_dist import OPTIMIZER_PREFIXES, TorchDistReader, TorchDistWriter, Written
from mindllm.models.families import Weight
from mindllm.models.families.transforms import pad_rows


class DistSource:
    """Reads the weights of an architecture from a torch_dist directory written at any layout.

    The constructor checks that the checkpoint holds exactly the architecture's tensors in the right shapes; tensors of
    an optimizer beside them are left alone. Raises UserError listing what does not fit.
    """

    def __init__(self, reader: TorchDistReader, weights: Sequence[Weight]) -> None:
        self.directory = reader.directory
        self._reader = reader
        expected = {weight.mcore for weight in weights}
        present = {key for key in reader.keys() if not key.startswith(OPTIMIZER_PREFIXES)}
        missing = expected - present
        if missing:
            raise UserError(f"{self.directory} lacks tensors that its hf/config.json implies: {listed(missing)}")
        left_over = present - expected
        if left_over:
            raise UserError(f"{self.directory} has tensors that its hf/config.json does not imply: {listed(left_over)}")
        for weight in weights:
            self._check_shape(weight)

    def _check_shape(self, weight: Weight) -> None:
        shape = self._reader.shape(weight.mcore)
        wanted = (*weight.extent, *weight.mcore_shape)
        fits = shape == wanted
        if weight.has_vocab_rows:
            fits = len(shape) == 2 and shape[0] >= wanted[0] and shape[1:] == wanted[1:]
        if not fits:
            raise UserError(f"{self.directory}: {weight.mcore} has shape {shape}; hf/config.json implies {wanted}")
        check_dtype(self.directory, weight.mcore, self._reader.dtype(weight.mcore))

    def dtype(self, weight: Weight) -> Dtype:
        """Return the dtype of what :meth:`read` returns."""
        return self._reader.dtype(weight.mcore)

    def read(self, weight: Weight) -> Array:
        """Return the tensor of ``weight.mcore_shape``: one slice of a stacked key, no padding rows."""
        tensor = self._reader.read_slice(weight.mcore, weight.index)
        return tensor[: weight.mcore_shape[0]] if weight.has_vocab_rows else tensor

    def origin(self, weight: Weight) -> str:
        """Return the key."""
        return weight.mcore


class DistTarget:
    """Writes a torch_dist directory, its vocabulary padded with zero rows.

    Everything but the weights, above all an optimizer's state, is taken over from the directory ``rest_of``.
    """

    def __init__(self, directory: Path, recipe: Recipe, iteration: int, rest_of: Path | None = None) -> None:
        self._directory = directory
        self._recipe = recipe
        self._iteration = iteration
        self._rest_of = rest_of
        self._writer = TorchDistWriter(directory)

    def write(self, weight: Weight, tensor: Array) -> None:
        """Write one tensor, or one slice of a stacked one."""
        if weight.has_vocab_rows:
            tensor = pad_rows(tensor, self._recipe.num_vocab_rows)
        self._writer.write_slice(weight.mcore, tensor, weight.index, weight.extent)

    def share(self, worker: int, num_workers: int) -> Sequence[Weight]:
        """Take a run of the weights, for a data file of its own."""
        self._writer = TorchDistWriter(self._directory, part=worker + 1)
        return share_of(self._recipe.weights, worker, num_workers)

    def end_share(self) -> Written:
        """Return what is in the data file."""
        self._writer.close()
        return self._writer.written

    def merge(self, results: Sequence[Written]) -> None:
        """Note what is in the data files."""
        for written in results:
            self._writer.written.add(written)

    def finish(self) -> None:
        """Write the metadata, and the empty fp8 states of linear layers that megatron-core's loader asks for."""
        modules = {
            (weight.mcore.rpartition(".")[0], weight.index, weight.extent)
            for weight in self._recipe.weights
            if ".linear_" in weight.mcore
        }
        for module, index, extent in sorted(modules):
            self._writer.write_empty_object(f"{module}._extra_state", index, extent)
        if self._rest_of is None:
            self._writer.finish(self._iteration)
        else:
            self._copy_rest(self._rest_of)
            self._writer.finish(self._iteration, (self._rest_of / "common.pt").read_bytes())

    def _copy_rest(self, source: Path) -> None:
        """Copy an optimizer's tensors block by block, and objects without looking into them."""
        with TorchDistReader(source) as reader:
            for key in sorted(reader.keys()):
                if key.startswith(OPTIMIZER_PREFIXES):
                    for offset, chunk in reader.chunks(key):
                        self._writer.write_chunk(key, chunk, offset, reader.shape(key))
            for key in sorted(reader.objects()):
                if "._extra_state/" not in key:
                    self._writer.write_object(key, reader.read_object(key))
