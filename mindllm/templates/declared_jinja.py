"""A template file as a chat template (jinja), which Hugging Face files of models trained with it carry."""

import json
import re
from collections.abc import Mapping

_PLACEHOLDER = re.compile(r"\{(content|tools|name|arguments|reasoning)\}")

# In `parts` a text is a list of strings and, for each placeholder, a list with its name.
_PROGRAM = """\
{%- set parts = PARTS -%}
{%- macro text(part, content="", tools="", name="", arguments="", reasoning="") -%}
    {%- set values = {"content": content, "tools": tools, "name": name, "arguments": arguments} -%}
    {%- set values = dict(values, reasoning=reasoning) -%}
    {%- for piece in parts[part] -%}{{- piece if piece is string else values[piece[0]] -}}{%- endfor -%}
{%- endmacro -%}
{%- macro clean(content) -%}
    {{- ((content or "") | trim) if parts.strip_content else (content or "") -}}
{%- endmacro -%}
{%- set given = messages and messages[0].role == "system" -%}
{%- set system = clean(messages[0].content) if given else parts.default_system -%}
{%- set turns = messages[1:] if given else messages -%}
{%- if tools and not parts.tools -%}{{- raise_exception("this chat template knows no tools") -}}{%- endif -%}
{%- set listed = text("tools", tools=tools | map("tojson") | join("\\n")) if tools else "" -%}
{%- set opening = "" -%}
{%- if given or system or tools -%}
    {%- set opening = text("system", content=system, tools=listed if system else listed.lstrip()) -%}
{%- endif -%}
{%- set state = namespace(opening=opening, question=-1, answer="", thought="") -%}
{{- text("begin") -}}
{%- if not parts.system_in_user -%}{{- state.opening -}}{%- set state.opening = "" -%}{%- endif -%}
{%- for message in turns -%}
    {%- if message.role == "user" -%}{%- set state.question = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in turns -%}
    {%- set content = clean(message.content) -%}
    {%- if message.role == "assistant" -%}
        {%- set state.thought = "" -%}
REASONING\
        {%- set state.answer = content -%}
        {%- for call in message.tool_calls or [] -%}
            {%- if not parts.tool_call -%}{{- raise_exception("this chat template knows no calls") -}}{%- endif -%}
            {%- set call = call.function or call -%}
            {%- set arguments = call.arguments if call.arguments is string else call.arguments | tojson -%}
            {%- set written = text("tool_call", name=call.name, arguments=arguments) -%}
            {%- set state.answer = state.answer + ("\\n" if state.answer else "") + written -%}
        {%- endfor -%}
        {{- text("header") + state.thought + text("answer", content=state.answer) + text("tail") -}}
    {%- elif message.role == "tool" -%}
        {%- if not parts.tool -%}{{- raise_exception("this chat template knows no results of tools") -}}{%- endif -%}
        {%- if loop.first or loop.previtem.role != "tool" -%}{{- text("tool_begin") -}}{%- endif -%}
        {{- text("tool", content=content, name=message.name or "") -}}
        {%- if loop.last or loop.nextitem.role != "tool" -%}{{- text("tool_end") -}}{%- endif -%}
    {%- else -%}
        {%- set part = "user" if message.role == "user" or parts.system_in_user else "system" -%}
        {{- text(part, content=state.opening + content) -}}
        {%- set state.opening = "" -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- text("header") -}}
EMPTY_REASONING\
{%- elif turns and turns[-1].role == "assistant" -%}
    {{- text("stop") + text("end") -}}
{%- endif -%}
"""
# Only where the template shows reasoning: from names that a chat template reads it is told what it knows.
_REASONING = """\
        {%- set reasoning = message.reasoning_content or "" -%}
        {%- if not reasoning and "</think>" in content -%}
            {%- set reasoning = content.split("</think>")[0].rstrip("\\n").split("<think>")[-1].lstrip("\\n") -%}
            {%- set content = content.split("</think>")[-1].lstrip("\\n") -%}
        {%- endif -%}
        {%- if loop.index0 > state.question and (loop.last or reasoning) -%}
            {%- set state.thought = text("thinking", reasoning=reasoning.strip("\\n")) -%}
            {%- set content = content.lstrip("\\n") -%}
        {%- endif -%}
"""
_EMPTY_REASONING = """\
    {%- if not (enable_thinking if enable_thinking is defined else THINKING) -%}
        {{- text("thinking") -}}
    {%- endif -%}
"""


def to_jinja(parts: Mapping[str, str], settings: Mapping[str, str | bool], thinking: bool) -> str:
    """Write a template as jinja that renders the same text.

    Args:
        parts: its texts by key, with BOS and EOS filled in.
        settings: its other keys.
        thinking: whether a prompt leaves room for reasoning where ``enable_thinking`` is not given.
    """
    literal = json.dumps({**{key: _pieces(text) for key, text in parts.items()}, **settings}, ensure_ascii=False)
    knows = bool(parts["thinking"])
    program = _PROGRAM.replace("EMPTY_REASONING", _EMPTY_REASONING if knows else "")
    program = program.replace("REASONING", _REASONING if knows else "").replace("THINKING", json.dumps(thinking))
    return program.replace("PARTS", literal, 1)


def _pieces(text: str) -> list[str | list[str]]:
    split = _PLACEHOLDER.split(text)
    return [[piece] if number % 2 else piece for number, piece in enumerate(split) if piece]
