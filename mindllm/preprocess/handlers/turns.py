"""The turns of a conversation as data sets write them, read into messages."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindllm.errors import RowError, UserError, did_you_mean
from mindllm.preprocess.handlers.base import DropRow, parsed
from mindllm.preprocess.handlers.cells import checked_text
from mindllm.templates.messages import REASONING_FIELDS, Message, Rendered, Role, ToolCall

SHAREGPT_TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "system_tag": "system",
    "observation_tag": "observation",
    "function_tag": "function_call",
}
OPENAI_TAGS = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
    "observation_tag": "tool",
    "function_tag": "function_call",
}
# Names that public data sets have for roles; each means the same in all of them. Tags of the user's go before them.
_CALL_NAMES = ("function_call", "tool_call", "tool_calls")
_ROLE_NAMES: dict[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatbot", "chatgpt", *_CALL_NAMES), "assistant"),
    **dict.fromkeys(("tool", "observation", "function", "function_response", "tool_response", "ipython"), "tool"),
}
_WEIGHTS = "weight loss_weight loss_scale loss loss_mask step_loss_mask train training trainable".split()
_UNCLEAR_WEIGHTS = ("train_detail", "mask", "masked")  # of parts of an answer; masks, of what is trained or is not
_SPEAKERS = ("system", "user", "human", "assistant", "gpt", "bot")  # keys of a turn that holds question and answer
_CONTENT_NAMES = ("content", "value", "text")  # where the content is, if not where the tags say
_BEFORE: dict[Role, tuple[Role | None, ...]] = {  # which turns a turn may follow; None = the beginning
    "user": (None, "system", "assistant", "tool"),
    "assistant": ("user", "tool"),
    "tool": ("user", "assistant", "tool"),
    "system": (None,),
}
_TEXT_PARTS = ("text", "input_text", "output_text")
_SPOKEN = re.compile(r"\n\n(Human|Assistant):")  # opens the turns of a text as HH-RLHF has it


@dataclass(frozen=True)
class TurnStyle:
    """The names by which the parts of a turn go."""

    names: tuple[tuple[str, str], ...]  # pairs of (role, content): the first that a turn has
    roles: Mapping[str, Role]
    call_roles: frozenset[str]  # whose content is calls of tools, as JSON
    speakers: frozenset[str]  # roles that may be keys of a turn

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> "TurnStyle":
        """The style under a complete set of tags. Common names that the tags do not use are understood too."""
        own: dict[str, Role] = {
            tags["system_tag"]: "system",
            tags["observation_tag"]: "tool",
            tags["function_tag"]: "assistant",
            tags["assistant_tag"]: "assistant",
            tags["user_tag"]: "user",
        }
        calls = {tags["function_tag"], *(name for name in _CALL_NAMES if name not in own)} - {tags["assistant_tag"]}
        pairs = [(tags["role_tag"], tags["content_tag"]), ("role", "content"), ("from", "value")]
        speakers = {*_SPEAKERS, tags["system_tag"], tags["user_tag"], tags["assistant_tag"]}
        return cls(tuple(dict.fromkeys(pairs)), {**_ROLE_NAMES, **own}, frozenset(calls), frozenset(speakers))

    def known_name(self, name: Any) -> str | None:
        """A role's name as it stands in `roles`; None for one that is unknown."""
        if not isinstance(name, str):
            return None
        return next((known for known in (name, name.lower()) if known in self.roles), None)


ANY_STYLE = TurnStyle.of(OPENAI_TAGS)  # understands the common names of both


def checked_tags(tags: Any) -> dict[str, str]:
    """The `tags` of a column mapping. Raises UserError for unknown ones, and for names that are no text."""
    if not isinstance(tags, dict) or not all(isinstance(name, str) for name in tags.values()):
        raise UserError(f"--map-keys: 'tags' must be an object from tag names to names, found {tags!r}")
    for tag in tags:
        if tag not in SHAREGPT_TAGS:
            known = ", ".join(SHAREGPT_TAGS)
            raise UserError(f"--map-keys: unknown tag '{tag}'; known are {known}{did_you_mean(tag, SHAREGPT_TAGS)}")
    return tags


