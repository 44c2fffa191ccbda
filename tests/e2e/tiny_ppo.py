"""What PPO adds to the tiny task: preference pairs, a reward model trained on them, and the two configurations."""

import json
from pathlib import Path

import yaml

from mindllm.convert.cli import main as convert
from mindllm.preprocess.cli import main as preprocess
from tests.e2e import tiny
from tests.e2e.runs import Workspace, post_train, run_here

NUM_PAIRS = 200
ORM_ITERS = 24


def make_ppo_workspace(base: Workspace, root: Path) -> Workspace:
    """``base``'s model and prompts, with pairs/, reward_init/, reward/ (trained by the real command) and configs/."""
    made = Workspace(root)
    for name in ("hf", "mcore", "task", "data"):
        (root / name).symlink_to(getattr(base, name))
    (root / "pairs").mkdir()
    write_pairs(root / "pairs")
    for name in ("train", "heldout"):
        index_pairs(made, root / f"pairs/{name}.jsonl", root / f"pairs/{name}")
    kinds = ["--load-model-type", "mcore", "--save-model-type", "mcore", "--head", "reward"]
    outcome = run_here(convert, [*kinds, "--load-dir", base.mcore, "--save-dir", made.reward_init])
    assert outcome.status == 0, outcome.err
    write_configs(made)
    post_train(made.arguments("orm", root / "orm"))
    (root / "reward").symlink_to(root / "orm/checkpoints/actor")
    return made


def write_pairs(directory: Path) -> None:
    """The chosen answer repeats the digit four times; the rejected one is wrong in one to four places."""
    rows = []
    for number in range(NUM_PAIRS):
        digit, verb = number % 10, tiny.VERBS[number // 10 % len(tiny.VERBS)]
        wrong = [(digit + 1 + (number * 7 + place) % 9) % 10 for place in range(4)]
        mistakes = 1 + number % 4
        places = [wrong[place] if (place + number) % 4 < mistakes else digit for place in range(4)]
        rows.append(
            {
                "instruction": f"{verb} {digit}",
                "chosen": " ".join([str(digit)] * 4),
                "rejected": " ".join(map(str, places)),
            }
        )
    held_out = [{**row, "instruction": f"say now {row['chosen'][0]}"} for row in rows[::3]]
    for name, part in (("train", rows), ("heldout", held_out)):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))


def index_pairs(workspace: Workspace, source: Path, prefix: Path) -> None:
    """Run the preprocessor on pairs."""
    where = ["--input", source, "--output-prefix", prefix, "--handler-name", "AlpacaStylePairwiseHandler"]
    columns = ["--map-keys", '{"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}']
    text = ["--tokenizer-name-or-path", workspace.hf, "--prompt-type", "empty"]
    outcome = run_here(preprocess, [*where, *columns, *text])
    assert outcome.status == 0, outcome.err


def write_configs(workspace: Workspace) -> None:
    """Write orm.yaml and ppo.yaml, inline and TP1, into the workspace's configs."""
    root = workspace.root
    common = {
        "seed": 0,
        "executor": "inline",
        "seq_length": 16,
        "lr": 1e-3,
        "weight_decay": 0.0,
        "trackers": ["jsonl"],
        "log_interval": 1000,
        "save_interval": 1000,
    }
    orm = {
        **common,
        "stage": "orm",
        "load": str(root / "reward_init"),
        "data_path": str(root / "pairs/train"),
        "train_iters": ORM_ITERS,
        "global_batch_size": 32,
        "lr": 3e-3,
        "eval_data_path": str(root / "pairs/heldout"),
        "eval_interval": ORM_ITERS,
    }
    actor = {
        "load": str(root / "mcore"),
        "data_path": str(root / "data/train"),
        "do_sample": True,
        "ppo_mini_batch_size": 16,
        "shuffle_minibatch": True,
        "max_prompt_length": 8,
        "max_new_tokens": 5,
    }
    ppo = {
        "training": {**common, "stage": "ray_ppo", "train_iters": 6, "global_batch_size": 32},
        "actor_rollout_ref": {"actor_rollout": actor, "ref": {"load": str(root / "mcore")}},
        "critic": {"load": str(root / "reward"), "critic_mini_batch_size": 16},
        "reward": {"load": str(root / "reward")},
        "algorithm": {
            "gamma": 1.0,
            "lam": 0.95,
            "missing_eos_penalty": 1.0,
            "kl_ctrl": {"type": "adaptive", "kl_coef": 0.05, "target_kl": 0.02, "horizon": 100},
        },
    }
    (root / "configs").mkdir()
    (root / "configs/orm.yaml").write_text(yaml.safe_dump({"training": orm}))
    (root / "configs/ppo.yaml").write_text(yaml.safe_dump(ppo))
