"""Prompt templates: conversations to text, with the character ranges that are trained on.

A template is a small file in configs/templates/ (the format is in docs/data.md), a file of the user's in that format,
or `hf`, the tokenizer's own chat template.
"""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError, did_you_mean

TEMPLATE_DIR = Path(__file__).resolve().parents[2] / "configs" / "templates"
HF = "hf"
_MARKER = re.compile(r"<\|[^|<>]+\|>")


class Message(NamedTuple):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Rendered(NamedTuple):
    """A conversation as text, and the (start, end) character ranges that are trained, one per answer."""

    text: str
    trained: list[tuple[int, int]]


class Template(Protocol):
    """What handlers ask of a template."""

    split_answers: bool
    markers: list[str]  # tokens of the template that the tokenizer must know

    def render_prompt(self, messages: list[Message]) -> str:
        """The conversation up to its last user turn, ending where the model is to answer."""

    def render_dialogue(self, messages: list[Message]) -> Rendered:
        """The whole conversation, and which parts of it are answers (with their end token)."""


@dataclass(frozen=True)
class TemplateFile:
    """The keys of a template file. `{content}`, `{bos}` and `{eos}` are filled in."""

    user: str
    header: str  # opens an answer; a prompt ends with it
    answer: str  # trained, so its end token belongs here
    begin: str = ""  # before everything
    system: str = "{content}"
    tail: str = ""  # after an answer, not trained
    default_system: str = ""  # used when a row has no system prompt
    strip_content: bool = False  # strip white space around every text
    split_answers: bool = False  # encode answers apart from their prompts


class DeclaredTemplate:
    """A template file bound to a tokenizer's BOS and EOS."""

    def __init__(self, file: TemplateFile, spec: TokenizerSpec) -> None:
        self.split_answers = file.split_answers
        self._file = file
        self._bound = {
            part: _fill_tokens(getattr(file, part), spec)
            for part in ("begin", "system", "user", "header", "answer", "tail")
        }
        # One BOS and never two: from the template, or where the tokenizer puts one before any plain text.
        if spec.bos and spec.adds_bos and not self._bound["begin"].startswith(spec.bos):
            self._bound["begin"] = spec.bos + self._bound["begin"]
        self.markers = sorted(set(_MARKER.findall("".join(self._bound.values()))))

    def render_prompt(self, messages: list[Message]) -> str:
        """See `Template.render_prompt`."""
        return self.render_dialogue(messages).text + self._bound["header"]

    def render_dialogue(self, messages: list[Message]) -> Rendered:
        """See `Template.render_dialogue`."""
        parts = [self._bound["begin"]]
        length = len(parts[0])
        trained = []
        for message in self._with_system(messages):
            content = message.content.strip() if self._file.strip_content else message.content
            if message.role == "assistant":
                answer = self._bound["answer"].replace("{content}", content)
                start = length + len(self._bound["header"])
                trained.append((start, start + len(answer)))
                part = self._bound["header"] + answer + self._bound["tail"]
            else:
                part = self._bound[message.role].replace("{content}", content)
            parts.append(part)
            length += len(part)
        return Rendered("".join(parts), trained)

    def _with_system(self, messages: list[Message]) -> list[Message]:
        if not self._file.default_system or messages[0].role == "system":
            return messages
        return [Message("system", self._file.default_system), *messages]


