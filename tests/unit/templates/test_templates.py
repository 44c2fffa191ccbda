"""Templates against published ones, against ids built by hand, and the rule of one BOS."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mindllm.data.tokenizer import TokenizerSpec, load_tokenizer
from mindllm.errors import UserError
from mindllm.preprocess.handlers import HandlerOptions, build_handler
from mindllm.preprocess.inputs.rows import Row
from mindllm.preprocess.tokenize.encoding import TextEncoder
from mindllm.templates.chat import ChatTemplate
from mindllm.templates.declared import read_template
from mindllm.templates.lookup import HF, load_template, resolve_prompt_type, template_names
from mindllm.templates.messages import Message, Rendered, ToolCall

SYSTEM = Message("system", "Be brief.")
TURNS = [
    Message("user", "  sort 3 1 2 \n"),
    Message("assistant", "1 2 3 😀"),
    Message("user", "مرحبا {content} {bos}"),
    Message("assistant", ""),
    Message("user", "answer in tags"),
    Message("assistant", "the quick\n\nbrown fox"),
]
DIALOGUES = [TURNS[:2], TURNS, [SYSTEM, *TURNS[:2]], [SYSTEM, *TURNS]]


def as_dicts(messages: list[Message]) -> list[dict[str, str]]:
    return [message._asdict() for message in messages]


def assert_same_ids(prompt_type: str, spec: TokenizerSpec) -> None:
    """Prompt and dialogue ids of a template equal those transformers makes with the tokenizer's own."""
    tokenizer = load_tokenizer(spec.path)
    template, encoder = load_template(prompt_type, spec), TextEncoder(spec)
    for dialogue in DIALOGUES:
        prompt = dialogue[:-1]
        ours = encoder.encode([template.render_prompt(prompt), template.render_dialogue(dialogue).text])
        for messages, ids, is_prompt in [(prompt, ours[0], True), (dialogue, ours[1], False)]:
            assert ids.tolist() == tokenizer.apply_chat_template(
                as_dicts(messages), add_generation_prompt=is_prompt, return_dict=False
            )


def test_hf_ids_equal_the_tokenizers_own_chat_template(spec: TokenizerSpec) -> None:
    assert_same_ids(HF, spec)


BY_HAND = {
    "default": ("Be brief.\nHuman: Hi\nAssistant: 1§\nHuman: Ho\nAssistant: ", "2§", "\n"),
    "empty": ("Be brief.\nHi1§Ho", "2§", ""),
    "alpaca": (
        "Be brief.\n\n### Instruction:\nHi\n\n### Response:\n1§\n\n### Instruction:\nHo\n\n### Response:\n",
        "2§",
        "\n\n",
    ),
    "vicuna": ("†Be brief. USER: Hi ASSISTANT: 1§USER: Ho ASSISTANT:", " 2§", ""),
    "llama2": ("†[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] 1 §†[INST] Ho [/INST]", " 2 §", ""),
    "llama3": (
        "†<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        "Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n1<|eot_id|><|start_header_id|>user"
        "<|end_header_id|>\n\nHo<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "2<|eot_id|>",
        "",
    ),
    "mistral": ("†[INST] Be brief.\n\nHi [/INST] 1§[INST] Ho [/INST]", " 2§", ""),
    "deepseek2": ("†Be brief.\n\nUser: Hi\n\nAssistant: 1§User: Ho\n\nAssistant:", " 2§", ""),
    "deepseek3": ("†Be brief.<｜User｜>Hi<｜Assistant｜>1§<｜User｜>Ho<｜Assistant｜>", "2§", ""),
    "gemma": (
        "†<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n1<end_of_turn>\n"
        "<start_of_turn>user\nHo<end_of_turn>\n<start_of_turn>model\n",
        "2<end_of_turn>",
        "\n",
    ),
    "phi3": (
        "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n1<|end|>\n"
        "<|user|>\nHo<|end|>\n<|assistant|>\n",
        "2<|end|>",
        "\n§",
    ),
    "glm4": (
        "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi<|assistant|>\n1<|user|>\nHo<|assistant|>",
        "\n2<|user|>",
        "",
    ),
    "baichuan2": ("Be brief.<reserved_106>Hi<reserved_107>1§<reserved_106>Ho<reserved_107>", "2§", ""),
}
CHATML = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n"
    "<|im_start|>user\nHo<|im_end|>\n<|im_start|>assistant\n"
)
BY_HAND |= dict.fromkeys(("chatml", "qwen", "qwen_r1", "qwen_math_r1", "yi"), (CHATML, "2<|im_end|>", "\n"))
BY_HAND["internlm2"] = ("†" + CHATML, "2<|im_end|>", "\n")
BY_HAND["qwen3"] = (CHATML, "<think>\n\n</think>\n\n2<|im_end|>", "\n")


