"""Record what the three programs do on fixed inputs, and compare two records.

For changes that must keep behavior: record before and after on the same machine, then compare.

    python scripts/behavior.py record before.json
    python scripts/behavior.py compare scripts/behavior_before_rework.json after.json --renamed scripts/renamed.json

A record has indexed data and converted weights as hashes; final weights, metrics (without times and memory) and samples
of a run of each stage; the sentences that bad inputs get; and the keys that overrides change. It runs the entry scripts
alone, so it depends on no module of the package.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: the order of sums depends on it

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.e2e import tiny  # noqa: E402  (needs the path)

ACTOR = "actor_rollout_ref.actor_rollout"
MEASURED = ("timing/", "memory/")
Record = dict[str, Any]


def main() -> int:
    """Record or compare; returns the exit status, 1 where the records differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record").add_argument("output", type=Path)
    comparison = commands.add_parser("compare")
    comparison.add_argument("before", type=Path)
    comparison.add_argument("after", type=Path)
    comparison.add_argument("--renamed", type=Path, help="JSON object: what was written before -> what is written now")
    args = parser.parse_args()
    if args.command == "compare":
        renamed = json.loads(args.renamed.read_text("utf-8")) if args.renamed else {}
        return compare(json.loads(args.before.read_text("utf-8")), json.loads(args.after.read_text("utf-8")), renamed)
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as directory:
        args.output.write_text(json.dumps(record(Path(directory)), indent=1, sort_keys=True) + "\n", "utf-8")
    return 0


