"""Conversations in the chat template of another tokenizer: what a reward model with words of its own reads."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mindllm.data.tokenizer import chat_template_of
from mindllm.errors import UserError
from mindllm.templates.chat import render_jinja
from mindllm.templates.messages import TemplateRefusal, spoken

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Turn = dict[str, Any]


def render_answered(
    tokenizer: "PreTrainedTokenizerBase", prompt: Sequence[Turn], response: str, tools: Sequence[dict[str, Any]] = ()
) -> str:
    """A prompt and the response to it in the tokenizer's chat template, ending with the response's end token.

    Calls of tools take the form that the template shows. A template that refuses or leaves out system prompts, calls or
    results of tools gets them as text of questions and answers. Without a template the texts stand one after the other,
    as in the template ``empty``.

    Args:
        tokenizer: whose template is used.
        prompt: turns with ``role``, ``content`` and what else chat templates read.
        response: text of the answer.
        tools: descriptions of the tools that the model may call; left out by templates that know none.

    Raises:
        UserError: the template refuses the prompt all the same, or leaves a turn out.
    """
    turns = [*prompt, {"role": "assistant", "content": response}]
    chat_template = chat_template_of(tokenizer)
    if chat_template is None:
        return _end_to_end(turns, tokenizer.eos_token or "")
    probes = [_probe(turn, number) for number, turn in enumerate(turns)]
    refusal: object = "its chat template leaves out a turn"
    for form in _FORMS:
        try:
            probed, text = (
                render_jinja(chat_template, form(each), tools, tokenizer.special_tokens_map) for each in (probes, turns)
            )
        except TemplateRefusal as error:
            refusal = error
            continue
        if all(part in probed for turn in probes for part in _shown(turn)):
            return text.rstrip("\n")
    raise UserError(f"the reward model cannot read a conversation: {refusal}")


def knows_tools(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether the tokenizer's chat template shows descriptions of tools."""
    return "tools" in (chat_template_of(tokenizer) or "")


def _end_to_end(turns: Sequence[Turn], eos: str) -> str:
    ends = {"system": "\n", "assistant": eos}
    return "".join(spoken(turn) + ends.get(turn["role"], "") for turn in turns)


def _with_calls(turns: list[Turn], as_text: bool, no_content: str | None) -> list[Turn]:
    """The turns, with the arguments of calls as text or as an object, and with `no_content` for no text beside them."""
    return [_with_call(turn, as_text, no_content) if turn.get("tool_calls") else turn for turn in turns]


def _with_call(turn: Turn, as_text: bool, no_content: str | None) -> Turn:
    calls = [{**call, "function": {**call["function"]}} for call in turn["tool_calls"]]
    if as_text:
        for call in calls:
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return {**turn, "content": turn["content"] or no_content, "tool_calls": calls}


def _questions_and_answers(turns: list[Turn]) -> list[Turn]:
    """The same conversation with no other roles than user and assistant, which alternate."""
    merged: list[Turn] = []
    for turn in turns:
        role = "assistant" if turn["role"] == "assistant" else "user"
        if merged and merged[-1]["role"] == role:
            merged[-1]["content"] += f"\n\n{spoken(turn)}"
        else:
            merged.append({"role": role, "content": spoken(turn)})
    return merged


# What templates want, the usual form first.
_FORMS: tuple[Callable[[list[Turn]], list[Turn]], ...] = (
    *(partial(_with_calls, as_text=as_text, no_content=none) for as_text in (False, True) for none in ("", None)),
    _questions_and_answers,
)


def _probe(turn: Turn, number: int) -> Turn:
    """A turn of the same kind with words that stand nowhere else, and that no template has a reason to change."""
    probe = {**turn, "content": f"turn{number}words" if turn["content"].strip() else turn["content"]}
    if turn.get("tool_calls"):
        probe["tool_calls"] = [
            {**call, "function": {**call["function"], "name": f"turn{number}call{place}"}}
            for place, call in enumerate(turn["tool_calls"])
        ]
    return probe


def _shown(probe: Turn) -> list[str]:
    """What of a probe must be in the text."""
    return [probe["content"].strip(), *(call["function"]["name"] for call in probe.get("tool_calls", ()))]
