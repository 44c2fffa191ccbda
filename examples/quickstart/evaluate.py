"""Accuracy of Hugging Face models on the held-out prompts, with plain transformers and nothing of mindllm.

Prints one JSON object per line: model, accuracy_greedy, accuracy_sampled.
"""

import argparse
import json
import re
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
MAX_NEW_TOKENS = 16


def main() -> None:
    """Evaluate each model in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="Hugging Face model directories")
    parser.add_argument("--data", type=Path, required=True, help="jsonl with prompt and solution")
    parser.add_argument("--samples", type=int, default=4, help="sampled responses per prompt")
    args = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bar()
    rows = [json.loads(line) for line in args.data.read_text(encoding="utf-8").splitlines()]
    for directory in args.models:
        model = AutoModelForCausalLM.from_pretrained(directory).eval()
        tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
        torch.manual_seed(0)
        result = {
            "model": directory,
            "accuracy_greedy": accuracy(model, tokenizer, rows, do_sample=False),
            "accuracy_sampled": accuracy(model, tokenizer, rows * args.samples, do_sample=True),
        }
        print(json.dumps(result), flush=True)


@torch.no_grad()
def accuracy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, str]], do_sample: bool
) -> float:
    """Fraction of responses whose last <answer> block is exactly the solution. Samples at temperature 1, no cut-off."""
    chats = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if do_sample else {"do_sample": False}
    output = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, **sampling)
    responses = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [last_answer(text) == row["solution"] for text, row in zip(responses, rows, strict=True)]
    return sum(right) / len(right)


def last_answer(response: str) -> str | None:
    """Inside of the last answer block, None without one."""
    blocks = ANSWER.findall(response)
    return blocks[-1].strip() if blocks else None


if __name__ == "__main__":
    main()