def compare(before: Record, after: Record, renamed: dict[str, str]) -> int:
    """Print every entry that differs, after ``renamed`` is applied to the old one; returns the exit status."""
    text = json.dumps(before, ensure_ascii=False)
    for old, new in sorted(renamed.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(json.dumps(old, ensure_ascii=False)[1:-1], json.dumps(new, ensure_ascii=False)[1:-1])
    old_entries, new_entries = (dict(flat(entries)) for entries in (json.loads(text), after))
    different = [key for key in {**old_entries, **new_entries} if old_entries.get(key) != new_entries.get(key)]
    for key in sorted(different):
        print(f"{key}\n  before: {old_entries.get(key)}\n  after:  {new_entries.get(key)}")
    print(f"{len(new_entries)} entries, {len(different)} differ")
    return 1 if different else 0


def flat(entries: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of nested objects."""
    if isinstance(entries, dict) and entries:
        for name, value in entries.items():
            yield from flat(value, f"{key} > {name}" if key else name)
    else:
        yield key, entries


def record(work: Path) -> Record:
    """Make the inputs in ``work`` and run everything."""
    models = {"hf": work / "hf", "qwen2": work / "qwen2", "qwen3": work / "qwen3"}
    tiny.write_model(models["hf"])
    write_model(models["qwen2"], "Qwen2Config", "Qwen2ForCausalLM")
    write_model(models["qwen3"], "Qwen3Config", "Qwen3ForCausalLM", head_dim=16)
    tiny.write_tasks(work / "task")
    write_rows(work / "rows")
    return {
        "data": record_data(work),
        "models": record_models(work, models),
        "runs": record_runs(work),
        "overrides": record_overrides(work),
        "messages": record_messages(work),
    }


def write_model(directory: Path, config_class: str, model_class: str, **more: int) -> None:
    """Write a tiny random Hugging Face model with the tokenizer of `tiny`."""
    import torch
    import transformers

    config = getattr(transformers, config_class)(
        vocab_size=len(tiny.VOCABULARY),
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=False,
        eos_token_id=0,
        pad_token_id=0,
        **more,
    )
    torch.manual_seed(1)
    getattr(transformers, model_class)(config).save_pretrained(directory)
    tiny.write_tokenizer(directory)


def run(script: str, *arguments: object, work: Path) -> Record:
    """Run an entry script; exit status, and what it prints with ``work`` and the root left out."""
    words = [script, *map(str, arguments)]
    if script == "preprocess_data.py":  # hides torch from the process it runs in
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        return {"status": done.returncode, "out": anywhere(done.stdout, work), "err": anywhere(done.stderr, work)}
    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = words
    status: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        status = end.code or 0
    finally:
        sys.argv = argv
    return {"status": status, "out": anywhere(out.getvalue(), work), "err": anywhere(err.getvalue(), work)}


def succeed(script: str, *arguments: object, work: Path) -> None:
    """Run an entry script that must succeed."""
    done = run(script, *arguments, work=work)
    if done["status"]:
        raise RuntimeError(f"{script} {arguments}: {done}")


def anywhere(text: str, work: Path) -> str:
    """``text`` without the directories that differ between two records."""
    return text.replace(str(work), "WORK").replace(str(ROOT), "ROOT")


def digest(content: bytes) -> str:
    """First 16 hexadecimal digits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


TURNS = [{"role": "user", "content": "say 1"}, {"role": "assistant", "content": "1 1"}]
ROWS: dict[str, list[dict[str, Any]]] = {
    "alpaca": [
        {"instruction": f"say {n}", "input": "now", "output": f"{n} {n}", "system": "echo", "id": n, "tags": [str(n)]}
        for n in range(10)
    ],
    "history": [{"instruction": "say 2", "output": "2 2", "history": [["say 1", "1 1"]]}],
    "bad": [{"instruction": "say 1", "output": "1"}, {"instruction": None, "output": "1"}, {"output": 3}],
    "sharegpt": [
        {"conversations": [{"from": "human", "value": f"say {n}"}, {"from": "gpt", "value": f"{n} {n}"}]}
        for n in range(5)
    ],
    "openai": [{"messages": TURNS}, {"messages": [{"role": "system", "content": "echo"}, *TURNS, *TURNS]}],
    "pairs": [{"instruction": f"say {n}", "chosen": f"{n} {n}", "rejected": "once"} for n in range(5)],
    "sharegpt_pairs": [
        {
            "conversations": [{"from": "human", "value": "say 1"}],
            "chosen": {"from": "gpt", "value": "1"},
            "rejected": {"from": "gpt", "value": "2"},
        }
    ],
    "kto": [{"prompt": "say 1", "completion": "1", "label": label} for label in (True, False)],
    "text": [{"text": "say 1 now"}, {"text": "repeat digit 2"}],
    "process": [{"input": "say 1 then say 2 then", "value": ["1", "0"]}],
}
# name -> (rows, handler, flags)
DATA: dict[str, tuple[str, str, list[str]]] = {
    "sft": ("alpaca", "AlpacaStyleInstructionHandler", []),
    "sft packed": ("alpaca", "AlpacaStyleInstructionHandler", ["--pack", "--seq-length", "16"]),
    "sft neat-packed": ("alpaca", "AlpacaStyleInstructionHandler", ["--neat-pack", "--seq-length", "16"]),
    "sft shuffled and split": (
        "alpaca",
        "AlpacaStyleInstructionHandler",
        ["--shuffle", "--seed", "3", "--split", "6,2,2", "--max-samples", "9"],
    ),
    "sft truncated": ("alpaca", "AlpacaStyleInstructionHandler", ["--seq-length", "5", "--overlong", "truncate"]),
    "sft dropped": ("alpaca", "AlpacaStyleInstructionHandler", ["--seq-length", "5", "--overlong", "drop"]),
    "sft history": ("history", "AlpacaStyleInstructionHandler", ["--train-on-history"]),
    "sft two workers": ("alpaca", "AlpacaStyleInstructionHandler", ["--workers", "2", "--n-subs", "2"]),
    "skipped rows": ("bad", "AlpacaStyleInstructionHandler", ["--on-bad-row", "skip"]),
    "prompts": (
        "alpaca",
        "PPOAlpacaStyleInstructionHandler",
        ["--dataset-additional-keys", "id", "tags", "--seq-length", "8"],
    ),
    "r1 prompts": ("alpaca", "R1AlpacaStyleInstructionHandler", []),
    "sharegpt": ("sharegpt", "SharegptStyleInstructionHandler", []),
    "sharegpt prompts": ("sharegpt", "PPOSharegptStyleInstructionHandler", []),
    "r1 sharegpt": ("sharegpt", "R1SharegptStyleInstructionHandler", []),
    "openai": ("openai", "OpenAIInstructionHandler", ["--train-on-history"]),
    "pairs": ("pairs", "AlpacaStylePairwiseHandler", []),
    "sharegpt pairs": ("sharegpt_pairs", "SharegptStylePairwiseHandler", []),
    "kto": ("kto", "KTOHandler", []),
    "pretrain": ("text", "GeneralPretrainHandler", ["--append-eod"]),
    "process rewards": (
        "process",
        "AlpacaStyleProcessRewardHandler",
        ["--placeholder-token", "then", "--reward-tokens", "1", "0"],
    ),
}


def write_rows(directory: Path) -> None:
    """Write each list of `ROWS` as jsonl."""
    directory.mkdir()
    for name, rows in ROWS.items():
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def data_flags(work: Path, rows: str, prefix: Path, handler: str, *more: str) -> list[object]:
    """Flags of preprocess_data.py."""
    files = ["--input", work / "rows" / f"{rows}.jsonl", "--output-prefix", prefix, "--handler-name", handler]
    template = [] if "Pretrain" in handler or "ProcessReward" in handler else ["--prompt-type", "empty"]
    return [*files, "--tokenizer-name-or-path", work / "hf", *template, *more]


def record_data(work: Path) -> Record:
    """Hash of every file that each case of `DATA` writes, and what is said."""
    found: Record = {}
    for name, (rows, handler, flags) in DATA.items():
        directory = work / "indexed" / name.replace(" ", "_")
        directory.mkdir(parents=True)
        done = run("preprocess_data.py", *data_flags(work, rows, directory / "data", handler, *flags), work=work)
        said = {name: [line for line in done[name].splitlines() if "documents" not in line] for name in ("out", "err")}
        found[name] = {"status": done["status"], **said}
        for file in sorted(directory.iterdir()):
            is_text = file.suffix == ".json"
            content = anywhere(file.read_text("utf-8"), work).encode() if is_text else file.read_bytes()
            found[name][file.name] = digest(content)
    return found


def convert(work: Path, source: Path, target: Path, kinds: str, *more: object) -> None:
    """Run convert_ckpt.py; ``kinds`` is such as ``hf-mcore``."""
    load, save = kinds.split("-")
    types = ["--load-model-type", load, "--save-model-type", save]
    succeed("convert_ckpt.py", *types, "--load-dir", source, "--save-dir", target, *more, work=work)


def tensors_of(directory: Path) -> Record:
    """Hash of every tensor of the safetensors files in a directory."""
    from safetensors.torch import load_file

    found = {}
    for file in sorted(directory.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            found[name] = f"{tensor.dtype} {list(tensor.shape)} {digest(tensor.contiguous().numpy().tobytes())}"
    return found


def files_of(directory: Path, work: Path) -> Record:
    """Hash of every file below a directory; JSON without what differs between two records."""
    found = {}
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        content = file.read_bytes()
        if file.suffix in (".json", ".txt"):
            content = anywhere(content.decode(), work).encode()
        found[str(file.relative_to(directory))] = digest(content)
    return found


def record_models(work: Path, models: dict[str, Path]) -> Record:
    """Converted files of each model in each format, and the tensors of the way back."""
    found: Record = {}
    layouts = {
        "tp2-pp2": ["--target-tensor-parallel-size", 2, "--target-pipeline-parallel-size", 2],
        "vpp": ["--target-pipeline-parallel-size", 2, "--num-layers-per-virtual-pipeline-stage", 1],
    }
    for name, model in models.items():
        convert(work, model, work / f"mcore_{name}", "hf-mcore")
        convert(work, work / f"mcore_{name}", work / f"back_{name}", "mcore-hf")
        found[f"{name} mcore"] = files_of(work / f"mcore_{name}", work)
        found[f"{name} back"] = tensors_of(work / f"back_{name}")
        for layout, flags in layouts.items() if name != "hf" else ():
            target = work / f"{layout}_{name}"
            convert(work, model, target, "hf-mcore", *flags, "--ckpt-format", "torch")
            found[f"{name} {layout}"] = [str(path.relative_to(target)) for path in sorted(target.rglob("*.pt"))]
            convert(work, target, work / f"back_{layout}_{name}", "mcore-hf")
            found[f"{name} {layout} back"] = tensors_of(work / f"back_{layout}_{name}")
    convert(work, work / "mcore_hf", work / "reward_init", "mcore-mcore", "--head", "reward")
    found["reward head"] = files_of(work / "reward_init", work)
    return found


def write_configs(work: Path) -> None:
    """Write a small configuration of each stage into ``work``/configs."""
    common = {"executor": "inline", "seq_length": 16, "lr": 1e-3, "trackers": ["jsonl"], "train_iters": 4}
    prompts = {"data_path": str(work / "runs_data/prompts"), "max_prompt_length": 8, "max_new_tokens": 4}
    reward = {"functions": [{"name": "fraction_right", "path": str(work / "task/rewards.py")}], "num_workers": 1}
    load = {"load": str(work / "mcore_hf")}
    heads = {"load": str(work / "reward_init")}
    configs = {
        "sft": {
            "training": {
                **(common | load),
                "stage": "sft",
                "data_path": str(work / "runs_data/sft"),
                "global_batch_size": 8,
                "eval_data_path": str(work / "runs_data/sft"),
                "eval_interval": 2,
            }
        },
        "orm": {
            "training": {
                **(common | heads),
                "stage": "orm",
                "data_path": str(work / "runs_data/pairs"),
                "global_batch_size": 4,
            }
        },
        "grpo": {
            "training": {
                **(common | load),
                "stage": "ray_grpo",
                "global_batch_size": 8,
                "eval_data_path": str(work / "runs_data/prompts"),
                "eval_interval": 2,
                "export_hf": str(work / "export"),
            },
            "actor_rollout_ref": {"actor_rollout": {**prompts, "n_samples_per_prompt": 4, "ppo_mini_batch_size": 16}},
            "algorithm": {"use_kl_loss": True, "kl_loss_coef": 0.01},
            "reward": reward,
        },
        "ppo": {
            "training": {**common, "stage": "ray_ppo", "global_batch_size": 16},
            "actor_rollout_ref": {
                "actor_rollout": {**(prompts | load), "do_sample": True, "ppo_mini_batch_size": 8},
                "ref": load,
            },
            "critic": {**heads, "critic_mini_batch_size": 8},
            "reward": {**heads, **reward},
            "algorithm": {"kl_ctrl": {"type": "adaptive", "kl_coef": 0.05}},
        },
    }
    (work / "configs").mkdir()
    for name, config in configs.items():
        (work / "configs" / f"{name}.yaml").write_text(yaml.safe_dump(config), "utf-8")


def arguments_of(work: Path, name: str, *overrides: object) -> list[object]:
    """Command line of a run that has a directory of its own."""
    return [
        "--config-name",
        name,
        "--config-dir",
        work / "configs",
        f"training.run_dir={work / 'run' / name}",
        *overrides,
    ]


def record_runs(work: Path) -> Record:
    """Metrics, samples and final weights of a run of each stage; of GRPO also its exported model."""
    (work / "runs_data").mkdir()
    shutil.copy(work / "task/train.jsonl", work / "rows/prompts.jsonl")
    shutil.copy(work / "task/sft.jsonl", work / "rows/sft.jsonl")
    mapping = ["--map-keys", '{"prompt": "prompt"}']
    for rows, handler, more in (
        ("prompts", "PPOAlpacaStyleInstructionHandler", mapping),
        ("sft", "AlpacaStyleInstructionHandler", []),
        ("pairs", "AlpacaStylePairwiseHandler", []),
    ):
        prefix = work / "runs_data" / rows
        succeed("preprocess_data.py", *data_flags(work, rows, prefix, handler, *more), work=work)
    write_configs(work)
    found: Record = {}
    for name in ("sft", "orm", "grpo", "ppo"):
        done = run("posttrain_gpt.py", *arguments_of(work, name), work=work)
        if done["status"]:
            raise RuntimeError(f"{name}: {done}")
        run_dir = work / "run" / name
        lines = map(json.loads, (run_dir / "metrics.jsonl").read_text("utf-8").splitlines())
        metrics = [{key: line[key] for key in line if not key.startswith(MEASURED)} for line in lines]
        found[name] = {
            "metrics": {str(number): metric for number, metric in enumerate(metrics, 1)},
            "samples": {file.name: digest(file.read_bytes()) for file in sorted(run_dir.glob("samples/*"))},
        }
        for role in sorted(path for path in (run_dir / "checkpoints").iterdir() if path.is_dir()):
            convert(work, role, work / f"final_{name}_{role.name}", "mcore-hf")
            found[name][f"weights of {role.name}"] = tensors_of(work / f"final_{name}_{role.name}")
    found["export"] = tensors_of(work / "export")
    return found


OVERRIDES = """
training.lr=1e-5
training.lr=3
training.lr=.5
training.bf16=true
training.bf16=True
training.seed=7
+training.seed=7
++training.seed=7
~training.lr
training.save_interval=null
training.run_dir=somewhere
training.run_dir='with space'
training.run_dir="a,b"
training.trackers=[jsonl,tensorboard]
training.trackers=jsonl
training.trackers=[]
training.trackers=jsonl,tensorboard
training.global-batch-size=16
training.clip_grad=0.5
training.tensor_model_parallel_size=2
training.model=null
actor_rollout_ref.actor_rollout.lr=2e-6
actor_rollout_ref.actor_rollout.temperature=0.7
actor_rollout_ref.actor_rollout.top_k=20
actor_rollout_ref.actor_rollout.eos_token_ids=[1,2]
actor_rollout.lr=2e-6
ref.load=elsewhere
resource_pool.actor_rollout=2
resource_pool.actor_rollout=[1,1]
algorithm.adv_estimator=group_norm
algorithm.kl_loss_coef=0.5
algorithm.kl_ctrl.kl_coef=0.2
algorithm.kl_ctrl={type: fixed, kl_coef: 0.3}
reward.functions=[{name: accuracy, weight: 2.0}]
reward.functions=[{name: accuracy, args: {solution_list: all}}]
reward.functions=accuracy
reward.functions=[accuracy,format]
reward.functions.0.weight=3
reward.num_workers=2
reward.on_error=zero
""".strip().splitlines()

BAD_OVERRIDES = """
training.lr=fast
training.lr=nan
training.seed
training.train_iter=3
training.stage=grppo
training.stage=null
training.train_iters=0
training.train_iters=2.5
training.global_batch_size=-1
training.bf16=maybe
training.trackers=[jsonl,mlflow]
training.executor=slurm
training.seq_length=64
training.load=/none
training.run_dir=/proc/x
training.eval_data_path=/none
training.lr_decay_style=cosin
training.export_hf=/
trainng.lr=1
actor_rollout_ref.actor_rollout.n_samples_per_prompt=1
actor_rollout_ref.actor_rollout.ppo_mini_batch_size=100
actor_rollout_ref.actor_rollout.max_prompt_length=3
actor_rollout_ref.actor_rollout.tensor_model_parallel_size=2
actor_rollout_ref.actor_rollout.temperature=-1
actor_rollout_ref.actor_rollout.top_p=1.5
actor_rollout_ref.actor_rollout.data_path=/none
actor_rollout_ref.actor_rollout.eos_token_ids=[99]
actor_rollout_ref.actor_rollout.use_vllm=true
actor_rollout_ref.actor_rollout.tokenizer_name_or_path=/none
actor_rollout_ref.reff.load=x
actor_rollout_ref.ref.load=/none
algorithm.adv_estimator=gae
algorithm.adv_estimator=grpo_norm
algorithm.use_kl_loss=maybe
algorithm.kl_penalty=k7
reward.functions=acuracy
reward.functions=[{name: f, path: /none.py}]
reward.functions=[]
reward.functions=[{name: fraction_right}]
reward.num_workers=0
reward.on_error=ignore
resource_pool.actor_rollout=0
resource_pool.actor_rolout=2
critic.lr=1
""".strip().splitlines()

# name -> changes of the flags of a good command
BAD_DATA: dict[str, dict[str, str]] = {
    "input missing": {"--input": "/none/rows.jsonl"},
    "wrong column": {"--map-keys": '{"prompt": "instructon"}'},
    "map-keys that is not JSON": {"--map-keys": "prompt=prompt"},
    "unknown handler": {"--handler-name": "PPOAlpacaStyleHandler"},
    "unknown template": {"--prompt-type": "chatlm"},
    "tokens that are missing": {"--prompt-type": "chatml"},
    "no tokenizer": {"--tokenizer-name-or-path": "/none"},
    "unknown flag": {"--seqlength": "3"},
    "too long": {"--seq-length": "3", "--prompt-overlong": "error"},
    "no effect": {"--seed": "3"},
}
BAD_MODELS: dict[str, dict[str, str]] = {
    "model missing": {"--load-dir": "/none"},
    "other family": {"--model-type-hf": "qwen2"},
    "layout": {"--target-tensor-parallel-size": "3"},
    "layers": {"--target-pipeline-parallel-size": "3"},
    "kind": {"--load-model-type": "mcore"},
    "unknown kind": {"--load-model-type": "hff"},
    "head": {"--head": "rewrd"},
    "dtype": {"--params-dtype": "fp12"},
    "unknown flag": {"--target-tensor-parallel": "2"},
}


def record_overrides(work: Path) -> Record:
    """What each override changes in the resolved configuration of GRPO, or the sentence that refuses it."""
    plain = dict(flat(resolved(work)))
    found: Record = {}
    for override in OVERRIDES:
        changed = resolved(work, override)
        if not isinstance(changed, dict):
            found[override] = changed
            continue
        values = dict(flat(changed))
        found[override] = {key: values.get(key) for key in {**plain, **values} if plain.get(key) != values.get(key)}
    return found


def resolved(work: Path, *overrides: str) -> Any:
    """The configuration that ``--cfg`` prints, as values; what is said where it is refused."""
    done = run("posttrain_gpt.py", *arguments_of(work, "grpo", *overrides), "--cfg", work=work)
    return yaml.safe_load(done["out"]) if done["status"] == 0 else done["err"]


def record_messages(work: Path) -> Record:
    """Exit status and standard error of commands that cannot work."""
    found: Record = {}

    def note(name: str, script: str, arguments: list[object]) -> None:
        done = run(script, *arguments, work=work)
        found[name] = f"{done['status']}: {done['err']}"

    elsewhere = [f"training.run_dir={work / 'bad'}", "training.export_hf=null"]
    for override in BAD_OVERRIDES:
        note(override, "posttrain_gpt.py", arguments_of(work, "grpo", *elsewhere, override, "--check"))

    def changed(flags: list[object], changes: dict[str, str]) -> list[object]:
        pairs = {**dict(zip(flags[::2], flags[1::2], strict=True)), **changes}
        return [item for pair in pairs.items() for item in pair]

    good = data_flags(work, "alpaca", work / "bad_data", "PPOAlpacaStyleInstructionHandler")
    for name, changes in BAD_DATA.items():
        note(f"data: {name}", "preprocess_data.py", changed(good, changes))
    paths: list[object] = ["--load-dir", work / "hf", "--save-dir", work / "bad_model"]
    good = ["--load-model-type", "hf", "--save-model-type", "mcore", *paths]
    for name, changes in BAD_MODELS.items():
        note(f"model: {name}", "convert_ckpt.py", changed(good, changes))
    return found


if __name__ == "__main__":
    sys.exit(main())