@pytest.mark.parametrize("prompt_type", [name for name in template_names() if name != HF])
def test_text_and_trained_ranges_are_as_written_by_hand(prompt_type: str, spec: TokenizerSpec) -> None:
    prompt, answer, after = BY_HAND[prompt_type]
    template = load_template(prompt_type, replace(spec, bos="†", eos="§"))
    dialogue = [SYSTEM, Message("user", "Hi"), Message("assistant", "1"), Message("user", "Ho")]
    assert template.render_prompt(dialogue) == prompt
    text, marked, _ = template.render_dialogue([*dialogue, Message("assistant", "2")])
    assert text == prompt + answer + after
    assert [text[start:end] for start, end in marked] == [_first_answer(prompt, answer), answer]


def _first_answer(prompt: str, answer: str) -> str:
    """The first answer is like the last one, but never has its reasoning shown."""
    first = answer.replace("2", "1").removeprefix("<think>\n\n</think>\n\n")
    assert first in prompt
    return first


def test_reasoning_is_shown_for_the_last_question_only(spec: TokenizerSpec) -> None:
    turns = [Message("user", "a"), Message("assistant", "<think>\nr1\n</think>\n\n1"), Message("user", "b")]
    turns.append(Message("assistant", "<think>r2</think>2"))
    text, marked, _ = load_template("qwen3", spec).render_dialogue(turns)
    assert [text[a:b] for a, b in marked] == ["1<|im_end|>", "<think>\nr2\n</think>\n\n2<|im_end|>"]


def test_without_thinking_the_empty_reasoning_belongs_to_the_prompt(spec: TokenizerSpec) -> None:
    template = load_template("qwen3", spec, thinking=False)
    turns = [Message("user", "a"), Message("assistant", "<think>\nr\n</think>\n\n1")]
    prompt = template.render_prompt(turns[:1])
    text, marked, _ = template.render_dialogue(turns)
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n") and text.startswith(prompt)
    assert [text[a:b] for a, b in marked] == ["1<|im_end|>"]


@pytest.mark.parametrize("prompt_type", [HF, "chatml"])
def test_thinking_off_is_refused_where_it_means_nothing(prompt_type: str, spec: TokenizerSpec) -> None:
    with pytest.raises(UserError, match="--thinking off has no effect with this --prompt-type"):
        load_template(prompt_type, spec, thinking=False)


def encoded(spec: TokenizerSpec, handler: str, prompt_type: str | None, row: dict[str, Any]) -> list[list[int]]:
    """What a handler makes of a row: ids for each of its keys."""
    built = build_handler(HandlerOptions(handler, prompt_type), spec)
    return [ids.tolist() for ids in built.encode([Row("r", 1, row)]).tokens.values()]


@pytest.mark.parametrize("prompt_type", [name for name in template_names() if name != HF])
def test_there_is_exactly_one_bos(prompt_type: str, bos_spec: TokenizerSpec) -> None:
    bos = TextEncoder(bos_spec).token_id("<|begin_of_text|>")
    template = load_template(prompt_type, bos_spec)
    prompt = Rendered(template.render_prompt([Message("user", "Hi")]), [])
    ids = TextEncoder(bos_spec).encode_marked([prompt], template.adds_bos)[0].ids.tolist()
    assert ids[0] == bos and ids.count(bos) == 1


