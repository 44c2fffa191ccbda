"""Conversion between checkpoint directories: checks, plan, streaming, commit.

Imports what handles tensors inside the functions, so that the command line answers quickly.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindllm import __version__
from mindllm.checkpoint.divisibility import check_layout
from mindllm.checkpoint.info import (
    INFO_NAME,
    TRACKER_NAME,
    Head,
    copy_hf_files,
    default_head,
    iteration_dir,
    latest_iteration_dir,
    read_checkpoint_info,
    write_checkpoint_info,
)
from mindllm.convert.endpoints.rank_layout import RankLayout, plan_stages, rank_files
from mindllm.convert.options import Options
from mindllm.convert.scalar_head import NewHeadSource, choose_head, restate_head
from mindllm.convert.staging import committed_directory
from mindllm.errors import UserError
from mindllm.models.families import Architecture, Weight, family_of, fp8_block, load_architecture, read_config

if TYPE_CHECKING:
    from mindllm.convert.plan import Recipe, Source, Target

_ITERATION = 1  # of a converted model
_BYTES_PER_S = 300e6  # read and written by one process on a laptop's disk; a rough guess for the plan
_PROCESS_MIB = 60  # of a process that holds no tensor yet
_SLACK_BYTES = 64 * 2**20  # headers, tokenizer files


def _silent(line: str) -> None:
    """Report nothing."""


@dataclasses.dataclass(frozen=True)
class _Input:
    """What is known of the source before a tensor is read; ``directory`` holds the tensors, ``hf_dir`` the config."""

    model_type: str
    directory: Path
    hf_dir: Path
    architecture: Architecture
    head: Head
    num_vocab_rows: int
    ignored_config_fields: tuple[str, ...] = ()


def convert_hf_to_mcore(
    load_dir: str | Path, save_dir: str | Path, *, report: Callable[[str], None] = _silent, **options: Any
) -> Path:
    """Convert a Hugging Face model directory to a checkpoint; return its iteration directory.

    ``options`` are fields of :class:`Options`. Raises UserError; then nothing is at ``save_dir``.
    """
    return convert(load_dir, save_dir, Options("hf", "mcore", **options), report)


def convert_mcore_to_hf(
    load_dir: str | Path,
    save_dir: str | Path,
    iteration: int | None = None,
    *,
    report: Callable[[str], None] = _silent,
    **options: Any,
) -> Path:
    """Convert one iteration (default: the latest) of a checkpoint to a Hugging Face model directory; return it.

    ``options`` are fields of :class:`Options`. Raises UserError; then nothing is at ``save_dir``.
    """
    return convert(load_dir, save_dir, Options("mcore", "hf", iteration=iteration, **options), report)


def convert(
    load_dir: str | Path, save_dir: str | Path, options: Options, report: Callable[[str], None] = _silent
) -> Path:
    """Convert ``load_dir`` to ``save_dir`` as ``options`` say; return the new model or iteration directory.

    ``report`` receives the plan and the result, a line at a time. Raises UserError; then nothing is at ``save_dir``.
    """
    from mindllm.convert.plan import make_recipe
    from mindllm.formats.arrays import name_of

    found = _inspect(load_dir, options)
    head = choose_head(found.head, options.head)
    architecture = dataclasses.replace(
        found.architecture,
        scalar_head=head != "lm",
        tie_embeddings=found.architecture.tie_embeddings and head == "lm",
    )
    layout = _target_layout(architecture, options)
    multiple = options.make_vocab_size_divisible_by * (layout.tensor if options.ckpt_format == "torch" else 1)
    num_vocab_rows = -(-architecture.vocab_size // multiple) * multiple
    if options.with_optimizer:
        _check_optimizer_fits(found, head, options)
        num_vocab_rows = found.num_vocab_rows
    recipe = make_recipe(architecture, num_vocab_rows, options.params_dtype)
    with _open_source(found, architecture, options) as source:
        sizes = recipe.stored_bytes(source)
        dtype = name_of(recipe.stored_dtype(source))
        total = sum(sizes)
        if options.ckpt_format == "torch":
            pairs = zip(recipe.weights, sizes, strict=True)
            total = sum(size * layout.num_copies(weight, architecture.tie_embeddings) for weight, size in pairs)
        report(_plan(recipe, dtype, found, save_dir, total, max(sizes), options))
        for note in _notes(found):
            report(f"note: {note}")
        if options.dry_run:
            report("dry run: nothing was written")
            return Path(save_dir)
        with committed_directory(Path(save_dir), total + _SLACK_BYTES) as staged:
            place = _make_place(staged, options)
            job = _Job(found, recipe, options, place)
            job.write(source, _open_target(place, source, recipe, layout, options))
            copy_hf_files(found.hf_dir, job.hf_dir, dtype)
            if options.verify:
                job.verify(source)
            if architecture.scalar_head and not found.architecture.scalar_head:
                report(restate_head(job.hf_dir))
            if options.save_model_type == "mcore":
                _describe(staged, found, recipe, dtype, head, options)
    report(f"wrote {save_dir}" + (", read back and equal" if options.verify else ""))
    return Path(save_dir) if options.save_model_type == "hf" else iteration_dir(save_dir, _ITERATION)


@dataclasses.dataclass(frozen=True)
class _Job:
    """The tensors of one conversion, by one process or several."""

    found: _Input
    recipe: "Recipe"
    options: Options
    place: Path

    @property
    def hf_dir(self) -> Path:
        """Return where the result's ``config.json`` and tokenizer lie."""
        return self.place if self.options.save_model_type == "hf" else self.place / "hf"

    def write(self, source: "Source", target: "Target") -> None:
        """Write every weight, and what makes the result readable."""
        from mindllm.convert.parallel import run_shares
        from mindllm.convert.plan import transfer

        def write_share(worker: int) -> Any:
            weights = target.share(worker, self.options.workers)
            with _open_source(self.found, self.recipe.architecture, self.options) as own_source:
                transfer(own_source, target, self.recipe, weights)
            return target.end_share()

        if self.options.workers == 1:
            transfer(source, target, self.recipe, self.recipe.weights)
        else:
            target.merge(run_shares(self.options.workers, write_share))
        target.finish()

    def verify(self, source: "Source") -> None:
        """Read everything back. Raises UserError for a tensor that differs from its source or has NaN or infinity."""
        from mindllm.convert.parallel import run_shares
        from mindllm.convert.plan import share_of

        def verify_share(worker: int) -> None:
            with _open_source(self.found, self.recipe.architecture, self.options) as own_source:
                self._compare(own_source, share_of(self.recipe.weights, worker, self.options.workers))

        if self.options.workers == 1:
            self._compare(source, self.recipe.weights)
        else:
            run_shares(self.options.workers, verify_share)

    def _compare(self, source: "Source", weights: Sequence[Weight]) -> None:
        from mindllm.formats.arrays import is_finite, same_bits

        model_type, architecture = self.options.save_model_type, self.recipe.architecture
        with _open_checkpoint(model_type, self.place, self.hf_dir, architecture) as result:
            for weight in weights:
                wanted = self.recipe.produce(source, weight)
                if not same_bits(result.read(weight), wanted):
                    raise UserError(f"verify: {result.origin(weight)} (layer {weight.layer}) was not written correctly")
                if not is_finite(wanted):
                    raise UserError(f"verify: {source.origin(weight)} in {source.directory} holds NaN or infinity")


