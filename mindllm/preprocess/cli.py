"""Command line of preprocess_data.py."""

import sys
from collections.abc import Sequence
from typing import Any

from mindllm.command_line import report_os_error, say
from mindllm.errors import UserError
from mindllm.preprocess.flags import parse
from mindllm.preprocess.preview import preview
from mindllm.preprocess.run import prepare, preprocess


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit status (2 for a mistake of the user's)."""
    try:
        options, previewed = parse(sys.argv[1:] if argv is None else argv)
        if previewed is not None:
            say(preview(prepare(options), previewed, sys.stdout.isatty()))
            return 0
        for name, manifest in preprocess(options).items():
            say(_summary(manifest, f"{options.output_prefix}{'_' if name else ''}{name}"))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        return report_os_error(error)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
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
    line += "".join(f"; {count} {kind}" for kind, count in manifest["changed"].items())
    return f"{line}; {tokens['total']} tokens; {prefix}_manifest.json"
