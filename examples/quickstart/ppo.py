"""PPO with four models: task and model, SFT, a reward model from preference pairs, PPO, export, evaluation.

Every step is one command of the three entry scripts or of this folder; each is printed, to be copied.
"""

import argparse
import json
import sys

from steps import HERE, Steps

STAGES = ("sft", "ppo")
PAIRS, PROMPTS = ("pairs_train", "pairs_heldout"), ("rl_train", "rl_heldout")


def parse_args() -> argparse.Namespace:
    """Command line of ppo.sh."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the task, the weights, the data order and sampling")
    parser.add_argument("--fast", action="store_true", help="a few iterations only: proves the road, learns little")
    parser.add_argument(
        "--run-dir", default="runs/quickstart_ppo", help="everything is written here (runs/quickstart_ppo)"
    )
    return parser.parse_args()


class PPOQuickstart(Steps):
    """The steps, in order."""

    def run(self) -> None:
        """All of them, then the summary."""
        with self.phase("total"):
            with self.phase("prepare"):
                self.prepare()
            with self.phase("sft"):
                self.train_sft(train_iters=112)  # until the sentences are right: PPO has no reward for grammar
            with self.phase("orm"):
                self.train_reward_model()
            with self.phase("ppo"):
                self.train_ppo()
            with self.phase("export"):
                self.export("orm", *STAGES)
            with self.phase("evaluate"):
                figures = self.evaluate()
        self.report(figures)

    def prepare(self) -> None:
        """Task, model, indexed data and the mcore checkpoint of the initial model."""
        seed, words = str(self.args.seed), self.dir / "task" / "words.txt"
        self.run_one([f"{HERE}/make_reviews.py", self.dir / "task", "--seed", seed])
        self.run_one([f"{HERE}/make_model.py", self.dir / "init_hf", "--seed", seed, "--words", words])
        columns = ("--map-keys", '{"prompt": "prompt"}')
        self.run_together(
            self.preprocess("sft.jsonl", "sft", "AlpacaStyleInstructionHandler"),
            *(self.preprocess(f"{name}.jsonl", name, "AlpacaStylePairwiseHandler") for name in PAIRS),
            *(self.preprocess(f"{name}.jsonl", name, "PPOAlpacaStyleInstructionHandler", *columns) for name in PROMPTS),
            self.convert(self.dir / "init_hf", "hf", self.dir / "init_mcore", "mcore", "--model-type-hf", "qwen2"),
        )

    def train_reward_model(self) -> None:
        """Put a scalar head on the SFT model; teach it which of two reviews is preferred."""
        start = self.dir / "reward_init_mcore"
        head = ("--head", "reward", "--seed", str(self.args.seed))
        self.run_one(self.convert(self.checkpoints("sft"), "mcore", start, "mcore", *head))
        overrides: dict[str, object] = {
            "training.load": start,
            "training.data_path": self.dir / "data" / "pairs_train",
            "training.eval_data_path": self.dir / "data" / "pairs_heldout",
        }
        if self.args.fast:
            overrides |= {"training.train_iters": 10, "training.eval_interval": 10, "training.executor": "inline"}
        self.posttrain("orm", overrides)

    def train_ppo(self) -> None:
        """Four models on four ranks: the actor on two, the critic on one, reference and reward model on one."""
        overrides: dict[str, object] = {
            "actor_rollout_ref.actor_rollout.load": self.checkpoints("sft"),
            "actor_rollout_ref.actor_rollout.data_path": self.dir / "data" / "rl_train",
            "actor_rollout_ref.ref.load": self.checkpoints("sft"),
            "critic.load": self.checkpoints("orm"),
            "reward.load": self.checkpoints("orm"),
            "training.eval_data_path": self.dir / "data" / "rl_heldout",
        }
        if self.args.fast:
            overrides |= {"training.train_iters": 2, "training.eval_interval": 2, "critic.critic_warmup_iters": 1}
        self.posttrain("ppo", overrides)

    def evaluate(self) -> dict[str, float]:
        """Held-out figures: of the reviews that the policy writes by stage, and of the reward model."""
        task = self.dir / "task"
        models = [self.hf_dir(stage) for stage in STAGES]
        data = ("--prompts", task / "rl_heldout.jsonl", "--pairs", task / "pairs_heldout.jsonl")
        command = [f"{HERE}/evaluate_reviews.py", *models, "--reward-model", self.hf_dir("orm"), *data]
        [output] = self.run_together(command)
        judge, *policies = map(json.loads, output.splitlines())
        figures = {"pair_accuracy_orm": judge["pair_accuracy"]}
        for stage, policy in zip(STAGES, policies, strict=True):
            figures |= {f"{measure}_{stage}": policy[measure] for measure in ("score", "positive_share")}
        return figures

    def report(self, figures: dict[str, float]) -> None:
        """Write summary.json; print the table and where things are."""
        path = self.write_summary(figures)
        print(f"\nheld-out reviews   {'reward-model score':>18} {'positive share':>15}")
        for stage, label in zip(STAGES, ("before PPO", "after PPO"), strict=True):
            print(f"{label:<18} {figures[f'score_{stage}']:>18.3f} {figures[f'positive_share_{stage}']:>15.3f}")
        print(f"reward model prefers the better of two held-out reviews: {figures['pair_accuracy_orm']:.3f}")
        print(
            f"\nrun directory   {self.dir}   ({self.seconds['total']:.0f} s; figures in {path})"
            f"\nmetrics         {self.dir / 'ppo' / 'metrics.jsonl'}"
            f"\nsamples         {self.dir / 'ppo' / 'samples'}"
            f"\nfinal HF model  {self.hf_dir('ppo')}"
        )


if __name__ == "__main__":
    sys.exit(PPOQuickstart(parse_args()).main())
