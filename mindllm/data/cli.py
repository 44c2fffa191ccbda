"""Command line of preprocess_data.py."""

import sys
from collections.abc import Sequence
from typing import Any

from mindllm.data.flags import parse
from mindllm.data.preprocess import prepare, preprocess
from mindllm.data.preview import preview
from mindllm.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit status (2 for a mistake of the user's)."""
    options = None
    try:
        options, previewed = parse(sys.argv[1:] if argv is None else argv)
        if previewed is not None:
            print(preview(prepare(options), previewed, sys.stdout.isatty()))
            return 0
        manifests = preprocess(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"error: {error.filename or (options and options.output_prefix)}: {error.strerror or error}",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    for name, manifest in manifests.items():
        print(_summary(manifest, f"{options.output_prefix}{'_' if name else ''}{name}"))
    return 0


def _summary(manifest: dict[str, Any], prefix: str) -> str:
    rows, samples, tokens = manifest["rows"], manifest["samples"], manifest["tokens"]
    dropped = ", ".join(f"{count} {reason}" for reason, count in rows["dropped"].items())
    line = f"{rows['in']} rows in, {rows['written']} written, {rows['in'] - rows['written']} dropped"
    line += f" ({dropped})" if dropped else ""
    if manifest["split"]:
        line += f"; {samples['samples']} in {manifest['split']}"
    if samples["fill_rate"] is not None:
        line += f"; packed into {samples['rows']} rows, {samples['fill_rate']:.1%} full"
    return f"{line}; {tokens['total']} tokens; {prefix}_manifest.json"
