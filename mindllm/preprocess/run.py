"""From input files to indexed files: read, encode in order, join, write, commit."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindllm.data.manifest import manifest_path
from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError, naming_file
from mindllm.preprocess.describe import describe_run
from mindllm.preprocess.encode import encode_parts
from mindllm.preprocess.handlers import Handler, build_handler
from mindllm.preprocess.inputs.readers import InputFiles, check_columns, find_inputs
from mindllm.preprocess.options import PreprocessOptions, find_handler, handler_options
from mindllm.preprocess.output.commit import commit, refuse_existing, staging_directory
from mindllm.preprocess.output.order import Order, make_order
from mindllm.preprocess.output.outputs import PackingOptions, output_prefix, output_prefixes, write_outputs
from mindllm.preprocess.output.parts import Joined, join_parts
from mindllm.preprocess.pool import Job
from mindllm.preprocess.tokenize.engines import build_engine
from mindllm.preprocess.tokenize.pick_engine import pick_engine


@dataclass(frozen=True)
class PreparedRun:
    """Everything a run needs, checked."""

    options: PreprocessOptions
    kind: type[Handler]
    job: Job
    files: InputFiles
    order: Order


def prepare(options: PreprocessOptions) -> PreparedRun:
    """Check options, input and tokenizer before anything is encoded.

    Raises:
        UserError: anything wrong with them.
    """
    kind = find_handler(options)
    spec = _load_spec(options.tokenizer)
    chosen = handler_options(options, kind, spec)
    required = kind.required_columns(chosen)
    files = find_inputs(options.inputs)
    for path in files.paths:
        check_columns(path, required)
    order = make_order(files.source_counts, options.order)
    build_handler(chosen, spec)  # a template that does not fit is found here, not in a worker
    _packing(options, spec)
    spec = pick_engine(spec, options.engine, order.num_needed)
    return PreparedRun(options, kind, Job(chosen, spec), files, order)


def preprocess(options: PreprocessOptions) -> dict[str, dict[str, Any]]:
    """Write indexed files, sidecar and manifest under the output prefix (or its splits').

    Returns:
        The manifest of every split, by name; the name is "" where there is no split.

    Raises:
        UserError: anything wrong with options, tokenizer or input; nothing is then written under the final names.
        OSError: the operating system refused something on the way, likewise; it names a file.
    """
    prefix = options.output_prefix
    prefixes = output_prefixes(prefix, options.order.split is not None)
    refuse_existing(prefix, prefixes, options.overwrite)
    run = prepare(options)
    with naming_file(prefix), staging_directory(prefix) as staging:
        parts = encode_parts(run.job, run.kind, run.files, run.order, staging, options)
        joined = join_parts(parts, staging, run.kind.keys)
        _refuse_empty(joined)
        packing = _packing(options, run.job.spec)
        outputs = write_outputs(joined, run.order, packing, staging / prefix.name, run.kind.keeps_columns)
        manifests = {}
        for output in outputs:
            manifest = describe_run(run.job, run.options, run.files, joined, output)
            file = manifest_path(output_prefix(staging / prefix.name, output.name))
            file.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", "utf-8")
            output.files.append(file)
            manifests[output.name] = manifest
        commit(prefix, prefixes, {output_prefix(prefix, output.name): output.files for output in outputs})
    return manifests


def _load_spec(path: Path) -> TokenizerSpec:
    is_model = path.suffix == ".model" and not path.is_dir()
    return TokenizerSpec.load_sentencepiece(path) if is_model else TokenizerSpec.load(path)


def _packing(options: PreprocessOptions, spec: TokenizerSpec) -> PackingOptions | None:
    if options.pack is None:
        return None
    assert options.seq_length is not None, "checked by find_handler"
    token = spec.pad or spec.eos
    pad_id = build_engine(spec).token_id(token) if token else None
    if options.pack == "pack" and pad_id is None:
        raise UserError(f"--pack fills rows up, but the tokenizer in {spec.path} has neither PAD nor EOS token")
    return PackingOptions(options.pack, options.seq_length, pad_id or 0)


def _refuse_empty(joined: Joined) -> None:
    if not len(joined.rows):
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(joined.dropped.items()))
        hint = " (--map-keys names columns)" if any(name.startswith("null_") for name in joined.dropped) else ""
        raise UserError(f"all {joined.rows_in} rows were dropped ({reasons}){hint}; nothing is written")
