"""What the manifest says of a run."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mindllm.data.manifest import (
    FORMAT_VERSION,
    content_hash,
    describe_outputs,
    files_below,
    hash_file,
    length_histogram,
    library_versions,
)
from mindllm.preprocess.inputs.readers import InputFiles
from mindllm.preprocess.options import PreprocessOptions
from mindllm.preprocess.output.outputs import Output
from mindllm.preprocess.output.parts import Joined
from mindllm.preprocess.pool import Job
from mindllm.templates.lookup import HF, end_tokens, load_template, template_path


def describe_run(
    job: Job, options: PreprocessOptions, files: InputFiles, joined: Joined, output: Output
) -> dict[str, Any]:
    """The manifest of one output of a run. `rows` counts the whole run, `samples` this output."""
    outputs = describe_outputs(output.files)
    assert joined.rows_in == len(joined.rows) + sum(joined.dropped.values()), "rows in = written + dropped"
    return {
        "format_version": FORMAT_VERSION,
        "content_hash": content_hash(outputs),
        "keys": output.keys,
        "inputs": describe_inputs(files),
        "options": {**asdict(job.options), "order": asdict(options.order), "pack": options.pack},
        "split": output.name or None,
        "template": _describe_template(job),
        "tokenizer": {"path": job.spec.path, "sha256": job.spec.sha256, "engine": job.spec.engine},
        "handler_file": _describe_file(job.options.handler_file, None, Path),
        "rows": {
            "in": joined.rows_in,
            "written": len(joined.rows),
            "dropped": dict(sorted(joined.dropped.items())),
        },
        "samples": {"samples": output.num_samples, "rows": len(output.lengths), "fill_rate": output.fill_rate},
        "changed": dict(sorted(joined.changed.items())),
        "null_cells": output.null_cells,
        "tokens": {
            "total": int(output.lengths.sum(dtype=np.int64)),
            "trained": output.trained_tokens,
            "shortest": int(output.lengths.min(initial=0)),
            "longest": int(output.lengths.max(initial=0)),
        },
        "length_histogram": length_histogram(output.lengths),
        "outputs": outputs,
        "versions": library_versions(),
    }


def describe_inputs(files: InputFiles) -> list[dict[str, Any]]:
    """Name, size, hash and rows of every input."""
    return [
        {"path": str(path), "bytes": _size(path), "sha256": hash_file(path), "rows": rows}
        for path, rows in zip(files.paths, files.counts, strict=True)
    ]


def _describe_template(job: Job) -> dict[str, Any] | None:
    """Name and hash, the tokens that end answers, and the template as jinja."""
    name = job.options.prompt_type
    if name is None:
        return None
    template = load_template(name, job.spec, job.options.thinking)
    described = _describe_file(name, HF, template_path) or {}
    return {**described, "end_tokens": end_tokens(template, job.spec), "chat_template": template.chat_template}


def _describe_file(name: str | None, built_in: str | None, path_of: Callable[[str], Path]) -> dict[str, Any] | None:
    if name is None or name == built_in:
        return None if name is None else {"name": name}
    return {"name": name, "sha256": hash_file(path_of(name))}


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in files_below(path)) if path.is_dir() else path.stat().st_size
