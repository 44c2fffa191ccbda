"""A model, a tokenizer and two data sets small enough that a run of the real commands takes seconds.

The task: repeat the prompt's digit four times. The reward is the fraction of the four places that are right.
"""

import json
from pathlib import Path

DIGITS = [str(digit) for digit in range(10)]
VERBS = ["repeat", "say", "write digit", "echo please digit"]  # prompts of two to four tokens
END = "<|endoftext|>"
VOCABULARY = [END, *DIGITS, "repeat", "say", "write", "echo", "digit", "please", "once", "now", "then"]

REWARDS = """
import itertools
import time
from pathlib import Path

HERE = Path(__file__).parent
CALLS = itertools.count(1)


def fraction_right(completions, digit):
    "Fraction of the four places that hold the digit. A file `hold` says at which call to stay until it is killed."
    call = next(CALLS)
    if (HERE / "hold").exists() and call == int((HERE / "hold").read_text()):
        (HERE / "held").touch()
        time.sleep(600)
    return [sum(word == wanted for word in text.split()[:4]) / 4 for text, wanted in zip(completions, digit)]


def raises(completions):
    raise LookupError("the reward's own message")
"""


WORDS_ALONE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def write_tokenizer(directory: Path, words: list[str] = VOCABULARY, chat_template: str = WORDS_ALONE) -> None:
    """Write a tokenizer with one token a word into ``directory``."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        chat_template=chat_template,
    ).save_pretrained(directory)


def write_model(
    directory: Path, *, family: str = "llama", num_layers: int = 2, window: int = 32, seed: int = 0
) -> None:
    """Write a Hugging Face model of 0.1 million random parameters, tokenizer included, into ``directory``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(directory)
    write_tokenizer(directory)


def write_tasks(directory: Path) -> None:
    """Write prompts (train and held-out), demonstrations and the reward file into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": f"{verb} {digit}", "digit": digit} for verb in VERBS for digit in DIGITS]
    _write_jsonl(directory / "train.jsonl", rows)
    _write_jsonl(directory / "heldout.jsonl", [{"prompt": f"say now {digit}", "digit": digit} for digit in DIGITS])
    demonstrations = [{"instruction": row["prompt"], "output": " ".join([row["digit"]] * 4)} for row in rows]
    _write_jsonl(directory / "sft.jsonl", demonstrations)
    (directory / "rewards.py").write_text(REWARDS)


def _write_jsonl(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