def _inspect(load_dir: str | Path, options: Options) -> _Input:
    """Read what says which model is in ``load_dir``."""
    ignored, family = options.ignored_config_fields, options.family
    if options.load_model_type == "hf":
        found = _inspect_hf(Path(load_dir), ignored, options)
    else:
        found = _inspect_mcore(load_dir, options)
    if family is not None and family_of(family).name != found.architecture.family:
        raise UserError(f"{found.directory} holds a model of family '{found.architecture.family}', not '{family}'")
    return found


def _inspect_hf(directory: Path, ignored: tuple[str, ...], options: Options) -> _Input:
    architecture = load_architecture(directory, ignored)
    adapter = directory / "adapter_config.json"
    if adapter.is_file() and (options.lora_load is None or options.lora_load.resolve() != directory.resolve()):
        raise UserError(f"{adapter}: transformers loads the model with this adapter; add --lora-load, or remove it")
    head = default_head(architecture)
    return _Input("hf", directory, directory, architecture, head, architecture.vocab_size, ignored)


def _notes(found: _Input) -> list[str]:
    """Return what the user should know about the files of the source."""
    from mindllm.formats.safetensors_io import SafetensorsReader

    if found.model_type != "hf":
        return []
    with SafetensorsReader(found.directory, explicit=_weights_file(found.hf_dir)) as reader:
        return reader.notes


