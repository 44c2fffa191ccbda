"""Wall time and memory of conversions beside ``cp`` and transformers on the same bytes, in one run.

    python benchmarks/convert.py             0.9 GB of bf16: time of cp, transformers, both directions and formats
    python benchmarks/convert.py --memory    8 GB of bf16 in few distinct layers: peak memory of every direction

Every measured command runs in a process of its own, on files that were written and synced before and dropped from the
page cache as far as the kernel follows the advice, and after a pause, in which a virtual machine gives memory that the
command before has freed back to its host; what it writes is synced within the measured time.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PAUSE_S = 4
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from mindllm.formats.arrays import BFLOAT16  # noqa: E402
from mindllm.formats.safetensors_io import PlannedTensor, SafetensorsWriter  # noqa: E402
from mindllm.models.families import family_of  # noqa: E402

SMALL = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 26, "vocab_size": 80_000}
LARGE = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 16, "vocab_size": 64_000}
COMMON = {"model_type": "llama", "num_attention_heads": 16, "num_key_value_heads": 4, "dtype": "bfloat16"}
TRANSFORMERS = """
import sys
from transformers import AutoModelForCausalLM
AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto").save_pretrained(sys.argv[2])
"""


def make_model(directory: Path, sizes: dict[str, int]) -> int:
    """Write a model whose layers repeat one random block of bytes, and return the bytes of its weights."""
    config = {**COMMON, **sizes, "architectures": ["LlamaForCausalLM"]}
    family = family_of("llama")
    planned = [
        PlannedTensor(name, BFLOAT16, shape)
        for weight in family.weights(family.parse(config))
        for name, shape in zip(weight.hf, weight.hf_shapes, strict=True)
    ]
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    writer = SafetensorsWriter(directory, planned, 5 * 10**9)
    # Random mantissas below 2, as in weights: bytes that no file system compresses.
    block = np.random.default_rng(0).integers(0x3F80, 0x4000, max(t.num_bytes for t in planned) // 2, np.uint16)
    for tensor in planned:
        writer.write(tensor.name, block[: tensor.num_bytes // 2].view(BFLOAT16).reshape(tensor.shape))
    writer.finish()
    return sum(tensor.num_bytes for tensor in planned)


def files(path: Path) -> Iterator[Path]:
    """Yield the files under ``path``."""
    yield from (each for each in path.rglob("*") if each.is_file())


def forget(path: Path) -> None:
    """Write ``path`` to disk and advise the kernel to drop it from the page cache."""
    os.sync()
    for each in files(path):
        with each.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class Measured:
    """Seconds until synced, processor seconds of all processes, and the peak RSS in bytes of the largest one."""

    seconds: float
    cpu_seconds: float
    peak: int


def measure(command: list[str], source: Path, target: Path) -> Measured:
    """Run ``command`` from ``source`` to ``target`` and measure it."""
    shutil.rmtree(target, ignore_errors=True)
    forget(source)
    time.sleep(PAUSE_S)
    begin = time.perf_counter()
    code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
    code += "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
    code += "print(used.ru_maxrss, used.ru_utime + used.ru_stime)"
    result = subprocess.run([sys.executable, "-c", code, *command], cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(result.stderr)
    os.sync()
    peak, cpu_seconds = result.stdout.split()
    return Measured(time.perf_counter() - begin, float(cpu_seconds), int(peak) * 1024)


def convert(load: str, save: str, source: Path, target: Path, *options: str) -> list[str]:
    """Return the command line of one conversion."""
    types = ["--load-model-type", load, "--save-model-type", save]
    paths = ["--load-dir", str(source), "--save-dir", str(target)]
    return [sys.executable, "convert_ckpt.py", *types, *paths, *options]


def commands(folder: Path, workers: int) -> Iterator[tuple[str, list[str], Path, Path]]:
    """Yield (name, command, source, target), every source a target of an earlier one."""
    hf, dist, ranks, back = (folder / name for name in ("hf", "dist", "ranks", "back"))
    many = ("--workers", str(workers))
    yield "hf -> torch_dist", convert("hf", "mcore", hf, dist, *many), hf, dist
    yield "torch_dist -> hf", convert("mcore", "hf", dist, back, *many), dist, back
    layout = ("--ckpt-format", "torch", "--target-tensor-parallel-size", "2")
    yield "hf -> torch (TP2)", convert("hf", "mcore", hf, ranks, *layout, *many), hf, ranks
    yield "torch (TP2) -> hf", convert("mcore", "hf", ranks, back, *many), ranks, back


def compare_times(folder: Path, repeats: int, workers: int, num_layers: int) -> None:
    """Print the median times beside cp's."""
    num_bytes = make_model(folder / "hf", {**SMALL, "num_hidden_layers": num_layers})
    hf, copy, saved = folder / "hf", folder / "copy", folder / "saved"
    runs = [
        ("cp -r", ["cp", "-r", str(hf), str(copy)], hf, copy),
        ("transformers load, save", [sys.executable, "-c", TRANSFORMERS, str(hf), str(saved)], hf, saved),
        *commands(folder, workers),
    ]
    measured: dict[str, list[Measured]] = {name: [] for name, *_ in runs}
    for _ in range(repeats):
        for name, command, source, target in runs:
            measured[name].append(measure(command, source, target))
    base = statistics.median(each.seconds for each in measured["cp -r"])
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(f"{num_bytes / 1e6:,.0f} MB bf16, median of {repeats}, {workers} workers, load {load:.1f} per core")
    for name, runs_of_it in measured.items():
        times = [each.seconds for each in runs_of_it]
        median = statistics.median(times)
        cpu_seconds = statistics.median(each.cpu_seconds for each in runs_of_it)
        print(
            f"{name:<26}{median:6.2f} s ({min(times):.2f} to {max(times):.2f})  {median / base:5.2f} x cp"
            f"  {cpu_seconds:6.2f} s of CPU {max(each.peak for each in runs_of_it) / 1e6:8,.0f} MB"
        )


def compare_memory(folder: Path) -> None:
    """Print the peak memory of one process for a large model."""
    num_bytes = make_model(folder / "hf", LARGE)
    largest = LARGE["vocab_size"] * LARGE["hidden_size"] * 2
    limit = 1e9 + 2 * largest
    print(f"{num_bytes / 1e9:.1f} GB bf16, largest tensor {largest / 1e6:,.0f} MB, limit {limit / 1e6:,.0f} MB")
    for name, command, source, target in commands(folder, workers=1):
        result = measure(command, source, target)
        verdict = "ok" if result.peak < limit else "TOO MUCH"
        print(f"{name:<26}{result.seconds:6.1f} s {result.peak / 1e6:8,.0f} MB {verdict}", flush=True)


def main() -> None:
    """Run the comparison that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", action="store_true", help="peak memory for an 8 GB model; takes 26 GB of disk")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int, default=SMALL["num_hidden_layers"], help="of 24 MB each (26)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to write (default: the system's temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.memory:
            compare_memory(Path(folder))
        else:
            compare_times(Path(folder), options.repeats, options.workers, options.layers)


if __name__ == "__main__":
    main()