class ChatTemplate:
    """The tokenizer's own chat template (jinja), rendered by transformers' own renderer."""

    split_answers = False

    def __init__(self, spec: TokenizerSpec) -> None:
        self.markers: list[str] = []
        self._spec = spec
        ends = {*spec.special_texts, *([spec.eos] if spec.eos else [])}
        self._end = re.compile(r"\s*(?:" + "|".join(map(re.escape, sorted(ends))) + ")") if ends else None

    def render_prompt(self, messages: list[Message]) -> str:
        """See `Template.render_prompt`."""
        return self._render(messages, add_generation_prompt=True)

    def render_dialogue(self, messages: list[Message]) -> Rendered:
        """See `Template.render_dialogue`. Answers begin where the prompt before them ends.

        Raises:
            UserError: the template rewrites earlier turns, so that answers cannot be located.
        """
        text = self._render(messages, add_generation_prompt=False)
        trained = []
        for turn, message in enumerate(messages):
            if message.role != "assistant":
                continue
            prompt = self.render_prompt(messages[:turn])
            if not text.startswith(prompt):
                raise UserError("answers cannot be located in the tokenizer's chat template; use another --prompt-type")
            trained.append((len(prompt), self._end_of_answer(text, len(prompt), message.content.strip())))
        return Rendered(text, trained)

    def _end_of_answer(self, text: str, start: int, content: str) -> int:
        found = text.find(content, start)
        if found < 0:
            raise UserError("the tokenizer's chat template rewrites answers; use another --prompt-type")
        end = found + len(content)
        marker = self._end.match(text, end) if self._end else None
        return marker.end() if marker else end

    def _render(self, messages: list[Message], add_generation_prompt: bool) -> str:
        import jinja2
        from transformers.utils.chat_template_utils import render_jinja_template

        turns = [message._asdict() for message in messages]
        try:
            # Newer releases return the rendered texts, older ones a pair of them and of trained ranges.
            rendered = render_jinja_template(
                conversations=[turns],
                chat_template=self._spec.chat_template,
                add_generation_prompt=add_generation_prompt,
                **self._spec.special_tokens,
            )
        except jinja2.TemplateError as error:
            raise UserError(f"the tokenizer's chat template refuses this conversation: {error}") from error
        texts = rendered[0] if isinstance(rendered, tuple) else rendered
        return str(texts[0])


def template_names() -> list[str]:
    """Every value `--prompt-type` accepts, a file of the user's own apart."""
    return sorted([HF, *(path.stem for path in TEMPLATE_DIR.glob("*.yaml"))])


def resolve_prompt_type(prompt_type: str | None, spec: TokenizerSpec) -> str:
    """The prompt type asked for, or `hf` when none was and the tokenizer has a chat template.

    Raises:
        UserError: unknown name, or no chat template to fall back on.
    """
    names = template_names()
    if prompt_type is None and spec.chat_template:
        return HF
    if prompt_type is None or (prompt_type == HF and not spec.chat_template):
        others = ", ".join(name for name in names if name != HF)
        raise UserError(f"the tokenizer in {spec.path} has no chat template; choose --prompt-type from {others}")
    if prompt_type not in names and not Path(prompt_type).is_file():
        hint = did_you_mean(prompt_type, names)
        raise UserError(f"--prompt-type {prompt_type} is neither a template ({', '.join(names)}) nor a file{hint}")
    return prompt_type


def load_template(prompt_type: str, spec: TokenizerSpec) -> Template:
    """Bind a resolved prompt type to a tokenizer.

    Raises:
        UserError: the template file is malformed, or needs a BOS or EOS the tokenizer lacks.
    """
    if prompt_type == HF:
        return ChatTemplate(spec)
    return DeclaredTemplate(read_template(template_path(prompt_type)), spec)


def template_path(prompt_type: str) -> Path:
    """File behind a prompt type other than `hf`."""
    named = TEMPLATE_DIR / f"{prompt_type}.yaml"
    return named if named.is_file() else Path(prompt_type)


def read_template(path: Path) -> TemplateFile:
    """Read and check a template file.

    Raises:
        UserError: not YAML, an unknown or missing key, or a value of the wrong type.
    """
    import yaml

    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a YAML file: {error}") from error
    known = {field.name: field.type for field in fields(TemplateFile)}
    if not isinstance(found, dict):
        raise UserError(f"{path}: a template is a mapping with keys {', '.join(known)}")
    for key, value in found.items():
        if key not in known:
            raise UserError(f"{path}: unknown key '{key}'; known are {', '.join(known)}{did_you_mean(str(key), known)}")
        if not isinstance(value, known[key]):  # type: ignore[arg-type]
            raise UserError(f"{path}: key '{key}' must be {known[key].__name__}, found {value!r}")  # type: ignore[union-attr]
    missing = [key for key in ("user", "header", "answer") if key not in found]
    if missing:
        raise UserError(f"{path}: missing keys: {', '.join(missing)}")
    return TemplateFile(**found)


def _fill_tokens(part: str, spec: TokenizerSpec) -> str:
    for name, token in (("bos", spec.bos), ("eos", spec.eos)):
        mark = "{" + name + "}"
        if mark in part and token is None:
            raise UserError(f"the template uses {mark}, but the tokenizer in {spec.path} has no {name.upper()} token")
        part = part.replace(mark, token or "")
    return part
