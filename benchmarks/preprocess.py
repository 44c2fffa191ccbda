"""Preprocessing, side by side: the bare encoding limit, two ways of others, and preprocess_data.py; and its memory.

python benchmarks/preprocess.py --tokenizer DIR [--documents 60000] [--workers 2] [--rounds 1] [--short 100000 1000000]

Every contender encodes the same texts with the same tokenizer in the same number of processes, and its time counts from
before its processes start until its output is written. `datasets` and `tiktoken` take part where they are installed.
"""

import argparse
import hashlib
import importlib.util
import json
import multiprocessing as mp
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]
_DOCUMENT = 2000  # characters
_tokenizer = None  # of a worker process


def texts_of(count: int) -> list[str]:
    """Documents out of the source files of the standard library and the installed packages."""
    paths = sysconfig.get_paths()
    files = sorted({*Path(paths["stdlib"]).rglob("*.py"), *Path(paths["purelib"]).rglob("*.py")})
    texts: list[str] = []
    for file in files:
        source = file.read_text("utf-8", errors="ignore")
        texts += [source[start : start + _DOCUMENT] for start in range(0, len(source), _DOCUMENT)]
        if len(texts) >= count:
            break
    return [text for text in texts[:count] if text.strip()]


# --- contenders -------------------------------------------------------------------------------------------------------


def load(directory: str) -> None:
    """Load the tokenizer of this process."""
    global _tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    _tokenizer = Tokenizer.from_file(f"{directory}/tokenizer.json")


def encode_share(texts: list[str]) -> int:
    """Encode, and do nothing with the result."""
    for start in range(0, len(texts), 256):
        _tokenizer.encode_batch(texts[start : start + 256], add_special_tokens=False)
    return len(texts)


def bare(tokenizer: str, texts: list[str], data: Path, workers: int, out: Path) -> None:
    """The limit: `encode_batch` on texts that are in memory already."""
    with mp.get_context("fork").Pool(workers, load, (tokenizer,)) as pool:
        pool.map(encode_share, [texts[start::workers] for start in range(workers)], chunksize=1)


def encode_line(line: str) -> list[int]:
    """One line to the ids of its text."""
    return _tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids


def per_line(tokenizer: str, texts: list[str], data: Path, workers: int, out: Path) -> None:
    """One `encode` per line in a pool, one write per document: the way of Megatron-LM's tool."""
    lengths = []
    with mp.get_context("fork").Pool(workers, load, (tokenizer,)) as pool, data.open() as lines:
        with (out / "text.bin").open("wb") as file:
            for ids in pool.imap(encode_line, lines, 25):
                array = np.array(ids, dtype=np.int32)
                file.write(array.tobytes(order="C"))
                lengths.append(array.size)
    np.array(lengths, dtype=np.int32).tofile(out / "text.idx")


def datasets_map(tokenizer: str, texts: list[str], data: Path, workers: int, out: Path) -> None:
    """`datasets.map(batched=True, num_proc=N)`, and writing what it gives."""
    script = f"""
import datasets, json, numpy as np
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file({tokenizer + "/tokenizer.json"!r})
rows = datasets.load_dataset("json", data_files={str(data)!r}, split="train", cache_dir={str(out / "cache")!r})
def encode(batch):
    return {{"ids": [e.ids for e in tokenizer.encode_batch(batch["text"], add_special_tokens=False)]}}
mapped = rows.map(encode, batched=True, num_proc={workers}, remove_columns=["text"])
with open({str(out / "text.bin")!r}, "wb") as file:
    for batch in mapped.with_format("numpy").iter(1000):
        for ids in batch["ids"]:
            file.write(ids.astype(np.int32).tobytes())
"""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, stdout=subprocess.DEVNULL)


def ours(engine: str) -> Callable[[str, list[str], Path, int, Path], None]:
    """preprocess_data.py with one of its engines."""

    def run(tokenizer: str, texts: list[str], data: Path, workers: int, out: Path) -> None:
        subprocess.run(command(tokenizer, data, workers, out, "--engine", engine), check=True, cwd=REPOSITORY, **QUIET)

    return run


QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def command(tokenizer: str, data: Path, workers: int, out: Path, *options: str) -> list[str]:
    """The command line of a run on plain text."""
    fixed = ["--input", str(data), "--output-prefix", str(out / "data"), "--handler-name", "GeneralPretrainHandler"]
    fixed += ["--tokenizer-name-or-path", tokenizer, "--workers", str(workers)]
    return [sys.executable, "preprocess_data.py", *fixed, *options]


# --- measurements -----------------------------------------------------------------------------------------------------


def speed(arguments: argparse.Namespace, directory: Path) -> None:
    """Documents per second of every contender; the best of some rounds, which are interleaved.

    Processor seconds are shown beside the time that went by: they tell the same where the machine has other work too.
    """
    texts = texts_of(arguments.documents)
    data = write_jsonl(directory / "texts.jsonl", texts)
    contenders = {"bare encode_batch": bare, "one encode per line": per_line, "ours, tokenizers": ours("tokenizers")}
    if importlib.util.find_spec("datasets"):
        contenders["datasets.map"] = datasets_map
    if importlib.util.find_spec("tiktoken"):
        contenders["ours, tiktoken"] = ours("tiktoken")
    if arguments.without:
        contenders = {name: run for name, run in contenders.items() if name not in arguments.without}
    best: dict[str, tuple[float, float]] = {}
    for _ in range(arguments.rounds):
        for name, run in contenders.items():
            out = directory / "out"
            out.mkdir()
            start, start_processor = time.monotonic(), processor_s()
            run(arguments.tokenizer, texts, data, arguments.workers, out)
            taken = time.monotonic() - start, processor_s() - start_processor
            best[name] = min(best.get(name, taken), taken)
            print(f"{name}: {taken[0]:.1f} s", flush=True)
            shutil.rmtree(out)
    megabytes = sum(map(len, texts)) / 1e6
    print(f"\n{len(texts)} documents, {megabytes:.0f} million characters, {arguments.workers} workers")
    limit_s, limit_processor_s = best["bare encode_batch"]
    per_line_s, _ = best.get("one encode per line", (None, None))
    for name, (seconds, spent_s) in best.items():
        line = f"{name:20} {seconds:7.1f} s {len(texts) / seconds:8.0f} documents/s {limit_s / seconds:6.2f} x bare "
        line += f"{per_line_s / seconds:6.2f} x per line " if per_line_s else ""
        line += f"processor {spent_s:7.1f} s {limit_processor_s / spent_s:6.2f} x bare"
        print(line, flush=True)


def processor_s() -> float:
    """Processor time this process and its ended children have used."""
    used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def identity(arguments: argparse.Namespace, directory: Path) -> None:
    """Hashes of the output for several numbers of workers and parts."""
    data = write_jsonl(directory / "few.jsonl", texts_of(2000))
    hashes = set()
    for workers, parts in [(1, 1), (2, 1), (1, 4), (2, 4)]:
        out = directory / f"identity-{workers}-{parts}"
        subprocess.run(
            command(arguments.tokenizer, data, workers, out, "--n-subs", str(parts)),
            check=True,
            cwd=REPOSITORY,
            **QUIET,
        )
        hashes.add(hashlib.sha256(b"".join(path.read_bytes() for path in sorted(out.iterdir()))).hexdigest())
    print(
        f"\nworkers 1, 2 x n-subs 1, 4: {'byte-identical' if len(hashes) == 1 else f'{len(hashes)} DIFFERENT outputs'}"
    )


def memory(arguments: argparse.Namespace, directory: Path) -> None:
    """Peak memory of the parent and of its workers for two numbers of short documents."""
    print("\npeak memory, short documents, parent and each worker")
    for count in arguments.short:
        data = directory / "short.jsonl"
        with data.open("w") as file:
            file.writelines(f'{{"text": "short document {n} of many"}}\n' for n in range(count))
        out = directory / f"short-{count}"
        process = subprocess.Popen(
            command(arguments.tokenizer, data, arguments.workers, out, "--engine", "tokenizers"),
            cwd=REPOSITORY,
            **QUIET,
        )
        peaks = watch(process)
        parent, *workers = _parent_first(process.pid, peaks)
        listed = ", ".join(f"{peak:.0f}" for peak in workers)
        print(f"{count:9} documents: parent {parent:.0f} MB, workers {listed} MB (exit status {process.returncode})")
        shutil.rmtree(out)


