"""The declarative template format (docs/data.md): a small YAML file, checked and bound to a tokenizer."""

import json
import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError, did_you_mean, not_yaml
from mindllm.templates.declared_jinja import to_jinja
from mindllm.templates.messages import Message, Rendered, TemplateRefusal, Tools, split_reasoning

_MARKER = re.compile(r"<\|[^|<>]+\|>|<｜[^｜<>]+｜>|<(?:start|end)_of_turn>|<reserved_\d+>|\[gMASK\]|<sop>")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_TEXT_KEYS = "begin system user header answer tail stop end tools tool_call tool_begin tool tool_end thinking".split()


@dataclass(frozen=True)
class TemplateFile:
    """The keys of a template file. Placeholders in braces are filled in."""

    user: str
    header: str  # opens an answer; a prompt ends with it
    answer: str  # trained, so its end token belongs here
    begin: str = ""  # before everything
    system: str = "{content}"
    tail: str = ""  # after an answer, not trained
    stop: str = ""  # ends an answer by opening the next turn; trained, and put after the last answer too
    end: str = ""  # after a whole dialogue, not trained
    default_system: str = ""  # used when a row has no system prompt
    system_in_user: bool = False  # the system prompt is put before the text of the first question
    tools: str = ""  # the tools there are, for {tools} in `system`
    tool_call: str = ""  # a call in an answer
    tool_begin: str = ""  # before one or more results of calls
    tool: str = ""  # the result of a call, of the tool {name}
    tool_end: str = ""  # after one or more results
    thinking: str = ""  # an answer's {reasoning}; only answers to the last question have one
    strip_content: bool = False  # strip white space around every text
    split_answers: bool = False  # encode answers apart from their prompts


