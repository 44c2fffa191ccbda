"""Pretraining, process rewards, KTO, and handlers of the user's own."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.preprocess.handlers import Encoded, HandlerOptions, build_handler
from mindllm.preprocess.inputs.rows import Row
from mindllm.preprocess.tokenize.encoding import TextEncoder

Encode = Callable[..., Encoded]
Decode = Callable[[Any], str]
STEPS = {"placeholder_token": "<|start_header_id|>", "reward_tokens": ("9", "0"), "prompt_type": None}
PROCESS, KTO = "AlpacaStyleProcessRewardHandler", "KTOHandler"


def test_pretraining_text_is_encoded_as_it_is(encode: Encode, decode: Decode) -> None:
    encoded = encode("GeneralPretrainHandler", {"text": "the quick"}, {"text": " "}, {"text": None}, prompt_type=None)
    assert decode(encoded.tokens["text"]) == "the quick" and encoded.dropped == {"empty_text": 1, "null_text": 1}


def test_a_document_ends_with_the_eos_when_asked(encode: Encode, decode: Decode) -> None:
    rows = [{"body": "the"}, {"body": "quick"}]
    options = {"map_keys": {"text": "body"}, "append_eod": True, "prompt_type": None}
    encoded = encode("GeneralPretrainHandler", *rows, **options)
    assert decode(encoded.tokens["text"]) == "the<|im_end|>quick<|im_end|>" and len(encoded.lengths["text"]) == 2


def test_a_tokenizer_without_eos_cannot_end_documents(spec: TokenizerSpec) -> None:
    options = HandlerOptions("GeneralPretrainHandler", append_eod=True)
    with pytest.raises(UserError, match="--append-eod: the tokenizer in .* has no EOS token"):
        build_handler(options, replace(spec, eos=None))


@pytest.mark.parametrize("text", ["the quick", "<|begin_of_text|>the quick"])
def test_a_document_has_exactly_one_bos(text: str, bos_spec: TokenizerSpec) -> None:
    handler = build_handler(HandlerOptions("GeneralPretrainHandler"), bos_spec)
    ids = handler.encode([Row("r", 1, {"text": text})]).tokens["text"].tolist()
    bos = TextEncoder(bos_spec).token_id("<|begin_of_text|>")
    assert ids[0] == bos and ids.count(bos) == 1


def test_alpaca_rows_become_templated_documents(encode: Encode, decode: Decode) -> None:
    row = {"instruction": "a", "output": "b"}
    text = decode(encode("AlpacaPretrainHandler", row).tokens["text"])
    assert text == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"


@pytest.mark.parametrize("value", [["9", "0"], "the 9 quick 0"], ids=["list", "text"])
def test_steps_are_judged_at_their_placeholders(encode: Encode, decode: Decode, value: Any) -> None:
    row = {"input": "the <|start_header_id|> quick <|start_header_id|>", "value": value}
    encoded = encode(PROCESS, row, **STEPS)
    ids, labels = encoded.tokens["input_ids"], encoded.tokens["labels"]
    assert not encoded.dropped
    assert [decode([token]) for token in ids[labels != -100]] == ["<|start_header_id|>"] * 2
    assert [decode([token]) for token in labels[labels != -100]] == ["9", "0"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"input": "no step", "value": []}, "nothing_to_train"),
        ({"input": "a<|start_header_id|>", "value": ["9", "0"]}, "steps_and_values_differ"),
        ({"input": "a<|start_header_id|>", "value": [1]}, "invalid_value"),
        ({"input": "a<|start_header_id|>", "value": None}, "invalid_value"),
        ({"input": "a<|start_header_id|>", "value": "other text"}, "invalid_value"),
        ({"input": "a<|start_header_id|>", "value": ["5"]}, "unknown_reward_token"),
        ({"input": "a" * 99 + "<|start_header_id|>", "value": ["9"]}, "too_long"),
    ],
)
def test_steps_that_cannot_be_judged_are_dropped(encode: Encode, row: dict[str, Any], reason: str) -> None:
    assert encode(PROCESS, row, seq_length=50, **STEPS).dropped == {reason: 1}


def test_process_rewards_need_their_tokens(encode: Encode) -> None:
    with pytest.raises(UserError, match="needs --placeholder-token and --reward-tokens"):
        encode(PROCESS, prompt_type=None)
    with pytest.raises(UserError, match="'not one token' is not one token of the tokenizer"):
        encode(PROCESS, **{**STEPS, "placeholder_token": "not one token"})


def test_kto_samples_carry_their_tag(encode: Encode, decode: Decode) -> None:
    rows = [{"prompt": "a", "completion": "b", "label": label} for label in (True, False, 1, None, "yes")]
    encoded = encode(KTO, *rows)
    assert encoded.tokens["kto_tag"].tolist() == [1, 0, 1] and encoded.lengths["kto_tag"].tolist() == [1, 1, 1]
    assert encoded.dropped == {"null_label": 1, "label_not_a_boolean": 1}
    labels = encoded.tokens["labels"]
    assert decode(labels[labels != -100]) == "b<|im_end|>" * 3


def test_kto_prompts_and_completions_may_be_lists_of_turns(encode: Encode, decode: Decode) -> None:
    asked = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    answer = {"role": "assistant", "content": "d"}
    rows = [
        {"prompt": prompt, "completion": completion, "label": True}
        for prompt, completion in ((asked, [answer]), (asked, "d"), (asked, [*asked, answer]), ("c", [*asked, answer]))
    ]
    encoded = encode(KTO, *rows)
    labels = encoded.tokens["labels"]
    assert not encoded.dropped and decode(labels[labels != -100]) == "d<|im_end|>" * len(rows)
    assert len(set(encoded.lengths["input_ids"].tolist())) == 1
    other = {"prompt": "other", "completion": [*asked, answer], "label": True}
    assert encode(KTO, other).dropped == {"completion_has_another_prompt": 1}


def test_kto_rows_may_hold_all_that_alpaca_rows_do_and_labels_as_text(encode: Encode, decode: Decode) -> None:
    turns = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c\nd"))]
    answer = {"role": "assistant", "content": "e"}
    rows = [
        {"prompt": "c", "input": "d", "history": [["a", "b"]], "completion": "e", "label": "True"},
        {"completion": [*turns, answer], "label": "0"},
        {"prompt": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\nd\n\nAssistant:", "completion": "e", "label": "false"},
    ]
    encoded = encode(KTO, *rows)
    assert not encoded.dropped and encoded.tokens["kto_tag"].tolist() == [1, 0, 0]
    labels = encoded.tokens["labels"]
    assert decode(labels[labels != -100]) == "e<|im_end|>" * 3
    texts = np.split(encoded.tokens["input_ids"], np.cumsum(encoded.lengths["input_ids"])[:-1])
    assert texts[0].tolist() == texts[1].tolist() == texts[2].tolist()


OWN = """
from mindllm.preprocess.handlers import register_handler
from mindllm.preprocess.handlers.alpaca import AlpacaStyleInstructionHandler

