"""The tokenizer's own chat template (jinja), rendered by transformers' own renderer."""

import re
from typing import Any

from mindllm.data.messages import Message, Rendered, Tools, split_reasoning
from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError

_PROBE = [Message("user", "question"), Message("assistant", "response"), Message("user", "question")]


class ChatTemplate:
    """The chat template of a tokenizer, and where its answers are."""

    split_answers = False

    def __init__(self, spec: TokenizerSpec, thinking: bool = True) -> None:
        """Find out how answers end.

        Raises:
            UserError: thinking is off and the template does not ask whether it is.
        """
        self.markers: list[str] = []
        self._spec = spec
        if not thinking and "enable_thinking" not in (spec.chat_template or ""):
            raise UserError("--thinking off has no effect with this --prompt-type, which knows no reasoning")
        self._settings: dict[str, Any] = {} if thinking else {"enable_thinking": False}
        self._end = self._find_end()
        self._header = self._find_header()

    def render_prompt(self, messages: list[Message], tools: Tools = ()) -> str:
        """See `Template.render_prompt`."""
        return self._render(messages, tools, add_generation_prompt=True)

    def render_dialogue(self, messages: list[Message], tools: Tools = ()) -> Rendered:
        """See `Template.render_dialogue`. Answers begin where the prompt before them ends.

        Raises:
            UserError: the template rewrites earlier turns, so that answers cannot be located.
        """
        text = self._render(messages, tools, add_generation_prompt=False)
        turns = [turn for turn, message in enumerate(messages) if message.role == "assistant"]
        starts = self._starts_by_header(text, len(turns)) or self._starts_by_prompts(text, messages, turns, tools)
        stops = [*starts[1:], len(text)]
        marked = []
        for turn, start, stop in zip(turns, starts, stops, strict=True):
            marked.append((start, self._end_of_answer(text, start, stop, messages[turn])))
        return Rendered(text, marked)

    def _starts_by_header(self, text: str, num_answers: int) -> list[int] | None:
        """Where answers begin, when the text has as many headers; None when it has not, as when one is quoted in it."""
        if self._header is None or text.count(self._header) != num_answers:
            return None
        return [found.end() for found in re.finditer(re.escape(self._header), text)]

    def _starts_by_prompts(self, text: str, messages: list[Message], turns: list[int], tools: Tools) -> list[int]:
        """The same by rendering the prompt of each answer, which takes much longer."""
        starts = []
        for turn in turns:
            prompt = self.render_prompt(messages[:turn], tools)
            if not text.startswith(prompt):
                raise UserError("answers cannot be located in the tokenizer's chat template; use another --prompt-type")
            starts.append(len(prompt))
        return starts

    def _find_header(self) -> str | None:
        """What stands before every answer, and nowhere else; None where the template shows no such text."""
        try:
            asked = self._render(_PROBE[:1], (), add_generation_prompt=False)
            prompt = self.render_prompt(_PROBE[:1])
            text = self._render(_PROBE[:2], (), add_generation_prompt=False)
            start = self._starts_by_prompts(text, _PROBE[:2], [1], ())
        except UserError:
            return None
        # Where the question itself ends with what asks for an answer ([/INST]), that is the header.
        header = prompt.removeprefix(asked) or prompt.rpartition(_PROBE[0].content)[2]
        places = [found.end() for found in re.finditer(re.escape(header), text)]
        return header if header and places == start else None

    def _find_end(self) -> str | None:
        """The special token that follows an answer; None when nothing does, or the template refuses to say."""
        ends = sorted({*self._spec.special_texts, *([self._spec.eos] if self._spec.eos else [])}, key=len, reverse=True)
        try:
            text = self._render(_PROBE, (), add_generation_prompt=False)
        except UserError:
            return None
        found = re.search(r"response\s*(" + "|".join(map(re.escape, ends)) + ")", text) if ends else None
        return found[1] if found else None

    def _end_of_answer(self, text: str, start: int, stop: int, message: Message) -> int:
        """Where an answer ends that begins at `start` and lies before `stop`."""
        content = message.content.strip()
        found = text.find(content, start, stop)
        if found < 0:
            content = split_reasoning(content)[1].strip()  # reasoning is often left out of earlier answers
            found = text.find(content, start, stop)
        if found < 0:
            raise UserError("the tokenizer's chat template rewrites answers; use another --prompt-type")
        end = found + len(content)
        if self._end is None:
            return end
        after = text.find(self._end, end, stop)  # tool calls may stand between
        return end if after < 0 else after + len(self._end)

    def _check_tools(self, messages: list[Message], tools: Tools) -> None:
        """Refuse what the template would leave out without a word."""
        source = self._spec.chat_template or ""
        if tools and "tools" not in source:
            raise UserError("the tokenizer's chat template knows no tools; use another --prompt-type, such as qwen3")
        if "tool_calls" not in source and any(message.tool_calls for message in messages):
            raise UserError("the tokenizer's chat template knows no tool calls; use another --prompt-type")

    def _render(self, messages: list[Message], tools: Tools, add_generation_prompt: bool) -> str:
        import jinja2
        from transformers.utils.chat_template_utils import render_jinja_template

        self._check_tools(messages, tools)

        try:
            # Newer releases return the rendered texts, older ones a pair of them and of trained ranges.
            rendered = render_jinja_template(
                conversations=[[_as_dict(message) for message in messages]],
                tools=[dict(tool) for tool in tools] or None,
                chat_template=self._spec.chat_template,
                add_generation_prompt=add_generation_prompt,
                **self._settings,
                **self._spec.special_tokens,
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise UserError(f"the tokenizer's chat template refuses this conversation: {error}") from error
        texts = rendered[0] if isinstance(rendered, tuple) else rendered
        return str(texts[0])


def _as_dict(message: Message) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [{"type": "function", "function": call._asdict()} for call in message.tool_calls]
    return turn