def _parent_first(pid: int, peaks: dict[int, float]) -> list[float]:
    return [peaks.pop(pid, 0.0), *sorted(peaks.values(), reverse=True)]


def watch(process: subprocess.Popen) -> dict[int, float]:
    """Peak resident memory in MB of a process and its children, until it ends."""
    peaks: dict[int, float] = {}
    while process.poll() is None:
        for pid in [process.pid, *children_of(process.pid)]:
            peak = peak_mb(pid)
            if peak:
                peaks[pid] = max(peaks.get(pid, 0.0), peak)
        time.sleep(0.05)
    return peaks


def children_of(pid: int) -> list[int]:
    """Child processes that encode."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    except OSError:
        return []


def peak_mb(pid: int) -> float:
    """VmHWM of a process, 0 when it has gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def merge(directory: Path, num_parts: int = 1000, samples: int = 1000) -> None:
    """What joining many parts adds to the memory of the process that does it."""
    from mindllm.preprocess.handlers import Encoded
    from mindllm.preprocess.output.order import OrderOptions, make_order
    from mindllm.preprocess.output.outputs import write_outputs
    from mindllm.preprocess.output.parts import join_parts, write_part

    keys = ("input_ids", "labels")

    def batch(number: int) -> Iterator[tuple[Encoded, np.ndarray]]:
        lengths = np.full(samples, 20, dtype=np.int32)
        tokens = np.arange(samples * 20, dtype=np.int32)
        kept = np.arange(samples, dtype=np.int32)
        encoded = Encoded(samples, dict.fromkeys(keys, tokens), {key: lengths.copy() for key in keys}, kept, [])
        yield encoded, np.arange(number * samples, (number + 1) * samples, dtype=np.int64)

    total = num_parts * samples
    print(f"\njoining {num_parts} parts of {samples} samples and two keys")
    for name, options in (("as they come", OrderOptions()), ("shuffled", OrderOptions(shuffle=True))):
        parts = [write_part(directory / f"{name}-{number}", keys, batch(number)) for number in range(num_parts)]
        before, peak = resident_mb(), Peak()
        with peak:
            out = directory / f"{name}-joined"
            out.mkdir()
            joined = join_parts(parts, out, keys)
            write_outputs(joined, make_order([total], options), None, out / "data", keeps_columns=False)
        growth = peak.mb - before
        each = growth * 1e6 / total / len(keys)
        print(f"{name:13} adds {growth:6.1f} MB to {before:.0f} MB: {each:.0f} bytes a sample and key")


class Peak:
    """Watches this process's resident memory."""

    def __enter__(self) -> None:
        self.mb, self._stop = resident_mb(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.mb = max(self.mb, resident_mb())


def resident_mb() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def write_jsonl(path: Path, texts: list[str]) -> Path:
    """Write texts, one object a line."""
    with path.open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return path


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="directory with tokenizer.json")
    parser.add_argument("--documents", type=int, default=60_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--without", nargs="+", metavar="NAME", help="contenders to leave out, for the speed")
    parser.add_argument("--short", type=int, nargs="+", default=[100_000, 1_000_000], help="documents, for memory")
    parser.add_argument("--only", nargs="+", choices=["speed", "identity", "memory", "merge"])
    arguments = parser.parse_args()
    sys.path.insert(0, str(REPOSITORY))
    wanted = arguments.only or ["speed", "identity", "memory", "merge"]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if "speed" in wanted:
            speed(arguments, directory)
        if "identity" in wanted:
            identity(arguments, directory)
        if "memory" in wanted:
            memory(arguments, directory)
        if "merge" in wanted:
            merge(directory)


if __name__ == "__main__":
    main()
