"""The checks of smoke.sh. Prints one line per check and ends with status 0 only if all of them passed."""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "examples" / "quickstart"
REWARD = Path(__file__).with_name("smoke_reward.py")  # apart: its processes load that file, and this one imports torch

from mindllm.device import current_device, device_info, has_accelerator  # noqa: E402  before torch

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel  # noqa: E402

from mindllm import preflight, stages  # noqa: E402
from mindllm.checkpoint import latest_iteration_dir  # noqa: E402
from mindllm.config import RunConfig, build_config  # noqa: E402
from mindllm.data.sequences import Sequences  # noqa: E402
from mindllm.rollout import SamplingParams  # noqa: E402
from mindllm.workers.cluster import Cluster  # noqa: E402


class Size(NamedTuple):
    """Of the model and of the runs."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    prompts: int
    new_tokens: int


# Heads of 128 in "small", as in the models that people train: kernels for decoding are chosen by it.
SIZES = {"tiny": Size(128, 320, 2, 4, 2, 8, 16), "small": Size(1024, 4096, 12, 8, 4, 64, 256)}
ITERATIONS = 3  # the first one warms up: speeds are those of the last
FP32_TOLERANCE = 1e-4  # absolute, on log-probs
TOP_P, MIN_NEW_TOKENS, NEW_TOKENS = 0.8, 8, 32  # of the checks on generation
MASS_TOLERANCE = 1e-3  # on the mass of the tokens that are likelier than a sampled one
BF16_FACTOR = 2.0  # how much further from fp32 than Hugging Face's own bf16 ours may be


def main() -> int:
    """Run the checks; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--allow-cpu", action="store_true", help="run without a GPU, to test this script itself")
    args = parser.parse_args()
    if not (has_accelerator() or args.allow_cpu):
        print("error: no usable GPU; --allow-cpu runs the same checks on the CPU", file=sys.stderr)
        return 2
    start = time.monotonic()
    print(f"{device_info()}, torch {torch.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        prepare(work, SIZES[args.size])
        passed = [check_logprobs(work), check_greedy(work), check_top_p(work)]
        passed += [run_sft(work), run_grpo(work, SIZES[args.size]), resume_grpo(work, SIZES[args.size])]
    print(f"{time.monotonic() - start:.0f} s in all")
    print("passed" if all(passed) else "FAILED")
    return 0 if all(passed) else 1


def prepare(work: Path, size: Size) -> None:
    """Write task and model, index the data, convert the model."""
    sys.path.insert(0, str(QUICKSTART))
    from make_model import make_config, make_tokenizer
    from transformers import Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    tokenizer = make_tokenizer([])
    config = make_config(tokenizer)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = size.hidden, size.ffn, size.layers
    config.num_attention_heads, config.num_key_value_heads = size.heads, size.kv_heads
    config.max_position_embeddings, config.layer_types = 1024, ["full_attention"] * size.layers
    config.initializer_range = 0.05  # confident enough that greedy choices are not ties
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(work / "hf")
    tokenizer.save_pretrained(work / "hf")
    print(f"model: {model.num_parameters() / 1e6:.1f} M parameters")

    run(QUICKSTART / "make_task.py", work / "task")
    run(
        *("convert_ckpt.py", "--load-model-type", "hf", "--save-model-type", "mcore"),
        *("--load-dir", work / "hf", "--save-dir", work / "mcore"),
    )
    common = ("--tokenizer-name-or-path", work / "hf")
    run(
        *("preprocess_data.py", "--handler-name", "AlpacaStyleInstructionHandler", *common),
        *("--input", work / "task" / "sft.jsonl", "--output-prefix", work / "sft"),
    )
    run(
        *("preprocess_data.py", "--handler-name", "PPOAlpacaStyleInstructionHandler", *common),
        *("--map-keys", '{"prompt": "prompt"}'),
        *("--input", work / "task" / "rl_train.jsonl", "--output-prefix", work / "rl"),
    )


def run(*command: object) -> None:
    """One command of the repository, quietly."""
    subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def config_of(work: Path, stage: str, **keys: Any) -> RunConfig:
    """A run's configuration: ``keys`` on top of what all runs here share."""
    shared = {
        "stage": stage,
        "executor": "inline",
        "run_dir": str(work / stage),
        "train_iters": ITERATIONS,
        "load": str(work / "mcore"),
        "data_path": str(work / ("sft" if stage == "sft" else "rl")),
        "seq_length": 512,
        "max_tokens_per_micro_batch": 16384,
        "lr": 1e-4,
        "trackers": ["jsonl"],
    }
    if stage != "sft":
        shared |= {"n_samples_per_prompt": 8, "max_prompt_length": 256}
    reward = {"functions": [{"name": "share_of_right_places", "path": str(REWARD)}], "num_workers": 1}
    sections = {"training": shared | keys}
    return build_config(sections if stage == "sft" else sections | {"reward": reward})


def ragged_sequences() -> Sequences:
    """Random prompts and responses of very different lengths."""
    numbers = random.Random(0)

    def tokens(length: int) -> list[int]:
        return numbers.choices(range(270), k=length)

    lengths = [(1, 1), (5, 40), (64, 3), (17, 17), (100, 150)]
    return Sequences.from_lists([tokens(p) for p, _ in lengths], [tokens(r) for _, r in lengths])


def reference_model(work: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model as transformers runs it.

    Not by ``from_pretrained``, which builds on the meta device and asks torch to intercept the factory functions that
    ``mindllm.device`` wraps where there is no GPU.
    """
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(work / "hf"))
    model.load_state_dict(load_file(work / "hf" / "model.safetensors"))
    return model.to(current_device(), dtype).eval()


@torch.no_grad()
def hugging_face_logprobs(work: Path, sequences: Sequences, dtype: torch.dtype) -> torch.Tensor:
    """[response tokens] fp32 log-probs by transformers, one sequence at a time."""
    model = reference_model(work, dtype)
    scores = []
    for prompt, response in sequences.token_lists():
        ids = torch.tensor([prompt + response], device=current_device())
        logprobs = model(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        scores.append(logprobs.gather(1, ids[0, len(prompt) :, None])[:, 0].cpu())
    return torch.cat(scores)


def our_logprobs(work: Path, sequences: Sequences, bf16: bool) -> torch.Tensor:
    """[response tokens] fp32 log-probs by our actor, packed."""
    with Cluster(config_of(work, "ray_grpo", global_batch_size=1, bf16=bf16)) as cluster:
        actor = cluster.start_actor(latest_iteration_dir(work / "mcore"), total_steps=1, resume=False)
        return actor.logprobs(sequences, temperature=1.0)


def check_logprobs(work: Path) -> bool:
    """Our log-probs are Hugging Face's in fp32, and in bf16 about as near to them as Hugging Face's own."""
    sequences = ragged_sequences()
    exact = hugging_face_logprobs(work, sequences, torch.float32)
    error = float((our_logprobs(work, sequences, bf16=False) - exact).abs().max())
    theirs = float((hugging_face_logprobs(work, sequences, torch.bfloat16) - exact).abs().mean())
    rounded = float((our_logprobs(work, sequences, bf16=True) - exact).abs().mean())
    passed = error <= FP32_TOLERANCE and rounded <= BF16_FACTOR * theirs
    print(
        f"{verdict(passed)} parity: fp32 max error {error:.2e} (allowed {FP32_TOLERANCE}); "
        f"bf16 mean error {rounded:.2e}, Hugging Face's own {theirs:.2e}"
    )
    return passed


def generate(work: Path, prompts: list[list[int]], **sampling: Any) -> list[list[int]]:
    """One response of at most `NEW_TOKENS` tokens to each prompt by our actor in fp32, as token ids."""
    stops = (AutoConfig.from_pretrained(work / "hf").eos_token_id,)
    unfiltered = {"do_sample": True, "temperature": 1.0, "top_k": -1, "top_p": 1.0, "min_new_tokens": 0}
    params = SamplingParams(
        **(unfiltered | sampling), max_new_tokens=NEW_TOKENS, stop_token_ids=stops, seed=0, iteration=1
    )
    requests = Sequences.from_lists(prompts, [[] for _ in prompts])
    requests.prompt_index = torch.arange(len(prompts))
    requests.sample_index = torch.zeros(len(prompts), dtype=torch.int64)
    with Cluster(config_of(work, "ray_grpo", global_batch_size=1)) as cluster:
        actor = cluster.start_actor(latest_iteration_dir(work / "mcore"), total_steps=1, resume=False)
        completed, _ = actor.generate(requests, params)
    return [response for _, response in completed.token_lists()]


def check_greedy(work: Path) -> bool:
    """Greedy rollouts in fp32 are transformers' token for token."""
    prompts = [prompt for prompt, _ in ragged_sequences().token_lists()]
    model = reference_model(work, torch.float32)
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=current_device())
        output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS)
        expected.append(output[0, len(prompt) :].tolist())
    passed = generate(work, prompts, do_sample=False) == expected
    print(f"{verdict(passed)} greedy: {sum(map(len, expected))} tokens against transformers")
    return passed


