"""One GRPO step, generation and update, against TRL's GRPOTrainer: same model, prompts, tokens and threads, fp32.

Usage: python benchmarks/grpo_vs_trl.py [--rounds 2] [--steps 4]      (needs the `peers` extra; about four minutes)

The sides alternate, ours, TRL, ours, TRL, each round in a process of its own with one thread. A step is 8 prompts of
32 tokens, 8 samples each, and completions of exactly 64 tokens, the end token suppressed. A round's first step warms up
and is not counted. Before anything is reported, both sides must have generated the same number of tokens, with the same
entropy at the first step, where they still have the same weights. The last line printed is one JSON object.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROMPTS, SAMPLES, PROMPT_TOKENS, NEW_TOKENS = 8, 8, 32, 64
LEARNING_RATE = 1e-4
STEP_TOKENS = {"prompt": PROMPTS * SAMPLES * PROMPT_TOKENS, "completion": PROMPTS * SAMPLES * NEW_TOKENS}


def main() -> int:
    """Run the rounds, compare, print the result; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="processes per side")
    parser.add_argument("--steps", type=int, default=4, help="steps per process, the first one uncounted")
    parser.add_argument("--side", choices=sorted(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(SIDES[args.side](args.work, args.steps)))
        return 0
    with tempfile.TemporaryDirectory() as work:
        prepare(Path(work), args.steps)
        rounds = [(side, run_side(side, Path(work), args.steps)) for _ in range(args.rounds) for side in SIDES]
    mismatch = compare(rounds)
    if mismatch:
        print(f"error: the sides did different work: {mismatch}", file=sys.stderr)
        return 1
    report(rounds)
    return 0


def share_of_even_digits(completions: list[str], **columns: Any) -> list[float]:
    """The reward of both sides; cheap, and never the same for all samples of a prompt."""
    return [sum(character in "02468" for character in text) / NEW_TOKENS for text in completions]


def prepare(work: Path, steps: int) -> None:
    """Write the prompts and a Qwen2 of 4 million random parameters; index and convert them for our side."""
    import torch
    from transformers import Qwen2ForCausalLM

    sys.path.insert(0, str(ROOT / "examples" / "quickstart"))
    from make_model import make_config, make_tokenizer

    torch.manual_seed(0)
    tokenizer = make_tokenizer([])
    config = make_config(tokenizer)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 256, 1024, 4
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(work / "hf")
    tokenizer.save_pretrained(work / "hf")

    digits = random.Random(0)
    prompts = ["sort " + "".join(digits.choices("0123456789", k=PROMPT_TOKENS - 2)) for _ in range(PROMPTS * steps)]
    assert {len(tokenizer(prompt)["input_ids"]) for prompt in prompts} == {PROMPT_TOKENS}
    (work / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    door("convert_ckpt.py --load-model-type hf --save-model-type mcore", load_dir=work / "hf", save_dir=work / "mcore")
    door(
        "preprocess_data.py --handler-name PPOAlpacaStyleInstructionHandler --prompt-type empty",
        input=work / "prompts.jsonl",
        output_prefix=work / "prompts",
        tokenizer_name_or_path=work / "hf",
        map_keys='{"prompt": "prompt"}',
    )
    print(f"{model.num_parameters():,} parameters", flush=True)


def door(command: str, **options: object) -> None:
    """Run one of the entry scripts."""
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    subprocess.run([sys.executable, *command.split(), *flags], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def run_side(side: str, work: Path, steps: int) -> dict[str, Any]:
    """One round in a fresh process with one thread; returns what the side measured."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, __file__, "--side", side, "--work", str(work), "--steps", str(steps)]
    done = subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE)
    measured = json.loads(done.stdout.splitlines()[-1])
    wall, cpu = (", ".join(f"{value:.2f}" for value in measured[key]) for key in ("wall_s", "cpu_s"))
    print(f"{side:<5} wall {wall} s   cpu {cpu} s", flush=True)
    return measured


class Stopwatch:
    """Wall and CPU seconds of each step after the first."""

    def __init__(self) -> None:
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []
        self._steps = 0

    def start(self) -> None:
        """A step begins."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """It ended."""
        self._steps += 1
        if self._steps > 1:
            self.wall_s.append(time.perf_counter() - self._wall)
            self.cpu_s.append(time.process_time() - self._cpu)

    def measured(self) -> dict[str, list[float]]:
        """Seconds of the counted steps."""
        return {"wall_s": self.wall_s, "cpu_s": self.cpu_s}


def ours(work: Path, steps: int) -> dict[str, Any]:
    """Steps of our GRPO stage through the inline executor."""
    from mindllm.config import build_config
    from mindllm.stages import grpo

    watch, metrics, iteration = Stopwatch(), [], grpo.train_iteration

    def measured_iteration(*args: Any) -> dict[str, float]:
        watch.start()
        metrics.append(iteration(*args))
        watch.stop()
        return metrics[-1]

    grpo.train_iteration = measured_iteration
    with tempfile.TemporaryDirectory() as run_dir, contextlib.redirect_stdout(sys.stderr):
        grpo.run(build_config(our_config(work, steps, run_dir)))
    sequences = PROMPTS * SAMPLES
    return watch.measured() | {
        "prompt": [round(step["prompt_length/mean"] * sequences) for step in metrics],
        "completion": [round(step["response_length/mean"] * sequences) for step in metrics],
        "entropy": metrics[0]["actor/entropy"],
    }


def our_config(work: Path, steps: int, run_dir: str) -> dict[str, Any]:
    """The sections of our side's run."""
    actor = {
        "load": str(work / "mcore"),
        "data_path": str(work / "prompts"),
        "n_samples_per_prompt": SAMPLES,
        "max_prompt_length": PROMPT_TOKENS,
        "max_new_tokens": NEW_TOKENS,
        "min_new_tokens": NEW_TOKENS,
        "lr": LEARNING_RATE,
        "weight_decay": 0.0,
    }
    training = {
        "stage": "ray_grpo",
        "executor": "inline",
        "run_dir": run_dir,
        "train_iters": steps,
        "global_batch_size": PROMPTS,
        "no_shuffle": True,
        "seq_length": PROMPT_TOKENS + NEW_TOKENS,
        "sample_dump_interval": steps,
        "trackers": ["jsonl"],
    }
    reward = {"functions": [{"name": share_of_even_digits.__name__, "path": __file__}], "num_workers": 1}
    return {"training": training, "actor_rollout_ref": {"actor_rollout": actor}, "reward": reward}


def trl(work: Path, steps: int) -> dict[str, Any]:
    """Steps of TRL's trainer."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    watch = Stopwatch()

    class Timer(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            watch.start()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            watch.stop()

    with tempfile.TemporaryDirectory() as output_dir:
        config = GRPOConfig(
            output_dir=output_dir,
            max_steps=steps,
            per_device_train_batch_size=PROMPTS * SAMPLES,
            num_generations=SAMPLES,
            max_completion_length=NEW_TOKENS,
            generation_kwargs={"min_new_tokens": NEW_TOKENS},
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            beta=0.0,
            bf16=False,
            gradient_checkpointing=False,  # it would trade time for memory that nobody is short of here
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            shuffle_dataset=False,
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(work / "hf"),
            reward_funcs=share_of_even_digits,
            args=config,
            train_dataset=Dataset.from_json(str(work / "prompts.jsonl"), cache_dir=output_dir),
            processing_class=AutoTokenizer.from_pretrained(work / "hf"),
            callbacks=[Timer()],
        )
        trainer.train()
    logs = [entry for entry in trainer.state.log_history if "completions/mean_length" in entry]
    completions = [round(entry["completions/mean_length"] * PROMPTS * SAMPLES) for entry in logs]
    totals = [0.0, *(entry["num_tokens"] for entry in logs)]
    return watch.measured() | {
        "prompt": [round(totals[i + 1] - totals[i]) - count for i, count in enumerate(completions)],
        "completion": completions,
        "entropy": logs[0]["entropy"],
    }


SIDES = {"ours": ours, "trl": trl}


def compare(rounds: list[tuple[str, dict[str, Any]]]) -> str:
    """What differs between the work of the rounds; empty if nothing does."""
    for side, measured in rounds:
        for kind, expected in STEP_TOKENS.items():
            if set(measured[kind]) != {expected}:
                return f"{side} had {measured[kind]} {kind} tokens per step, not {expected}"
    entropies = [measured["entropy"] for _, measured in rounds]
    if max(entropies) - min(entropies) > 0.01 * max(entropies):
        return f"entropies at the first step are {entropies}"
    return ""


def report(rounds: list[tuple[str, dict[str, Any]]]) -> None:
    """Print CPU seconds, then the JSON line with the medians over all counted steps."""

    def median(side: str, kind: str) -> float:
        return statistics.median(value for name, measured in rounds if name == side for value in measured[kind])

    print(f"cpu seconds per step: ours {median('ours', 'cpu_s'):.2f}, TRL {median('trl', 'cpu_s'):.2f}")
    wall = {side: median(side, "wall_s") for side in SIDES}
    if any(wall[side] > 1.5 * median(side, "cpu_s") for side in SIDES):
        print("warning: steps waited for other programs of this machine; compare the CPU seconds, not the ratio below")
    result = {
        "name": "grpo_vs_trl",
        "ours": round(wall["ours"], 3),
        "other": round(wall["trl"], 3),
        "ratio": round(wall["trl"] / wall["ours"], 3),
        "unit": "seconds per GRPO step; ratio = other / ours, higher is better",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread per process",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