def _weights_file(hf_dir: Path) -> str | None:
    """Return the file of the weights, if ``config.json`` names one."""
    return read_config(hf_dir).get("transformers_weights")


def _inspect_mcore(load_dir: str | Path, options: Options) -> _Input:
    iteration = options.iteration
    directory = latest_iteration_dir(load_dir) if iteration is None else iteration_dir(load_dir, iteration)
    if not directory.is_dir():
        raise UserError(f"{load_dir} has no iteration {iteration} ({directory.name})")
    ignored = options.ignored_config_fields
    if options.hf_dir is None:
        if ignored:
            raise UserError(
                f"--ignore-config-field {ignored[0]} is for a config.json that is read for the first time, by "
                "--load-model-type hf or --hf-dir"
            )
        info = read_checkpoint_info(directory)
        return _Input(
            *("mcore", directory, info.hf_dir, info.architecture, info.head, info.padded_vocab_size),
            ignored_config_fields=info.ignored_config_fields,
        )
    if (directory / INFO_NAME).exists():
        raise UserError(f"{directory} has a config.json of its own; leave out --hf-dir {options.hf_dir}")
    found = _inspect_hf(options.hf_dir, ignored, options)
    return dataclasses.replace(found, model_type="mcore", directory=directory)


@contextmanager
def _open_source(found: _Input, result: Architecture, options: Options) -> Iterator["Source"]:
    """Yield the source's tensors as those of ``result``: adapted, and with a new head where there was none."""
    with _open_checkpoint(found.model_type, found.directory, found.hf_dir, found.architecture) as source:
        with _adapted(source, found.architecture, options) as adapted:
            if result.scalar_head and not found.architecture.scalar_head:
                yield NewHeadSource(adapted, found.architecture, options.head_init, options.seed)
            else:
                yield adapted


@contextmanager
def _adapted(source: "Source", architecture: Architecture, options: Options) -> Iterator["Source"]:
    """Yield the source with the adapter merged into it, if there is one."""
    if options.lora_load is None:
        yield source
        return
    from mindllm.convert.lora import AdaptedSource, Adapter
    from mindllm.convert.plan import ordered_weights

    with closing(Adapter(options.lora_load, ordered_weights(architecture), architecture)) as adapter:
        yield AdaptedSource(source, adapter, architecture)


@contextmanager
def _open_checkpoint(model_type: str, directory: Path, hf_dir: Path, architecture: Architecture) -> Iterator["Source"]:
    """Yield the tensors of ``architecture`` in ``directory``, after checking that they are all there."""
    from mindllm.convert.endpoints.huggingface import HfSource
    from mindllm.convert.endpoints.megatron_ranks import RankSource
    from mindllm.convert.endpoints.torch_dist import DistSource
    from mindllm.convert.plan import ordered_weights
    from mindllm.formats.safetensors_io import SafetensorsReader
    from mindllm.formats.torch_dist import TorchDistReader

    weights = ordered_weights(architecture)
    if model_type == "hf":
        with SafetensorsReader(directory, explicit=_weights_file(hf_dir)) as files:
            yield HfSource(files, architecture, weights, fp8_block(read_config(hf_dir)))
    elif rank_files(directory):
        with closing(RankSource(directory, architecture, weights)) as ranks:
            yield ranks
    else:
        with TorchDistReader(directory) as chunks:
            yield DistSource(chunks, weights)


