"""What the quickstarts share: a run directory of their own, and the entry scripts as printed, timed steps."""

import json
import shlex
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MARKER = "quickstart.json"  # a directory with this file in it is ours to start over in


class Steps:
    """Runs commands in the repository's root and keeps how long each phase took. Subclasses say which, in ``run``."""

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self.dir = Path(args.run_dir)
        self.seconds: dict[str, float] = {}

    def run(self) -> None:
        """All steps, then the summary."""
        raise NotImplementedError

    def main(self) -> int:
        """Start over in the run directory and run all steps; returns the exit status."""
        if self.dir.exists() and any(self.dir.iterdir()) and not (self.dir / MARKER).exists():
            print(f"error: {self.dir} is not empty and not a quickstart's; choose another --run-dir", file=sys.stderr)
            return 2
        if self.dir.exists():
            shutil.rmtree(self.dir)
        self.dir.mkdir(parents=True)
        (self.dir / MARKER).write_text(json.dumps(vars(self.args)) + "\n", encoding="utf-8")
        try:
            self.run()
        except subprocess.CalledProcessError as error:
            print(f"error: this step failed with status {error.returncode}: {shlex.join(error.cmd)}", file=sys.stderr)
            return 1
        return 0

    def preprocess(self, source: str, name: str, handler: str, *options: str) -> None:
        """One data file to indexed data, prompts by the tokenizer's own chat template."""
        self.python(
            *("preprocess_data.py", "--input", self.dir / "task" / source),
            *("--output-prefix", self.dir / "data" / name, "--handler-name", handler),
            *("--tokenizer-name-or-path", self.dir / "init_hf", "--prompt-type", "hf", *options),
        )

    def convert(self, source: Path, target: Path, *options: str) -> None:
        """One checkpoint to another format."""
        self.python("convert_ckpt.py", "--load-dir", source, "--save-dir", target, *options)

    def posttrain(self, stage: str, overrides: Mapping[str, object]) -> None:
        """One training run in its own run directory."""
        overrides = {"training.run_dir": self.dir / stage, "training.seed": self.args.seed, **overrides}
        changes = [f"{key}={value}" for key, value in overrides.items()]
        self.python("posttrain_gpt.py", "--config-name", f"{stage}_trainer_quickstart", *changes)

    def train_sft(self, **settings: object) -> None:
        """Teach the shape of an answer; ``settings`` are keys of section ``training``."""
        # Two processes would only wait for each other: the model is small, and the RL stage shows the sharding.
        overrides = {"load": self.dir / "init_mcore", "data_path": self.dir / "data" / "sft", **settings}
        if self.args.fast:
            overrides |= {"train_iters": 20, "lr_warmup_iters": 2, "executor": "inline"}
        self.posttrain("sft", {f"training.{key}": value for key, value in overrides.items()})

    def export(self, stage: str) -> None:
        """The stage's last checkpoint as a Hugging Face directory."""
        formats = ("--load-model-type", "mcore", "--save-model-type", "hf")
        self.convert(self.checkpoints(stage), self.hf_dir(stage), *formats)

    def checkpoints(self, stage: str) -> Path:
        """Checkpoints of the model that ``stage`` trained."""
        return self.dir / stage / "checkpoints" / "actor"

    def hf_dir(self, stage: str) -> Path:
        """Hugging Face directory of the model after ``stage``."""
        return self.dir / f"{stage if stage != 'initial' else 'init'}_hf"

    def write_summary(self, figures: Mapping[str, float]) -> Path:
        """Write ``figures`` and the seconds of every phase; returns the path of summary.json."""
        seconds = {f"seconds_{phase}": round(value, 1) for phase, value in self.seconds.items()}
        path = self.dir / "summary.json"
        path.write_text(json.dumps({**figures, **seconds}, indent=2) + "\n", encoding="utf-8")
        return path

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the wall time of a block as ``seconds_<name>``."""
        start = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - start

    def python(self, *command: object, capture: bool = False) -> str:
        """Print and run one command in the repository's root; returns its standard output if ``capture``.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        words = [str(word) for word in command]
        if words[0].startswith(str(ROOT)):
            words[0] = str(Path(words[0]).relative_to(ROOT))
        print(f"\n$ python {shlex.join(words)}", flush=True)
        stdout = subprocess.PIPE if capture else None
        result = subprocess.run([sys.executable, *words], cwd=ROOT, check=True, text=True, stdout=stdout)
        return result.stdout or ""
