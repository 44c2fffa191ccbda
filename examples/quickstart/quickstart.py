"""The whole road on a small model: task and model, preprocessing, conversion, SFT, sharded GRPO, export, evaluation.

Every step is one command of the three entry scripts or of this folder; each is printed, to be copied.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = "examples/quickstart"
MARKER = "quickstart.json"  # a directory with this file in it is ours to start over in

LAYOUTS = {"tp2": (2, 1), "pp2": (1, 2), "dp2": (1, 1)}  # (tensor, pipeline) parallel size on two ranks
STAGES = ("initial", "sft", "grpo")

Command = Sequence[object]  # a script and its arguments


def main() -> int:
    """Run all steps; returns the exit status."""
    args = parse_args()
    run_dir = Path(args.run_dir)
    if run_dir.exists() and any(run_dir.iterdir()) and not (run_dir / MARKER).exists():
        print(f"error: {run_dir} is not empty and not a quickstart's; choose another --run-dir", file=sys.stderr)
        return 2
    if run_dir.exists():
        shutil.rmtree(run_dir)
    run_dir.mkdir(parents=True)
    (run_dir / MARKER).write_text(json.dumps(vars(args)) + "\n", encoding="utf-8")

    quickstart = Quickstart(args, run_dir)
    try:
        quickstart.run()
    except subprocess.CalledProcessError as error:
        print(f"error: this step failed with status {error.returncode}: {shlex.join(error.cmd)}", file=sys.stderr)
        return 1
    return 0


def parse_args() -> argparse.Namespace:
    """Command line of run.sh."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="tp2", help="how two ranks share the actor (tp2)")
    parser.add_argument("--seed", type=int, default=0, help="of the task, the weights, the data order and sampling")
    parser.add_argument("--fast", action="store_true", help="a few iterations only: proves the road, learns little")
    parser.add_argument("--run-dir", default="runs/quickstart", help="everything is written here (runs/quickstart)")
    return parser.parse_args()


class Quickstart:
    """The steps, in order, and how long each took."""

    def __init__(self, args: argparse.Namespace, run_dir: Path) -> None:
        self.args = args
        self.dir = run_dir
        self.seconds: dict[str, float] = {}

    def run(self) -> None:
        """All of them, then the summary."""
        with self.phase("total"):
            with self.phase("prepare"):
                self.prepare()
            with self.phase("sft"):
                self.train_sft()
            with self.phase("grpo"):
                self.train_grpo()
            with self.phase("export"):
                self.export()
            with self.phase("evaluate"):
                accuracies = self.evaluate()
        self.report(accuracies)

    def prepare(self) -> None:
        """Task, model, indexed data and the mcore checkpoint of the initial model."""
        seed = str(self.args.seed)
        columns = ("--map-keys", '{"prompt": "prompt"}')
        self.run_together(
            [f"{HERE}/make_task.py", self.dir / "task", "--seed", seed],
            [f"{HERE}/make_model.py", self.dir / "init_hf", "--seed", seed],
        )
        self.run_together(
            self.preprocess("sft.jsonl", "sft", "AlpacaStyleInstructionHandler"),
            self.preprocess("rl_train.parquet", "rl_train", "PPOAlpacaStyleInstructionHandler", *columns),
            self.preprocess("rl_heldout.jsonl", "rl_heldout", "PPOAlpacaStyleInstructionHandler", *columns),
            self.convert(self.dir / "init_hf", "hf", self.dir / "init_mcore", "mcore", "--model-type-hf", "qwen2"),
        )

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

    def train_sft(self) -> None:
        """Teach the shape of an answer; stops long before the task is solved."""
        # Two processes would only wait for each other: the model is small, and GRPO shows the sharding.
        overrides = {"load": self.dir / "init_mcore", "data_path": self.dir / "data" / "sft"}
        if self.args.fast:
            overrides |= {"train_iters": 20, "lr_warmup_iters": 2, "executor": "inline"}
        self.posttrain("sft", {f"training.{key}": value for key, value in overrides.items()})

    def train_grpo(self) -> None:
        """Reinforce right answers, the actor sharded over two ranks."""
        tensor, pipeline = LAYOUTS[self.args.layout]
        actor = {
            "load": self.dir / "sft" / "checkpoints" / "actor",
            "data_path": self.dir / "data" / "rl_train",
            "tensor_model_parallel_size": tensor,
            "pipeline_model_parallel_size": pipeline,
        }
        overrides = {f"actor_rollout_ref.actor_rollout.{key}": value for key, value in actor.items()}
        overrides["training.eval_data_path"] = self.dir / "data" / "rl_heldout"
        if self.args.fast:
            overrides |= {"training.train_iters": 2, "training.eval_interval": 2}
        self.posttrain("grpo", overrides)

    def posttrain(self, stage: str, overrides: dict[str, object]) -> None:
        """One training run in its own run directory."""
        overrides = {"training.run_dir": self.dir / stage, "training.seed": self.args.seed, **overrides}
        changes = [f"{key}={value}" for key, value in overrides.items()]
        self.run_one(["posttrain_gpt.py", "--config-name", f"{stage}_trainer_quickstart", *changes])

    def export(self) -> None:
        """The last checkpoint of both stages as Hugging Face directories."""
        trained = {stage: self.dir / stage / "checkpoints" / "actor" for stage in ("sft", "grpo")}
        self.run_together(*(self.convert(path, "mcore", self.hf_dir(stage), "hf") for stage, path in trained.items()))

    def evaluate(self) -> dict[str, dict[str, float]]:
        """Held-out accuracies by stage."""
        models = [self.hf_dir(stage) for stage in STAGES]
        command = [f"{HERE}/evaluate.py", *models, "--data", self.dir / "task" / "rl_heldout.jsonl"]
        [output] = self.run_together(command)
        return dict(zip(STAGES, map(json.loads, output.splitlines()), strict=True))

    def hf_dir(self, stage: str) -> Path:
        """Hugging Face directory of the model after ``stage``."""
        return self.dir / f"{stage if stage != 'initial' else 'init'}_hf"

    def report(self, accuracies: dict[str, dict[str, float]]) -> None:
        """Write summary.json; print the table and where things are."""
        summary = {
            f"{measure}_{stage}": accuracies[stage][measure]
            for measure in ("accuracy_greedy", "accuracy_sampled")
            for stage in STAGES
        }
        summary |= {f"seconds_{phase}": round(seconds, 1) for phase, seconds in self.seconds.items()}
        path = self.dir / "summary.json"
        path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")

        print(f"\nheld-out accuracy   {'greedy':>8} {'sampled':>8}")
        for stage, label in zip(STAGES, ("before SFT", "after SFT", "after GRPO"), strict=True):
            greedy, sampled = accuracies[stage]["accuracy_greedy"], accuracies[stage]["accuracy_sampled"]
            print(f"{label:<19} {greedy:>8.3f} {sampled:>8.3f}")
        print(
            f"\nrun directory   {self.dir}   ({self.seconds['total']:.0f} s; figures in {path})"
            f"\nmetrics         {self.dir / 'grpo' / 'metrics.jsonl'}"
            f"\nsamples         {self.dir / 'grpo' / 'samples'}"
            f"\nfinal HF model  {self.hf_dir('grpo')}"
        )

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
    """Show the command as a user would type it."""
    print(f"\n$ python {shlex.join(map(str, command))}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