def check_top_p(work: Path) -> bool:
    """Sampled tokens are among transformers' likeliest with a mass of `TOP_P`, and no response ends too early."""
    prompts = [prompt for prompt, _ in ragged_sequences().token_lists()]
    responses = generate(work, prompts, top_p=TOP_P, min_new_tokens=MIN_NEW_TOKENS)
    model = reference_model(work, torch.float32)
    worst = 0.0  # mass of the tokens that are likelier than a sampled one
    for prompt, response in zip(prompts, responses, strict=True):
        ids = torch.tensor([prompt + response], device=current_device())
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
        logits[: MIN_NEW_TOKENS - 1, model.config.eos_token_id] = -torch.inf  # no end before the minimum
        probabilities = logits.softmax(-1)
        sampled = probabilities.gather(1, ids[0, len(prompt) :, None])
        worst = max(worst, float((probabilities * (probabilities > sampled)).sum(-1).max()))
    shortest = min(map(len, responses))
    passed = worst <= TOP_P + MASS_TOLERANCE and shortest >= MIN_NEW_TOKENS
    print(
        f"{verdict(passed)} top-p: mass before a sampled token at most {worst:.3f} (allowed {TOP_P}); "
        f"shortest response {shortest} tokens (allowed {MIN_NEW_TOKENS})"
    )
    return passed