def read_turn(turn: Any, style: TurnStyle) -> list[Message]:
    """The message that a turn is, or the two of a turn that holds a question with its answer.

    Raises:
        DropRow: it is no turn.
        RowError: it is weighted by another number than 0 and 1.
    """
    if not isinstance(turn, dict):
        raise DropRow("turn_not_an_object")
    pair = next((pair for pair in style.names if pair[0] in turn), None)
    if pair is None:
        return list(_exchange(turn, style))
    name = style.known_name(turn[pair[0]])
    if name is None:
        raise DropRow("unknown_role")
    content_name = next((key for key in (pair[1], *_CONTENT_NAMES) if key in turn), pair[1])
    content = turn.get(content_name)
    others = {key: value for key, value in turn.items() if key not in (pair[0], content_name) and value is not None}
    if style.roles[name] == "user" and (results := _parts_of(content, "tool_result")):
        rest = [part for part in content or () if part not in results]
        return [*map(_result, results), *([_message(name, rest, others, style)] if rest else [])]
    return [_message(name, content, others, style)]


def read_turns(turns: list[Any], style: TurnStyle) -> list[Message]:
    """The messages of a list of turns; a turn that is a call joins the answer before it. Raises as `read_turn`."""
    messages: list[Message] = []
    for turn in turns:
        found = read_turn(turn, style)
        if messages and _is_call(turn, style) and (joined := _joined(messages[-1], found[0])):
            messages[-1] = joined
        else:
            messages += found
    return messages


def _is_call(turn: dict[str, Any], style: TurnStyle) -> bool:
    """Whether a turn has a role whose content is calls."""
    return any(style.known_name(turn.get(role)) in style.call_roles for role, _ in style.names)


def _joined(answer: Message, call: Message) -> Message | None:
    """An answer with the calls of the turn after it; None where they are no one answer."""
    if answer.role != "assistant" or answer.trained != call.trained or call.reasoning is not None:
        return None
    return answer._replace(tool_calls=answer.tool_calls + call.tool_calls, fields={**answer.fields, **call.fields})


def check_order(messages: Sequence[Message]) -> None:
    """Raise DropRow unless there is a system prompt at most at the beginning, and turns follow each other."""
    previous: Role | None = None
    for message in messages:
        if previous not in _BEFORE[message.role]:
            raise DropRow("consecutive_roles" if previous == message.role else "invalid_role_order")
        previous = message.role


def read_prompt(value: Any, role: str, style: TurnStyle) -> list[Message]:
    """The turns in a cell that holds a prompt: text, or a list of turns of which the last is to be answered.

    Raises:
        DropRow: the cell is null, empty or neither, or an answer ends it.
        RowError: as `read_turn`.
    """
    value = _listed(value, style)
    if isinstance(value, list) and all(isinstance(turn, dict) for turn in value):
        turns = read_turns(value, style)
    else:
        turns = [Message("user", checked_text(value, role))]
    if not turns or not turns[-1].content.strip():
        raise DropRow(f"null_{role}" if value is None else f"empty_{role}")
    if turns[-1].role not in ("user", "tool"):
        raise DropRow("no_final_user_turn")
    check_order(turns)
    return turns


def read_answer(value: Any, role: str, style: TurnStyle) -> list[Message]:
    """The turns in a cell that holds an answer: text, a turn, or a list of turns, at times the whole conversation.

    Raises:
        DropRow: the cell is null or empty, or what it holds does not end with an answer.
        RowError: as `read_turn`.
    """
    if value is None:
        raise DropRow(f"null_{role}")
    value = _listed(value, style)
    if isinstance(value, list | dict):
        turns = read_turns(value if isinstance(value, list) else [value], style)
    else:
        turns = [Message("assistant", checked_text(value, role))]
    if not turns:
        raise DropRow(f"empty_{role}")
    if turns[-1].role != "assistant":
        raise DropRow(f"{role}_not_an_answer")
    if not turns[-1].content.strip() and not turns[-1].tool_calls:
        raise DropRow(f"empty_{role}")
    return turns


def _listed(value: Any, style: TurnStyle) -> Any:
    """A cell, or the list of turns that it holds as JSON text, or as HH-RLHF does; other text stays text."""
    if not isinstance(value, str):
        return value
    if value.startswith("\n\nHuman:"):
        return _spoken_turns(value)
    if not value.lstrip().startswith("["):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if found and all(_has_names(turn, style) for turn in found) else value


