"""Write a Hugging Face model directory: a Qwen2 of 0.4 million random parameters and a tokenizer of its own."""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.utils.logging import disable_progress_bar

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
WORDS = ["system", "user", "assistant", "sort"]  # one token each, as --words; any other text is spelt in bytes

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main() -> None:
    """Write the directory of one seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="directory to write to")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    parser.add_argument("--words", type=Path, help="file with a word a line; each becomes a token (none)")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    disable_progress_bar()

    tokenizer = make_tokenizer(args.words.read_text(encoding="utf-8").split() if args.words else [])
    model = Qwen2ForCausalLM(make_config(tokenizer))
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.convert_tokens_to_ids([TURN_END, END_OF_TEXT]), pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"{args.out}: {model.num_parameters():,} parameters, {len(tokenizer)} tokens")


def make_tokenizer(words: list[str]) -> Qwen2Tokenizer:
    """A byte-level tokenizer of Qwen2's kind: the bytes, some words, and the tags of turns and answers."""
    inside = [f" {word}" for word in words]  # a space belongs to the word after it
    merges = Tokenizer(models.BPE())
    merges.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    merges.train_from_iterator(
        [*WORDS, *words, *inside], trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    )
    learned = json.loads(merges.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learned["vocab"],
        merges=[tuple(pair) for pair in learned["merges"]],
        unk_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        eos_token=TURN_END,
        extra_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.add_tokens(["<answer>", "</answer>"])
    return tokenizer


def make_config(tokenizer: Qwen2Tokenizer) -> Qwen2Config:
    """Two layers; heads, key-value heads and vocabulary split over two ranks."""
    return Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


if __name__ == "__main__":
    main()