def _make_place(staged: Path, options: Options) -> Path:
    """Return the directory for the tensors under ``staged``."""
    if options.save_model_type == "hf":
        return staged
    place = iteration_dir(staged, _ITERATION)
    place.mkdir()
    return place


def _target_layout(architecture: Architecture, options: Options) -> RankLayout:
    """Return the layout the result is meant for, checked. Raises UserError with the numbers that do not fit."""
    tensor, pipeline = options.tensor_parallel_size or 1, options.pipeline_parallel_size or 1
    expert = options.expert_parallel_size or 1
    check_layout(architecture, tensor, None if options.num_layer_list else pipeline, expert)
    stages = plan_stages(
        architecture.num_layers, pipeline, options.num_layers_per_virtual_pipeline_stage, options.num_layer_list
    )
    return RankLayout(tensor, expert, stages)


def _check_optimizer_fits(found: _Input, head: Head, options: Options) -> None:
    """Refuse to keep an optimizer whose parameters would be other ones."""
    if rank_files(found.directory) or options.ckpt_format != "torch_dist" or options.save_model_type != "mcore":
        raise UserError("--with-optimizer is for torch_dist -> torch_dist only")
    if options.hf_dir is not None:
        raise UserError("--with-optimizer needs a checkpoint that mindllm wrote, not one with --hf-dir")
    if head != found.head or options.params_dtype or options.lora_load or options.make_vocab_size_divisible_by > 1:
        raise UserError(
            "--with-optimizer keeps the state of the same parameters; leave out --head, --params-dtype, --lora-load "
            "and --make-vocab-size-divisible-by"
        )


def _open_target(place: Path, source: "Source", recipe: "Recipe", layout: RankLayout, options: Options) -> "Target":
    from mindllm.convert.endpoints.huggingface import HfTarget
    from mindllm.convert.endpoints.megatron_ranks import RankTarget
    from mindllm.convert.endpoints.torch_dist import DistTarget

    if options.save_model_type == "hf":
        return HfTarget(place, recipe, source, options.max_shard_bytes)
    if options.ckpt_format == "torch":
        return RankTarget(place, recipe, source, layout, _ITERATION)
    rest_of = source.directory if options.with_optimizer else None
    return DistTarget(place, recipe, _ITERATION, rest_of)


def _describe(staged: Path, found: _Input, recipe: "Recipe", dtype: str, head: Head, options: Options) -> None:
    """Write ``mindllm.json`` and the iteration tracker of an mcore result."""
    provenance = {
        "converted_from": str(found.directory.resolve()),
        "mindllm": __version__,
        "target_tensor_parallel_size": options.tensor_parallel_size,
        "target_pipeline_parallel_size": options.pipeline_parallel_size,
        "ckpt_format": options.ckpt_format,
        "lora_load": None if options.lora_load is None else str(options.lora_load),
        "ignored_config_fields": list(options.ignored_config_fields),
    }
    write_checkpoint_info(
        iteration_dir(staged, _ITERATION),
        recipe.architecture,
        padded_vocab_size=recipe.num_vocab_rows,
        dtype=dtype,
        head=head,
        ignored_config_fields=found.ignored_config_fields,
        provenance=provenance,
    )
    (staged / TRACKER_NAME).write_text(f"{_ITERATION}\n", encoding="utf-8")


def _plan(
    recipe: "Recipe", dtype: str, found: _Input, target: str | Path, total: int, largest: int, options: Options
) -> str:
    """Say what is about to happen; memory is for the parts of the largest tensor, the whole, and a copy."""
    architecture = recipe.architecture
    memory = options.workers * (3 * largest / 2**20 + _PROCESS_MIB)
    seconds = total * (2 if options.verify else 1) / _BYTES_PER_S
    return (
        f"plan: {architecture.family}, {architecture.num_layers} layers, {dtype}, {len(recipe.weights)} tensors, "
        f"{total / 2**20:,.1f} MiB from {found.directory} to {target}; about {memory:,.0f} MiB of memory and, at "
        f"{_BYTES_PER_S / 1e6:,.0f} MB/s, {seconds:,.0f} s"
    )
