"""The whole road on a small model: task and model, preprocessing, conversion, SFT, sharded GRPO, export, evaluation.

Every step is one command of the three entry scripts or of this folder; each is printed, to be copied.
"""

import argparse
import json
import sys

from steps import HERE, Steps

LAYOUTS = {"tp2": (2, 1), "pp2": (1, 2), "dp2": (1, 1)}  # (tensor, pipeline) parallel size on two ranks
STAGES = ("initial", "sft", "grpo")


def parse_args() -> argparse.Namespace:
    """Command line of run.sh."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="tp2", help="how two ranks share the actor (tp2)")
    parser.add_argument("--seed", type=int, default=0, help="of the task, the weights, the data order and sampling")
    parser.add_argument("--fast", action="store_true", help="a few iterations only: proves the road, learns little")
    parser.add_argument("--run-dir", default="runs/quickstart", help="everything is written here (runs/quickstart)")
    return parser.parse_args()


class Quickstart(Steps):
    """The steps, in order."""

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
                self.export("sft", "grpo")
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

    def train_grpo(self) -> None:
        """Reinforce right answers, the actor sharded over two ranks."""
        tensor, pipeline = LAYOUTS[self.args.layout]
        actor = {
            "load": self.checkpoints("sft"),
            "data_path": self.dir / "data" / "rl_train",
            "tensor_model_parallel_size": tensor,
            "pipeline_model_parallel_size": pipeline,
        }
        overrides = {f"actor_rollout_ref.actor_rollout.{key}": value for key, value in actor.items()}
        overrides["training.eval_data_path"] = self.dir / "data" / "rl_heldout"
        if self.args.fast:
            overrides |= {"training.train_iters": 2, "training.eval_interval": 2}
        self.posttrain("grpo", overrides)

    def evaluate(self) -> dict[str, dict[str, float]]:
        """Held-out accuracies by stage."""
        models = [self.hf_dir(stage) for stage in STAGES]
        command = [f"{HERE}/evaluate.py", *models, "--data", self.dir / "task" / "rl_heldout.jsonl"]
        [output] = self.run_together(command)
        return dict(zip(STAGES, map(json.loads, output.splitlines()), strict=True))

    def report(self, accuracies: dict[str, dict[str, float]]) -> None:
        """Write summary.json; print the table and where things are."""
        path = self.write_summary(
            {
                f"{measure}_{stage}": accuracies[stage][measure]
                for measure in ("accuracy_greedy", "accuracy_sampled")
                for stage in STAGES
            }
        )
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


if __name__ == "__main__":
    sys.exit(Quickstart(parse_args()).main())