def run_stage(config: RunConfig) -> None:
    """What posttrain_gpt.py does with a composed configuration."""
    preflight.check(config)
    stages.run(config)


def run_sft(work: Path) -> bool:
    """A short SFT run in bf16 whose loss falls."""
    run_stage(config_of(work, "sft", global_batch_size=256, bf16=True))
    metrics = read_metrics(work / "sft")
    passed = metrics[-1]["sft/loss"] < metrics[0]["sft/loss"]
    losses = " -> ".join(f"{entry['sft/loss']:.3f}" for entry in metrics)
    print(f"{verdict(passed)} sft: loss {losses}; training {metrics[-1]['timing/tokens_per_s']:,.0f} tokens/s")
    return passed


def grpo_config(work: Path, size: Size, iterations: int) -> RunConfig:
    """A GRPO run in bf16 from the SFT checkpoint."""
    keys = {
        "load": str(work / "sft" / "checkpoints" / "actor"),
        "global_batch_size": size.prompts,
        "max_new_tokens": size.new_tokens,
        "min_new_tokens": size.new_tokens,  # so that every iteration is the same amount of work
        "train_iters": iterations,
        "bf16": True,
    }
    return config_of(work, "ray_grpo", **keys)


def run_grpo(work: Path, size: Size) -> bool:
    """A short GRPO run."""
    run_stage(grpo_config(work, size, ITERATIONS))
    last = read_metrics(work / "ray_grpo")[-1]
    passed = last["actor/skipped_steps"] == 0 and last["actor/grad_norm"] < float("inf")
    print(
        f"{verdict(passed)} grpo: generation {last['rollout/sampled_tokens'] / last['timing/generate']:,.0f} tokens/s, "
        f"{1e3 * last['timing/generate'] / last['rollout/decode_steps']:.1f} ms per step; "
        f"training {last['rollout/total_tokens'] / last['timing/update_actor']:,.0f} tokens/s, "
        f"rollout log-probs within {last['rollout/logprob_deviation_max']:.1e} of training's"
    )
    return passed


def resume_grpo(work: Path, size: Size) -> bool:
    """The GRPO run goes on from its checkpoint for one more iteration."""
    before = read_metrics(work / "ray_grpo")
    run_stage(grpo_config(work, size, ITERATIONS + 1))
    after = read_metrics(work / "ray_grpo")
    passed = after[:-1] == before and after[-1]["iteration"] == ITERATIONS + 1
    passed = passed and after[-1]["actor/grad_norm"] < float("inf")
    print(f"{verdict(passed)} resume: iterations {[entry['iteration'] for entry in after]}")
    return passed


def read_metrics(run_dir: Path) -> list[dict[str, float]]:
    """metrics.jsonl of a run."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text("utf-8").splitlines()]


def verdict(passed: bool) -> str:
    """First word of a check's line."""
    return "ok  " if passed else "FAIL"


if __name__ == "__main__":
    sys.exit(main())
