"""The tokenizer's own chat template (jinja), rendered by transformers' own renderer."""

import json
import os
import re
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.templates.answer_ends import AnswerEnds
from mindllm.templates.messages import (
    REASONING_FIELDS,
    Message,
    Rendered,
    TemplateRefusal,
    ToolCall,
    Tools,
    call_as_dict,
    split_reasoning,
)

_QUESTION, _ANSWER = Message("user", "question"), Message("assistant", "response")
_CALL = Message("assistant", "", (ToolCall("lookup", {"key": "argument"}, "call00001"),))  # some want ids of nine
_RESULT = Message("tool", "result", fields={"tool_call_id": "call00001", "name": "lookup"})
# What a template may raise where a conversation is not as it expects.
_MOST_VARIANTS = 64  # settings of rows that are remembered
_REFUSALS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


class _CallForm(NamedTuple):
    """How a template wants answers that call tools."""

    content: str | None = ""  # where there is no text beside the calls
    arguments_as_text: bool = False


class ChatTemplate:
    """The chat template of a tokenizer, and where its answers are."""

    adds_bos = False  # it writes one itself, or there is none
    split_answers = False

    def __init__(
        self, spec: TokenizerSpec, thinking: bool = True, settings: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Find out how answers begin and end, under settings that the template may read.

        Raises:
            UserError: the template is no jinja, or thinking is off and it does not ask whether it is.
        """
        self.markers: list[str] = []
        self._spec = spec
        self._source = spec.chat_template or ""
        if not thinking and "enable_thinking" not in self._source:
            raise UserError("--thinking off has no effect with this --prompt-type, which knows no reasoning")
        self._settings: dict[str, Any] = {**({} if thinking else {"enable_thinking": False}), **settings}
        self._variants: dict[str, ChatTemplate] = {}
        read = _fields_read(self._source)
        self._reasoning_field = next((name for name in REASONING_FIELDS if name in read), None)
        self._header = self._find_header()
        self._short_header = self._find_short_header()
        inner, last = self._written_after("response", _ANSWER, _QUESTION)
        self._ends = AnswerEnds(inner, last, self._end_tokens, spec.eos, self._header or "")

    @property
    def chat_template(self) -> str:
        """See `Template.chat_template`."""
        return self._spec.chat_template or ""

    def under(self, settings: Mapping[str, Any]) -> "ChatTemplate":
        """See `Template.under`. Prompts may end otherwise then, so all is found out anew."""
        key = json.dumps(settings, sort_keys=True, default=str)
        if key not in self._variants:
            if len(self._variants) >= _MOST_VARIANTS:
                self._variants.clear()
            self._variants[key] = ChatTemplate(self._spec, settings={**self._settings, **settings})
        return self._variants[key]

    def render_prompt(self, messages: list[Message], tools: Tools = ()) -> str:
        """See `Template.render_prompt`."""
        return self._render(messages, tools, add_generation_prompt=True)

    def render_dialogue(self, messages: list[Message], tools: Tools = ()) -> Rendered:
        """See `Template.render_dialogue`. Answers begin where the prompt before them ends.

        Raises:
            TemplateRefusal: the template refuses, or it rewrites earlier turns, so that answers cannot be located.
        """
        text = self._render(messages, tools, add_generation_prompt=False)
        turns = [turn for turn, message in enumerate(messages) if message.role == "assistant"]
        starts = self._starts(text, messages, turns, tools)
        stops = [*starts[1:], len(text)]
        marked, bare = [], []
        for turn, start, stop in zip(turns, starts, stops, strict=True):
            said = self._end_of_text(text, start, stop, messages[turn])
            leaves_out = self._leaves_out_reasoning(text[start:stop], messages[turn])
            if leaves_out and turn == turns[-1]:
                raise TemplateRefusal(
                    "the tokenizer's chat template leaves out the reasoning of the last answer; use another "
                    "--prompt-type"
                )
            ends = self._ends_of_calls if messages[turn].tool_calls else self._ends
            text, end = ends.close(text, said, stop, is_last=turn == len(messages) - 1)
            if end is None:
                end = self._end_by_next_turn(text, messages[: turn + 1], tools) if messages[turn].tool_calls else said
            marked.append((start, end))
            bare += [(start, end)] if leaves_out else []
        return Rendered(text, marked, tuple(bare))

    def _starts(self, text: str, messages: list[Message], turns: list[int], tools: Tools) -> list[int]:
        """Where answers begin, found in the quickest way that is sure."""
        starts = _places(self._header, text)
        if len(starts) == len(turns):  # fewer or more, as when a header is quoted
            return starts
        try:
            return self._starts_by_prompts(text, messages, turns, tools)
        except TemplateRefusal:
            starts = _places(self._short_header, text)
            if len(starts) != len(turns):
                raise
            return starts

    def _starts_by_prompts(self, text: str, messages: list[Message], turns: list[int], tools: Tools) -> list[int]:
        """Where answers begin, by rendering the prompt of each, which takes much longer."""
        starts = []
        for turn in turns:
            prompt = self.render_prompt(messages[:turn], tools)
            if not text.startswith(prompt):
                raise TemplateRefusal(
                    "answers cannot be located in the tokenizer's chat template; use another --prompt-type"
                )
            starts.append(len(prompt))
        return starts

    def _find_header(self) -> str | None:
        """What stands before every answer, and nowhere else; None where the template shows no such text."""
        try:
            asked = self._render([_QUESTION], (), add_generation_prompt=False)
            prompt = self.render_prompt([_QUESTION])
            text = self._render([_QUESTION, _ANSWER], (), add_generation_prompt=False)
            start = self._starts_by_prompts(text, [_QUESTION, _ANSWER], [1], ())
        except TemplateRefusal:
            return None
        # Where the question itself ends with what asks for an answer ([/INST]), that is the header.
        header = prompt.removeprefix(asked) or prompt.rpartition(_QUESTION.content)[2]
        return header if header and _places(header, text) == start else None

    def _find_short_header(self) -> str | None:
        """What stands before every answer where prompts open the reasoning too, which answers may lack or close."""
        try:
            openings = [self.render_prompt([_QUESTION]).rpartition(_QUESTION.content)[2]]
            for turns in ([_QUESTION, _ANSWER], [_QUESTION, _ANSWER, _QUESTION]):
                text = self._render(turns, (), add_generation_prompt=False)
                openings.append(text.partition(_QUESTION.content)[2].partition(_ANSWER.content)[0])
        except TemplateRefusal:
            return None
        return os.path.commonprefix(openings).removesuffix("<think>") or None

    @cached_property
    def _ends_of_calls(self) -> AnswerEnds:
        """How answers end that call tools, learned when there is one."""
        inner, last = self._written_after("argument", _CALL, _RESULT)
        return AnswerEnds.of_calls(inner, last, self._end_tokens, self._spec.eos, self._header or "")

    @cached_property
    def _end_tokens(self) -> set[str]:
        tokens = {*self._spec.special_texts, *([self._spec.eos] if self._spec.eos else [])}
        return tokens - ({self._spec.bos} if self._spec.bos != self._spec.eos else set())

    def _written_after(self, words: str, answer: Message, following: Message) -> tuple[str, str]:
        """What the template writes after an answer that another turn follows, and after the last one."""
        written = []
        for turns in ([_QUESTION, answer, following], [_QUESTION, answer]):
            try:
                text = self._render(turns, (), add_generation_prompt=False)
            except TemplateRefusal:
                text = ""
            written.append(text.rpartition(words)[2] if words in text else "")
        return written[0], written[1]

    def _end_of_text(self, text: str, start: int, stop: int, message: Message) -> int:
        """Where the words of an answer end that begins at `start` and whose turn ends before `stop`."""
        position = start
        if message.reasoning and (shown := text.find(message.reasoning.strip(), start, stop)) >= 0:
            position = shown + len(message.reasoning.strip())
        content = message.content.strip()
        found = text.find(content, position, stop)
        if found < 0:
            content = split_reasoning(content)[1].strip()  # reasoning is often left out of earlier answers
            found = text.find(content, position, stop)
        if found < 0:
            raise TemplateRefusal("the tokenizer's chat template rewrites answers; use another --prompt-type")
        end = found + len(content)
        for call in message.tool_calls:
            named = max(text.find(call.name, end, stop), text.find(call.name, start, stop))
            if named < 0:
                raise TemplateRefusal(
                    f"the tokenizer's chat template leaves out the call of {call.name}; use another --prompt-type"
                )
            end = max(end, named + len(call.name))
        return end

    def _end_by_next_turn(self, text: str, messages: list[Message], tools: Tools) -> int:
        """Where a last turn that nothing ends gives way to the next one, with its calls, which may be rewritten."""
        return len(os.path.commonprefix([text, self._render(messages, tools, add_generation_prompt=False)]))

    @cached_property
    def _call_form(self) -> _CallForm:
        """The first form of calls that the template shows; some join arguments as text, or want null for no content."""
        forms = [_CallForm(content, as_text) for as_text in (False, True) for content in ("", None)]
        return next((form for form in forms if self._shows_call(form)), forms[0])

    def _shows_call(self, form: _CallForm) -> bool:
        try:
            text = self._jinja(
                [self._as_dict(_QUESTION, form), self._as_dict(_CALL, form)], (), add_generation_prompt=False
            )
        except TemplateRefusal:
            return False
        return "lookup" in text and "argument" in text

    def _check(self, messages: list[Message], tools: Tools) -> None:
        """Refuse what the template would leave out without a word."""
        remedy = "use another --prompt-type, such as qwen3"
        if tools and "tools" not in self._source:
            raise TemplateRefusal(f"the tokenizer's chat template knows no tools; {remedy}")
        if "tool_calls" not in self._source and any(message.tool_calls for message in messages):
            raise TemplateRefusal(f"the tokenizer's chat template knows no tool calls; {remedy}")
        if self._reasoning_field is None and any(message.reasoning for message in messages):
            raise TemplateRefusal(
                "the tokenizer's chat template shows no reasoning, which is a field of its own here; "
                f"{remedy}, or write it into the answer"
            )

    def _leaves_out_reasoning(self, answer: str, message: Message) -> bool:
        """Whether an answer lacks the reasoning it should have, as earlier ones do in many templates."""
        reasoning = message.reasoning if message.reasoning is not None else split_reasoning(message.content)[0]
        return bool(self._settings.get("enable_thinking", True)) and reasoning.strip() not in answer

    def _render(self, messages: list[Message], tools: Tools, add_generation_prompt: bool) -> str:
        self._check(messages, tools)
        form = self._call_form if any(message.tool_calls for message in messages) else _CallForm()
        turns = [self._as_dict(message, form) for message in messages]
        return self._jinja(turns, tools, add_generation_prompt)

    def _as_dict(self, message: Message, form: _CallForm) -> dict[str, Any]:
        """A message as chat templates expect it, with every field that the data has."""
        turn: dict[str, Any] = {**message.fields, "role": message.role, "content": message.content}
        if message.reasoning is not None and self._reasoning_field is not None:
            turn[self._reasoning_field] = message.reasoning
        if message.tool_calls:
            turn["content"] = message.content or form.content
            turn["tool_calls"] = [_call_dict(call, form.arguments_as_text) for call in message.tool_calls]
        return turn

    def _jinja(self, turns: list[dict[str, Any]], tools: Tools, add_generation_prompt: bool) -> str:
        settings = {**self._settings, **self._spec.special_tokens, "add_generation_prompt": add_generation_prompt}
        return render_jinja(self._source, turns, tools, settings)


def render_jinja(chat_template: str, turns: list[dict[str, Any]], tools: Tools, settings: dict[str, Any]) -> str:
    """A conversation as transformers renders it.

    Args:
        chat_template: jinja.
        turns: the conversation, as chat templates read it.
        tools: descriptions of the tools that the model may call.
        settings: what else the template may ask for: special tokens by name, ``add_generation_prompt``.

    Raises:
        UserError: the template is no valid jinja.
        TemplateRefusal: it does not render this conversation.
    """
    import jinja2
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        # Newer releases return the rendered texts, older ones a pair of them and of trained ranges.
        rendered = render_jinja_template(
            conversations=[turns], tools=[dict(tool) for tool in tools] or None, chat_template=chat_template, **settings
        )
    except jinja2.TemplateSyntaxError as error:
        raise UserError(f"the tokenizer's chat template is no valid jinja: {error}") from error
    except (jinja2.TemplateError, *_REFUSALS) as error:
        raise TemplateRefusal(f"the tokenizer's chat template refuses this conversation: {error}") from error
    texts = rendered[0] if isinstance(rendered, tuple) else rendered
    return str(texts[0])


def _places(header: str | None, text: str) -> list[int]:
    """Where a header ends in a text, each time that it stands there."""
    return [found.end() for found in re.finditer(re.escape(header), text)] if header else []


def _call_dict(call: ToolCall, arguments_as_text: bool) -> dict[str, Any]:
    written = call_as_dict(call)
    if arguments_as_text:
        written["function"]["arguments"] = json.dumps(call.arguments, ensure_ascii=False)
    return written


def _fields_read(source: str) -> set[str]:
    """Names that a template reads as fields: of attributes, and written as texts."""
    code = re.sub(r"\{#.*?#\}", "", source, flags=re.DOTALL)
    return {name for found in re.findall(r"\.\s*(\w+)|'(\w+)'|\"(\w+)\"", code) for name in found if name}