def _spoken_turns(text: str) -> list[dict[str, str]]:
    """The turns of "\\n\\nHuman: ...\\n\\nAssistant: ..."; a last one without words asks for the answer."""
    _, *parts = _SPOKEN.split(text)
    roles = {"Human": "user", "Assistant": "assistant"}
    turns = [{"role": roles[who], "content": said.strip()} for who, said in zip(parts[::2], parts[1::2], strict=True)]
    return turns if turns[-1]["content"] or turns[-1]["role"] == "user" else turns[:-1]


def _has_names(turn: Any, style: TurnStyle) -> bool:
    return isinstance(turn, dict) and any(turn.keys() >= {*pair} for pair in style.names)


def holds_turns(value: Any) -> bool:
    """Whether a cell holds a list of turns, with the common names and as JSON text too."""
    return isinstance(_listed(value, ANY_STYLE), list)


def is_conversation(turns: Sequence[Message]) -> bool:
    """Whether turns begin a conversation; if not, they answer one."""
    return turns[0].role in ("system", "user")


def repeated_prompt(answers: Sequence[Sequence[Message]]) -> list[Message] | None:
    """The prompt that some answers have in common themselves, where no column holds it.

    [] where each is a whole conversation; where one alone is, its turns before the answer; None where none is.
    """
    whole = [turns for turns in answers if is_conversation(turns)]
    if not whole:
        return None
    if len(whole) == len(answers) > 1:
        return []
    asks = [place for place, turn in enumerate(whole[0]) if turn.role in ("user", "tool")]
    return list(whole[0][: 1 + max(asks, default=-1)])


def answered(prompt: Sequence[Message], turns: Sequence[Message], role: str) -> tuple[list[Message], int]:
    """A prompt with its answer, and how many messages come before the answer.

    Args:
        prompt: what is asked; at most a system prompt where `turns` are the whole conversation.
        turns: the answer, or the whole conversation, which then must hold what is asked.
        role: name of the answer's column, for messages.

    Raises:
        DropRow: the turns hold another prompt, or do not follow each other.
    """
    dialogue, start = [*prompt, *turns], len(prompt)
    if is_conversation(turns):
        system = [message for message in prompt[:1] if message.role == "system"]
        dialogue = [*system, *turns] if turns[0].role != "system" else [*turns]
        end = _end_of(prompt[len(system) :], dialogue)
        if end is None:
            raise DropRow(f"{role}_has_another_prompt")
        start = end
    check_order(dialogue)
    return dialogue, start


def mark_answers(rendered: Rendered, messages: Sequence[Message], start: int) -> Rendered:
    """What is trained of a dialogue: answers from message `start` on, but for those that the data excludes."""
    answers = [(place >= start and turn.trained) for place, turn in enumerate(messages) if turn.role == "assistant"]
    return rendered._replace(marked=[span for span, kept in zip(rendered.marked, answers, strict=True) if kept])


def num_shared(one: Sequence[Message], other: Sequence[Message]) -> int:
    """How many messages two conversations have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if not _say_the_same(left, right)), min(len(one), len(other)))


def _end_of(part: Sequence[Message], whole: Sequence[Message]) -> int | None:
    """Where some messages end among others; None where they are not there."""
    ends = range(len(part), len(whole) + 1)
    return next((end for end in ends if num_shared(part, whole[end - len(part) :]) == len(part)), None)


def _say_the_same(one: Message, other: Message) -> bool:
    return one[:4] == other[:4]  # role, content, calls and reasoning


def _exchange(turn: dict[str, Any], style: TurnStyle) -> Iterator[Message]:
    """The messages of {"human": ..., "assistant": ...}, in which the names of roles are keys."""
    spoken: dict[Role, str] = {}
    for key in turn.keys() & style.speakers:
        if spoken.setdefault(style.roles[key], key) != key:
            raise DropRow("two_texts_of_one_role")
    if not spoken.keys() & {"user", "assistant"}:
        raise DropRow("unknown_role")
    others = {key: value for key, value in turn.items() if key not in spoken.values() and value is not None}
    roles: tuple[Role, ...] = ("system", "user", "assistant")
    for role in roles:
        if role in spoken and turn[spoken[role]] is not None:
            yield _message(spoken[role], turn[spoken[role]], others if role == "assistant" else {}, style)


def _message(name: str, content: Any, others: dict[str, Any], style: TurnStyle) -> Message:
    """`others` are the turn's other fields, none of them null; they become parts of the message or its `fields`."""
    role = style.roles[name]
    for key in _UNCLEAR_WEIGHTS:
        if role == "assistant" and others.get(key) not in (None, []):
            found = f"{key} {others[key]!r}"
            raise RowError(f"an answer has {found}, which is not read; write train, true or false", "unclear_weight")
    trained = _is_trained([(key, others.pop(key)) for key in _WEIGHTS if key in others], role)
    calls = (
        *_calls_in(others.pop("tool_calls", None)),
        *_calls_in(others.pop("function_call", None)),
        *(_call({**part, "arguments": part.get("input")}) for part in _parts_of(content, "tool_use")),
    )
    if name in style.call_roles:
        calls, content = (*calls, *_calls_in(content)), ""
        if not calls:
            raise DropRow("invalid_tool_call")
    if calls and role != "assistant":
        raise DropRow("tool_call_outside_an_answer")
    if role == "tool" and isinstance(content, dict):
        content = json.dumps(content, ensure_ascii=False)
    text, reasoning = _text(content), None
    if role == "assistant":
        reasoning = _reasoning(others) if others.keys() & {*REASONING_FIELDS} else _thought(content)
    if content is None and not (calls or reasoning):
        raise DropRow("null_content")
    return Message(role, text, calls, reasoning, trained, others)


