"""What the quickstarts share: a run directory of their own, and the entry scripts as printed, timed steps."""

import json
import shlex
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = "examples/quickstart"
MARKER = "quickstart.json"  # a directory with this file in it is ours to start over in

Command = Sequence[object]  # a script and its arguments


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

    def preprocess(self, source: str, name: str, handler: str, *options: str) -> Command:
        """One data file to indexed data, prompts by the tokenizer's own chat template."""
        return [
            *("preprocess_data.py", "--input", self.dir / "task" / source),
            *("--output-prefix", self.dir / "data" / name, "--handler-name", handler),
            *("--tokenizer-name-or-path", self.dir / "init_hf", "--prompt-type", "hf", *options),
        ]

    def convert(self, source: Path, source_type: str, target: Path, target_type: str, *options: str) -> Command:
        """One checkpoint to another format."""
        return [
            *("convert_ckpt.py", "--load-model-type", source_type, "--save-model-type", target_type),
            *("--load-dir", source, "--save-dir", target, *options),
        ]

    def posttrain(self, stage: str, overrides: Mapping[str, object]) -> None:
        """One training run in its own run directory."""
        overrides = {"training.run_dir": self.dir / stage, "training.seed": self.args.seed, **overrides}
        changes = [f"{key}={value}" for key, value in overrides.items()]
        self.run_one(["posttrain_gpt.py", "--config-name", f"{stage}_trainer_quickstart", *changes])

    def train_sft(self, **settings: object) -> None:
        """Teach the shape of an answer; ``settings`` are keys of section ``training``."""
        # Two processes would only wait for each other: the model is small, and the RL stage shows the sharding.
        overrides = {"load": self.dir / "init_mcore", "data_path": self.dir / "data" / "sft", **settings}
        if self.args.fast:
            overrides |= {"train_iters": 20, "lr_warmup_iters": 2, "executor": "inline"}
        self.posttrain("sft", {f"training.{key}": value for key, value in overrides.items()})

    def export(self, *stages: str) -> None:
        """The last checkpoint of each stage as a Hugging Face directory."""
        self.run_together(
            *(self.convert(self.checkpoints(stage), "mcore", self.hf_dir(stage), "hf") for stage in stages)
        )

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

    def run_one(self, command: Command) -> None:
        """Print a command and run it in the repository's root, with this process's terminal.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        print_command(command)
        subprocess.run(command_line(command), cwd=ROOT, check=True)

    def run_together(self, *commands: Command) -> list[str]:
        """Print commands, run them side by side in the repository's root, print and return what each printed.

        Raises:
            subprocess.CalledProcessError: one failed; all have ended.
        """
        for command in commands:
            print_command(command)
        running = [
            subprocess.Popen(command_line(command), cwd=ROOT, text=True, stdout=subprocess.PIPE) for command in commands
        ]
        outputs = [process.communicate()[0] for process in running]
        print("\n" + "".join(outputs), end="", flush=True)
        for process in running:
            if process.returncode != 0:
                raise subprocess.CalledProcessError(process.returncode, process.args)
        return outputs


def command_line(command: Command) -> list[str]:
    """The command with this interpreter in front; scripts are relative to the repository's root."""
    return [sys.executable, *map(str, command)]


def print_command(command: Command) -> None:
    """Show the command as a user would type it in the repository's root."""
    shown = [str(argument) for argument in (sys.executable, *command)]
    shown[0] = shown[0].removeprefix(f"{ROOT}/")
    print(f"\n$ {shlex.join(shown)}", flush=True)