class DeclaredTemplate:
    """A template file bound to a tokenizer's BOS and EOS."""

    def __init__(self, file: TemplateFile, spec: TokenizerSpec, thinking: bool = True) -> None:
        """Bind.

        Raises:
            UserError: the template needs a BOS or EOS the tokenizer lacks, or thinking is off and it knows none.
        """
        if not thinking and not file.thinking:
            raise UserError("--thinking off has no effect with this --prompt-type, which knows no reasoning")
        self.split_answers = file.split_answers
        self._file = file
        self._thinking = thinking
        self._bound = {part: _fill_tokens(getattr(file, part), spec) for part in _TEXT_KEYS}
        opening = self._bound["begin"] or self._bound["user"]
        # One BOS and never two: from the template, or where the tokenizer puts one before any plain text. That one is
        # no text: in front of words, Llama's newer tokenizers give the first of them other ids.
        self._bos = spec.bos or ""
        self.adds_bos = bool(spec.bos and spec.adds_bos and not opening.startswith(spec.bos))
        self.markers = sorted(set(_MARKER.findall("".join(self._bound.values()))))

    @property
    def chat_template(self) -> str:
        """See `Template.chat_template`."""
        settings = {name: getattr(self._file, name) for name in ("default_system", "system_in_user", "strip_content")}
        begin = (self._bos if self.adds_bos else "") + self._bound["begin"]
        return to_jinja(self._bound | {"begin": begin}, settings, self._thinking)

    def under(self, settings: Mapping[str, Any]) -> "DeclaredTemplate":
        """See `Template.under`. The one setting that is known here is `enable_thinking`."""
        thinking = bool(settings.get("enable_thinking", self._thinking)) or not self._file.thinking
        if thinking == self._thinking:
            return self
        variant = copy(self)
        variant._thinking = thinking
        return variant

    def render_prompt(self, messages: list[Message], tools: Tools = ()) -> str:
        """See `Template.render_prompt`."""
        writer = self._write(messages, tools)
        writer.add(self._bound["header"])
        if not self._thinking:
            writer.add(_fill(self._bound["thinking"], reasoning=""))
        return writer.text

    def render_dialogue(self, messages: list[Message], tools: Tools = ()) -> Rendered:
        """See `Template.render_dialogue`."""
        writer = self._write(messages, tools)
        if self._bound["stop"]:
            writer.add(self._bound["stop"])
        writer.add(self._bound["end"])
        stop = self._bound["stop"]
        # The marker that opens the next turn is how an answer says that it is over.
        marked = [(a, b + len(stop) if stop and writer.text.startswith(stop, b) else b) for a, b in writer.marked]
        bare = tuple(marked[number] for number in writer.bare)
        return Rendered(writer.text, marked, bare)

    def _write(self, messages: list[Message], tools: Tools) -> "_Writer":
        writer = _Writer(self._bound["begin"])
        system, turns = self._system(messages, tools)
        if not self._file.system_in_user:
            writer.add(system)
            system = ""
        last_question = max((turn for turn, message in enumerate(turns) if message.role == "user"), default=-1)
        for turn, message in enumerate(turns):
            if message.role == "assistant":
                self._write_answer(writer, message, turn > last_question, turn == len(turns) - 1)
            elif message.role == "tool":
                self._write_result(writer, turns, turn)
            else:
                content = self._clean(message.content)
                # Later system prompts are questions to models that know one only.
                part = "user" if message.role == "user" or self._file.system_in_user else "system"
                writer.add(_fill(self._bound[part], content=system + content, tools=""))
                system = ""
        return writer

    def _system(self, messages: list[Message], tools: Tools) -> tuple[str, list[Message]]:
        """The formatted system prompt, "" where there is none, and the turns after it."""
        given = bool(messages) and messages[0].role == "system"
        content = self._clean(messages[0].content) if given else self._file.default_system
        if tools and not self._bound["tools"]:
            raise TemplateRefusal(
                "the template knows no tools; use --prompt-type hf or qwen3, or add `tools` to your own"
            )
        if not given and not content and not tools:
            return "", messages
        listed = _fill(self._bound["tools"], tools="\n".join(_json(tool) for tool in tools)) if tools else ""
        if not content:
            listed = listed.lstrip()
        return _fill(self._bound["system"], content=content, tools=listed), messages[1:] if given else messages

    def _write_answer(self, writer: "_Writer", message: Message, is_current: bool, is_last: bool) -> None:
        """`is_current`: after the last question; earlier answers are shown without their reasoning."""
        content, reasoning = self._clean(message.content), message.reasoning or ""
        opening, opening_is_trained = "", True
        if reasoning and not self._bound["thinking"]:
            raise TemplateRefusal(
                "the template shows no reasoning, which is a field of its own here; use --prompt-type hf or qwen3, "
                "add `thinking` to your own, or write it into the answer"
            )
        if self._bound["thinking"]:
            if message.reasoning is None:
                reasoning, content = split_reasoning(content)
            if is_current and (is_last or reasoning):
                shown = reasoning.strip("\n") if self._thinking else ""
                opening, opening_is_trained = _fill(self._bound["thinking"], reasoning=shown), self._thinking
                content = content.lstrip("\n")
            elif reasoning.strip() and self._thinking:
                writer.bare.append(len(writer.marked))
        calls = [self._tool_call(call.name, _json(call.arguments)) for call in message.tool_calls]
        content = "\n".join([content, *calls] if content else calls)
        writer.add(self._bound["header"])
        if not opening_is_trained:
            writer.add(opening)
            opening = ""
        writer.add_marked(opening + _fill(self._bound["answer"], content=content))
        writer.add(self._bound["tail"])

    def _tool_call(self, name: str, arguments: str) -> str:
        if not self._bound["tool_call"]:
            raise TemplateRefusal("the template knows no tool calls; use --prompt-type hf or qwen3, or add `tool_call`")
        return _fill(self._bound["tool_call"], name=name, arguments=arguments)

    def _write_result(self, writer: "_Writer", turns: list[Message], turn: int) -> None:
        if not self._bound["tool"]:
            raise TemplateRefusal("the template knows no tool results; use --prompt-type hf or qwen3, or add `tool`")
        if turn == 0 or turns[turn - 1].role != "tool":
            writer.add(self._bound["tool_begin"])
        message = turns[turn]
        name = str(message.fields.get("name", ""))
        writer.add(_fill(self._bound["tool"], content=self._clean(message.content), name=name))
        if turn == len(turns) - 1 or turns[turn + 1].role != "tool":
            writer.add(self._bound["tool_end"])

    def _clean(self, content: str) -> str:
        return content.strip() if self._file.strip_content else content


class _Writer:
    """Text in the making, and its marked ranges."""

    def __init__(self, text: str) -> None:
        self._parts = [text]
        self._length = len(text)
        self.marked: list[tuple[int, int]] = []
        self.bare: list[int] = []  # numbers of marked ranges without the reasoning of their answer

    def add(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)

    def add_marked(self, text: str) -> None:
        self.marked.append((self._length, self._length + len(text)))
        self.add(text)

    @property
    def text(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0]


def read_template(path: Path) -> TemplateFile:
    """Read and check a template file.

    Raises:
        UserError: not YAML, an unknown or missing key, or a value of the wrong type.
    """
    import yaml

    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(not_yaml(path, error)) from error
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
    for key in ("user", "answer"):
        if "{content}" not in found[key]:
            raise UserError(f"{path}: key '{key}' must contain {{content}}, found {found[key]!r}")
    return TemplateFile(**found)


def _fill(part: str, **values: str) -> str:
    """Fill placeholders in one pass, so that braces in the texts themselves stay what they are."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), part)


def _fill_tokens(part: str, spec: TokenizerSpec) -> str:
    for name, token in (("bos", spec.bos), ("eos", spec.eos)):
        mark = "{" + name + "}"
        if mark in part and token is None:
            raise UserError(f"the template uses {mark}, but the tokenizer in {spec.path} has no {name.upper()} token")
        part = part.replace(mark, token or "")
    return part


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