def _is_trained(weights: list[tuple[str, Any]], role: Role) -> bool:
    """Whether the weights of an answer, of which there is seldom more than one, let it be trained."""
    if role != "assistant":
        return True
    for key, value in weights:
        if value not in (0, 1):
            raise RowError(
                f"an answer has {key} {value!r}; it is trained (1, true) or not (0, false), nothing between",
                "weight_not_0_or_1",
            )
    return all(value == 1 for _, value in weights)


def _reasoning(others: dict[str, Any]) -> str:
    """Take the reasoning, which has several names at times, out of a turn's other fields. Raises DropRow for two."""
    found = {_text(others.pop(name)) for name in REASONING_FIELDS if name in others}
    written = [text for text in found if text.strip()]
    if len(written) > 1:
        raise DropRow("two_reasonings")
    return written[0] if written else ""


def _text(content: Any) -> str:
    """Text, or a list of parts of it, which is joined; reasoning and calls among them are read elsewhere."""
    if not isinstance(content, list):
        return checked_text(content, "content")
    others = _parts_of(content, *REASONING_FIELDS, "tool_use")
    return "".join(_part(part) for part in content if part not in others)


def _parts_of(content: Any, *types: str) -> list[dict[str, Any]]:
    """The parts of some types, where a content is a list of parts."""
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, dict) and part.get("type") in types]


def _result(part: dict[str, Any]) -> Message:
    """The result of a tool, as a part of a user's turn: {"type": "tool_result", "tool_use_id": ..., "content": ...}."""
    identity = {"tool_call_id": part["tool_use_id"]} if part.get("tool_use_id") else {}
    return Message("tool", _text(part.get("content")), fields=identity)


def _part(part: Any) -> str:
    is_text = isinstance(part, dict) and part.get("type", "text") in _TEXT_PARTS and part.get("text") is not None
    return checked_text(part["text"] if is_text else part, "content")


def _thought(content: Any) -> str | None:
    """The reasoning among the parts of a content: {"type": "thinking", "thinking": ...}."""
    found = _parts_of(content, *REASONING_FIELDS)
    return "".join(_text(part.get(part["type"], part.get("text"))) for part in found) if found else None


def _calls_in(value: Any) -> Iterator[ToolCall]:
    """Calls of tools: one or a list of them, as objects or as JSON text."""
    found = parsed(value, "tool_call")
    for call in found if isinstance(found, list) else [] if found is None else [found]:
        yield _call(parsed(call, "tool_call"))


def _call(call: Any) -> ToolCall:
    """A call {name, arguments}, also as `function` of an object with its id; without arguments it has none."""
    inner = call.get("function", call) if isinstance(call, dict) else call
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise DropRow("invalid_tool_call")
    arguments = parsed(inner.get("arguments", inner.get("parameters")), "tool_call")
    if not isinstance(arguments, dict | None):
        raise DropRow("invalid_tool_call")
    return ToolCall(inner["name"], arguments or {}, call.get("id"))