def test_chatml_has_one_bos_where_the_tokenizer_adds_one_and_none_elsewhere(
    spec: TokenizerSpec, bos_spec: TokenizerSpec
) -> None:
    bos, start = map(TextEncoder(bos_spec).token_id, ("<|begin_of_text|>", "<|im_start|>"))
    row = {"instruction": "Hi", "output": "Ho"}
    for with_bos, begin in [(bos_spec, [bos, start]), (spec, [start])]:
        assert encoded(with_bos, "AlpacaStyleInstructionHandler", "chatml", row)[0][: len(begin)] == begin


@pytest.fixture(scope="module")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer like Llama's that is not "legacy": only the first word of a text gets a space in front of it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    words = ["Be", "brief", "Human", "Assistant", "the", "quick"]
    vocabulary = ["<unk>", "<s>", "</s>", "▁", *sorted(set("".join(words) + ":.\n0123")), "▁H", "▁B", "▁t"]
    merges = [("▁", "H"), ("▁", "B"), ("▁", "t")]
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    directory = tmp_path_factory.mktemp("llama")
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_a_bos_that_no_template_writes_leaves_the_first_word_as_the_tokenizer_has_it(
    llama_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "plain.yaml").write_text(
        'system: "{content}\\n"\nuser: "Human: {content}\\n"\nheader: "Assistant:\\n"\nanswer: "{content}{eos}"\n'
    )
    spec, tokenizer = TokenizerSpec.load(llama_dir), load_tokenizer(llama_dir)
    row = {"instruction": "the quick", "output": "the"}
    prompt = "Human: the quick\nAssistant:\n"
    plain = str(tmp_path / "plain.yaml")
    assert encoded(spec, "PPOAlpacaStyleInstructionHandler", plain, row)[0] == tokenizer(prompt)["input_ids"]
    ids, labels = encoded(spec, "AlpacaStyleInstructionHandler", plain, row)
    assert ids == tokenizer(f"{prompt}the</s>")["input_ids"]
    assert [label for label in labels if label != -100] == ids[-4:] and labels[:-4] == [-100] * (len(ids) - 4)
    chosen = encoded(spec, "AlpacaStylePairwiseHandler", plain, {**row, "chosen": "the", "rejected": "quick"})
    assert chosen[:2] == [ids, labels]
    assert encoded(spec, "AlpacaPretrainHandler", plain, row) == [ids]
    for text in ("Human quick", "<s>Human quick"):
        expected = tokenizer(text, add_special_tokens=not text.startswith("<s>"))["input_ids"]
        assert encoded(spec, "GeneralPretrainHandler", None, {"text": text}) == [expected]
    split = encoded(spec, "AlpacaStyleInstructionHandler", "default", row)
    pieces = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("the</s>", "\n")]
    assert split[0] == sum(pieces, tokenizer("Human: the quick\nAssistant: ")["input_ids"])


def test_a_bos_that_a_template_writes_is_encoded_as_by_a_chat_template(llama_dir: Path) -> None:
    spec, tokenizer = TokenizerSpec.load(llama_dir), load_tokenizer(llama_dir)
    jinja = "{{ bos_token }}{% for m in messages %}Human: {{ m.content }}\n{% endfor %}"
    expected = tokenizer.apply_chat_template(
        [{"role": "user", "content": "the quick"}], chat_template=jinja, return_dict=False
    )
    ids = encoded(
        replace(spec, chat_template=jinja), "PPOAlpacaStyleInstructionHandler", HF, {"instruction": "the quick"}
    )
    assert ids == [expected]


def test_a_chat_template_that_starts_with_bos_gets_no_second_one(bos_spec: TokenizerSpec) -> None:
    own = replace(bos_spec, chat_template="{{ bos_token }}{{ messages[0].content }}<|eot_id|>")
    ids = TextEncoder(own).encode([load_template(HF, own).render_prompt([Message("user", "Hi")])])[0].tolist()
    assert ids.count(TextEncoder(own).token_id("<|begin_of_text|>")) == 1


def test_hf_finds_the_answers_and_their_end_tokens(spec: TokenizerSpec) -> None:
    text, trained, _ = load_template(HF, spec).render_dialogue([SYSTEM, *TURNS])
    assert [text[start:end] for start, end in trained] == [
        "1 2 3 😀<|im_end|>",
        "<|im_end|>",
        "the quick\n\nbrown fox<|im_end|>",
    ]


