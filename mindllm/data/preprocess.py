"""From input files to indexed files: read, encode in order, merge, commit."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mindllm.data.commit import commit, refuse_existing, staging_directory
from mindllm.data.handlers import Encoded, Handler, HandlerOptions, build_handler, handler_class
from mindllm.data.manifest import (
    FORMAT_VERSION,
    content_hash,
    describe_inputs,
    describe_outputs,
    hash_file,
    length_histogram,
    library_versions,
    manifest_path,
)
from mindllm.data.parts import Merged, Part, merge_parts, write_part
from mindllm.data.pool import Job, map_in_order
from mindllm.data.progress import Progress
from mindllm.data.readers import InputFiles, Row, columns_of, find_inputs
from mindllm.data.templates import HF, resolve_prompt_type, template_path
from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError, did_you_mean

_BATCH = 256  # rows encoded in one call


@dataclass(frozen=True)
class PreprocessOptions:
    """A whole run. `handler.prompt_type` is None until the tokenizer is known."""

    inputs: list[str]
    output_prefix: Path
    tokenizer: Path
    handler: str
    prompt_type: str | None = None
    map_keys: Mapping[str, str] | None = None
    seq_length: int | None = None
    prompt_overlong: str | None = None
    overlong: str | None = None
    workers: int = 1
    n_subs: int = 1
    log_interval: int = 1000
    overwrite: bool = False


def preprocess(options: PreprocessOptions) -> dict[str, Any]:
    """Write indexed files, sidecar and manifest under the output prefix, and return the manifest.

    Raises:
        UserError: anything wrong with options, tokenizer or input; nothing is then written under the final names.
    """
    kind = handler_class(options.handler)
    limits = _limits(options, kind)
    refuse_existing(options.output_prefix, options.overwrite)
    files = find_inputs(options.inputs)
    shape = kind.make_shape(options.map_keys)
    for path in files.paths:
        _check_columns(path, shape.required)
    spec = TokenizerSpec.load(options.tokenizer)
    chosen = HandlerOptions(
        options.handler, resolve_prompt_type(options.prompt_type, spec), options.map_keys, options.seq_length, **limits
    )
    build_handler(chosen, spec)  # a template that does not fit is found here, not in a worker
    with staging_directory(options.output_prefix) as staging:
        parts = _encode(options, Job(chosen, spec), kind, files, staging)
        merged = merge_parts(parts, staging / options.output_prefix.name, kind.keys, kind.keeps_columns)
        _refuse_empty(merged.counts)
        manifest = _manifest(chosen, spec, files, merged)
        manifest_file = manifest_path(staging / options.output_prefix.name)
        manifest_file.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", "utf-8")
        commit(options.output_prefix, [*merged.files, manifest_file])
    return manifest


def _limits(options: PreprocessOptions, kind: type[Handler]) -> dict[str, Any]:
    """The over-length options given, refusing those without effect."""
    given = {"prompt_overlong": options.prompt_overlong, "overlong": options.overlong}
    limits = {name: value for name, value in given.items() if value is not None}
    for name in limits:
        flag = "--" + name.replace("_", "-")
        if name != kind.limit_option:
            other = "--" + kind.limit_option.replace("_", "-")
            raise UserError(f"{flag} has no effect with {options.handler}; use {other}")
        if options.seq_length is None:
            raise UserError(f"{flag} has no effect without --seq-length")
    return limits


def _check_columns(path: Path, required: list[str]) -> None:
    available = columns_of(path)
    missing = [name for name in required if name not in available]
    if missing and available:
        raise UserError(
            f"{path} has no column '{missing[0]}' (--map-keys names columns); columns are {', '.join(available)}"
            f"{did_you_mean(missing[0], available)}"
        )


def _encode(options: PreprocessOptions, job: Job, kind: type[Handler], files: InputFiles, staging: Path) -> list[Part]:
    progress = Progress(files.total, options.log_interval)
    if options.n_subs == 1:
        encoded = map_in_order(_encode_rows, _batches(files.rows(0, files.total)), job, options.workers)
        parts = [write_part(staging / "part-0", kind.keys, _reported(encoded, progress))]
    else:
        tasks = _part_tasks(files, options.n_subs, staging)
        parts = []
        for part in map_in_order(_encode_part, tasks, job, options.workers):
            parts.append(part)
            progress.update(sum(part.rows_in for part in parts))
    progress.finish(files.total)
    return parts


@dataclass(frozen=True)
class _PartTask:
    files: InputFiles
    start: int
    stop: int
    directory: Path


def _part_tasks(files: InputFiles, n_subs: int, staging: Path) -> list[_PartTask]:
    borders = [files.total * part // n_subs for part in range(n_subs + 1)]
    return [
        _PartTask(files, start, stop, staging / f"part-{number}")
        for number, (start, stop) in enumerate(pairwise(borders))
    ]


def _encode_part(handler: Handler, task: _PartTask) -> Part:
    batches = _batches(task.files.rows(task.start, task.stop))
    return write_part(task.directory, handler.keys, (handler.encode(batch) for batch in batches))


def _encode_rows(handler: Handler, rows: list[Row]) -> Encoded:
    return handler.encode(rows)


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while batch := list(islice(rows, _BATCH)):
        yield batch


def _reported(batches: Iterator[Encoded], progress: Progress) -> Iterator[Encoded]:
    done = 0
    for batch in batches:
        yield batch
        done += batch.rows_in
        progress.update(done)


def _refuse_empty(counts: Part) -> None:
    if not counts.num_samples:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.dropped.items()))
        raise UserError(f"all {counts.rows_in} rows were dropped ({reasons}); nothing is written")


def _manifest(options: HandlerOptions, spec: TokenizerSpec, files: InputFiles, merged: Merged) -> dict[str, Any]:
    counts = merged.counts
    lengths = counts.sample_lengths()
    outputs = describe_outputs(merged.files)
    assert counts.rows_in == len(lengths) + sum(counts.dropped.values()), "rows in = written + dropped"
    template: dict[str, Any] = {"name": options.prompt_type}
    if options.prompt_type != HF:
        template["sha256"] = hash_file(template_path(options.prompt_type))
    return {
        "format_version": FORMAT_VERSION,
        "content_hash": content_hash(outputs),
        "keys": list(counts.lengths),
        "inputs": describe_inputs(files),
        "options": asdict(replace(options, map_keys=dict(options.map_keys) if options.map_keys else None)),
        "template": template,
        "tokenizer": {"path": spec.path, "sha256": spec.sha256},
        "rows": {
            "in": counts.rows_in,
            "written": len(lengths),
            "dropped": dict(sorted(counts.dropped.items())),
        },
        "changed": dict(sorted(counts.changed.items())),
        "null_cells": merged.null_cells,
        "tokens": {
            "total": int(lengths.sum(dtype=np.int64)),
            "trained": counts.trained_tokens,
            "shortest": int(lengths.min()),
            "longest": int(lengths.max()),
        },
        "length_histogram": length_histogram(lengths),
        "outputs": outputs,
        "versions": library_versions(),
    }