@register_handler
class ShoutingHandler(AlpacaStyleInstructionHandler):
    def render(self, row):
        return super().render(row._replace(values={**row.values, "output": row.values["output"].upper()}))
"""


def test_a_handler_of_the_users_own_is_found(encode: Encode, decode: Decode, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    row = {"instruction": "a", "output": "the quick"}
    encoded = encode("ShoutingHandler", row, handler_file=str(tmp_path / "own.py"))
    labels = encoded.tokens["labels"]
    assert decode(labels[labels != -100]) == "THE QUICK<|im_end|>"


@pytest.mark.parametrize(("content", "message"), [("1 / 0", "ZeroDivisionError"), ("class", "SyntaxError")])
def test_a_handler_file_that_does_not_load_is_named(tmp_path: Path, encode: Encode, content: str, message: str) -> None:
    (tmp_path / "broken.py").write_text(content)
    with pytest.raises(UserError, match=rf"broken\.py does not load: {message}"):
        encode("Some", handler_file=str(tmp_path / "broken.py"))
    with pytest.raises(UserError, match=r"missing\.py: no such python file"):
        encode("Some", handler_file=str(tmp_path / "missing.py"))


def test_bad_rows_are_errors_or_skipped_and_counted(encode: Encode, spec: TokenizerSpec) -> None:
    rows = [Row("a.jsonl", 3, {}, "invalid_json", "not valid JSON"), Row("a.jsonl", 4, {"instruction": "fine"})]
    name = "PPOAlpacaStyleInstructionHandler"
    with pytest.raises(UserError, match=r"a\.jsonl:3: not valid JSON; --on-bad-row skip leaves such rows out"):
        build_handler(HandlerOptions(name, "chatml"), spec).encode(rows)
    encoded = build_handler(HandlerOptions(name, "chatml", on_bad_row="skip"), spec).encode(rows)
    assert encoded.dropped == {"invalid_json": 1} and encoded.kept.tolist() == [1] and encoded.rows_in == 2