@pytest.mark.parametrize(
    "jinja",
    [
        None,  # ChatML, the tokenizer's own
        "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content | trim }}<|im_end|>{% endif %}{% endfor %}",
    ],
    ids=["chatml", "inst"],
)
def test_hf_renders_a_dialogue_once_and_more_often_only_where_a_header_is_quoted(
    jinja: str | None, spec: TokenizerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = ChatTemplate(replace(spec, chat_template=jinja or spec.chat_template))
    rendered: list[int] = []
    render = template._render
    monkeypatch.setattr(template, "_render", lambda *args, **named: rendered.append(1) or render(*args, **named))
    fast = template.render_dialogue(TURNS)
    assert len(rendered) == 1
    monkeypatch.setattr(template, "_header", None)
    assert template.render_dialogue(TURNS) == fast and len(rendered) == 1 + 1 + 3
    monkeypatch.undo()
    assert template._header is not None
    quoting = [Message("user", f"what is {template._header}?"), Message("assistant", "the quick"), *TURNS[:2]]
    text, marked, _ = template.render_dialogue(quoting)
    assert [text[start:end].strip() for start, end in marked] == ["the quick<|im_end|>", "1 2 3 😀<|im_end|>"]


def test_hf_refuses_a_chat_template_in_which_answers_cannot_be_found(spec: TokenizerSpec) -> None:
    rewriting = replace(spec, chat_template="{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(UserError, match="answers cannot be located"):
        ChatTemplate(rewriting).render_dialogue(TURNS)


def test_a_chat_template_that_would_leave_tools_out_refuses_them(spec: TokenizerSpec) -> None:
    called = [TURNS[0], Message("assistant", "", (ToolCall("add", {"a": 1}),))]
    with pytest.raises(UserError, match="chat template knows no tools; use another --prompt-type"):
        ChatTemplate(spec).render_prompt(TURNS[:1], [{"type": "function"}])
    with pytest.raises(UserError, match="chat template knows no tool calls; use another --prompt-type"):
        ChatTemplate(spec).render_dialogue(called)


def test_a_refusal_of_the_chat_template_is_passed_on(spec: TokenizerSpec) -> None:
    refusing = replace(spec, chat_template="{{ raise_exception('no system role here') }}")
    with pytest.raises(UserError, match="no system role here"):
        ChatTemplate(refusing).render_prompt([SYSTEM])


def test_the_default_prompt_type_is_the_tokenizers_own(spec: TokenizerSpec, bos_spec: TokenizerSpec) -> None:
    assert resolve_prompt_type(None, spec) == HF
    with pytest.raises(UserError, match="no chat template; choose --prompt-type from alpaca, .*, yi"):
        resolve_prompt_type(None, bos_spec)
    with pytest.raises(UserError, match="no chat template"):
        resolve_prompt_type(HF, bos_spec)


def test_an_unknown_prompt_type_gets_a_suggestion(spec: TokenizerSpec) -> None:
    with pytest.raises(UserError, match="did you mean 'llama3'"):
        resolve_prompt_type("lama3", spec)


def test_a_template_file_of_the_users_own_is_read(tmp_path: Path, spec: TokenizerSpec) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text('user: "Q: {content}\\n"\nheader: "A: "\nanswer: "{content}{eos}"\n')
    template = load_template(resolve_prompt_type(str(file), spec), spec)
    assert template.render_prompt([Message("user", "why")]) == "Q: why\nA: "


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('user: ""\nheader: ""\nanswer: ""\nheadr: ""\n', "unknown key 'headr'; known are .*; did you mean 'header'"),
        ('user: ""\n', "missing keys: header, answer"),
        ('user: 3\nheader: ""\nanswer: ""\n', "key 'user' must be str, found 3"),
        ("- a\n", "a template is a mapping"),
        ('user: "\n', "bad.yaml, line 2, column 1: not YAML: found unexpected end of stream"),
    ],
)
def test_a_malformed_template_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    with pytest.raises(UserError, match=message):
        read_template(tmp_path / "bad.yaml")


def test_a_template_that_needs_a_missing_token_is_refused(spec: TokenizerSpec) -> None:
    with pytest.raises(UserError, match=r"uses \{bos\}, but the tokenizer in .* has no BOS token"):
        load_template("llama3", spec)
