"""Reward model and policies of the PPO quickstart on held-out prompts, with plain transformers and nothing of mindllm.

Prints one JSON object per line. First the reward model's: pair_accuracy, how often it prefers the chosen review. Then
each policy's: score, the reward model's mean over its sampled reviews, and positive_share, what the score stands for.
"""

import argparse
import json
from pathlib import Path

import torch
from positive_share import positive_share
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

MAX_NEW_TOKENS = 32

Review = tuple[str, str]  # (prompt, text)


def main() -> None:
    """Evaluate the reward model, then each policy in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="Hugging Face directories of policies")
    parser.add_argument("--reward-model", required=True, help="Hugging Face directory of the reward model")
    parser.add_argument("--prompts", type=Path, required=True, help="jsonl with prompt")
    parser.add_argument("--pairs", type=Path, required=True, help="jsonl with instruction, chosen, rejected")
    parser.add_argument("--samples", type=int, default=4, help="sampled reviews per prompt")
    args = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bar()

    judge = AutoModelForSequenceClassification.from_pretrained(args.reward_model).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.reward_model, padding_side="right")
    pairs = read_jsonl(args.pairs)
    chosen, rejected = (
        scores(judge, tokenizer, [(pair["instruction"], pair[side]) for pair in pairs])
        for side in ("chosen", "rejected")
    )
    accuracy = float((chosen > rejected).double().mean())
    print(json.dumps({"model": args.reward_model, "pair_accuracy": accuracy}), flush=True)

    prompts = [row["prompt"] for row in read_jsonl(args.prompts)] * args.samples
    for directory in args.models:
        reviews = write_reviews(directory, prompts)
        shares = positive_share([text for _, text in reviews])
        result = {
            "model": directory,
            "score": float(scores(judge, tokenizer, reviews).mean()),
            "positive_share": sum(shares) / len(shares),
        }
        print(json.dumps(result), flush=True)


def read_jsonl(path: Path) -> list[dict[str, str]]:
    """One JSON object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@torch.no_grad()
def write_reviews(directory: str, prompts: list[str]) -> list[Review]:
    """One review per prompt, sampled at temperature 1 without cut-off."""
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
    torch.manual_seed(0)
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    output = model.generate(
        **inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
    )
    responses = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return list(zip(prompts, responses, strict=True))


@torch.no_grad()
def scores(judge: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, reviews: list[Review]) -> torch.Tensor:
    """[n] scores, read at the end token of each review."""
    chats = [[{"role": "user", "content": prompt}, {"role": "assistant", "content": text}] for prompt, text in reviews]
    texts = [text.rstrip("\n") for text in tokenizer.apply_chat_template(chats, tokenize=False)]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    return judge(**inputs).logits.squeeze(-1)


if __name__ == "__main__":
    main()
