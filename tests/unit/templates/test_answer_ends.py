"""Every answer of a chat template is trained with the token that ends it, also where the last one ends otherwise."""

from dataclasses import replace

import pytest

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.templates.chat import ChatTemplate
from mindllm.templates.messages import Message, ToolCall

TURNS = [Message("user", "2 + 2?"), Message("assistant", "4"), Message("user", "3 + 3?"), Message("assistant", "6")]
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|user|>", "<|bot|>", "<|eot_id|>")
OPENED = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
ASKED = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def template(jinja: str, spec: TokenizerSpec) -> ChatTemplate:
    return ChatTemplate(replace(spec, chat_template=jinja, eos="<|endoftext|>", special_texts=SPECIALS))


@pytest.mark.parametrize(
    ("jinja", "expected", "closing"),
    [
        # The last one by EOS, the others by a marker.
        (
            OPENED + "{% if m.role == 'assistant' and loop.last %}<|endoftext|>{% else %}<|im_end|>\n{% endif %}"
            "{% endfor %}" + ASKED,
            ["4<|im_end|>", "6<|endoftext|>"],
            "",
        ),
        # A marker for all, then the EOS after the whole dialogue, which generation never reaches.
        (
            OPENED + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% else %}"
            "<|endoftext|>{% endif %}",
            ["4<|im_end|>", "6<|im_end|>"],
            "",
        ),
        # Only the last one by a token.
        (
            OPENED + "{% if loop.last and m.role == 'assistant' %}<|endoftext|>{% else %}\n{% endif %}{% endfor %}"
            + ASKED,
            ["4", "6<|endoftext|>"],
            "",
        ),
        # All but the last: what ends the others is put there.
        (
            OPENED + "{% if not loop.last %}<|im_end|>\n{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}<|im_end|>\n<|im_start|>assistant\n{% endif %}",
            ["4<|im_end|>", "6<|im_end|>"],
            "<|im_end|>",
        ),
        # An answer is over when the next turn opens.
        (
            "{% for m in messages %}{{ '<|user|>' if m.role == 'user' else '<|bot|>' }}{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}<|bot|>{% endif %}",
            ["4<|user|>", "6<|user|>"],
            "<|user|>",
        ),
        # No token ends any: the EOS is put after the last one, and nothing is invented for the others.
        (
            "{% for m in messages %}{{ 'User: ' if m.role == 'user' else 'Bot: ' }}{{ m.content }}\n\n{% endfor %}"
            "{% if add_generation_prompt %}Bot: {% endif %}",
            ["4", "6<|endoftext|>"],
            "<|endoftext|>",
        ),
        # A text ends all of them, which is no token of the tokenizer.
        (
            "{% for m in messages %}{{ 'User: ' if m.role == 'user' else 'Bot: ' }}{{ m.content }} ### End\n"
            "{% endfor %}{% if add_generation_prompt %}Bot: {% endif %}",
            ["4 ### End", "6 ### End"],
            "",
        ),
        # Refuses to go on after an answer, so that only the last one can be seen beforehand.
        (
            "{% if messages | length == 3 %}{{ raise_exception('no') }}{% endif %}"
            + OPENED + "<|im_end|>\n{% endfor %}" + ASKED,
            ["4<|im_end|>", "6<|im_end|>"],
            "",
        ),
        # Refuses everything that is known beforehand.
        (
            "{% if messages[0].content == 'question' %}{{ raise_exception('no') }}{% endif %}"
            + OPENED + "<|im_end|>\n{% endfor %}" + ASKED,
            ["4<|im_end|>", "6<|im_end|>"],
            "",
        ),
    ],
    ids=["loop_last", "eos_after_all", "last_only", "all_but_last", "next_turn", "none", "text", "strict", "stricter"],
)  # fmt: skip
def test_answers_are_trained_with_what_ends_them(
    jinja: str, expected: list[str], closing: str, spec: TokenizerSpec
) -> None:
    ours = template(jinja, spec)
    written = ours._render(TURNS, (), add_generation_prompt=False)
    text, marked, _ = ours.render_dialogue(TURNS)
    assert [text[start:end] for start, end in marked] == expected
    assert text == (written.rstrip("\n") + closing if closing else written)
    (start, end), text = ours.render_dialogue(TURNS[:2])[1][0], ours.render_dialogue(TURNS[:2]).text
    assert text[start:end] == expected[1].replace("6", "4")


CALLING = (
    "{% for m in messages %}{% if m.tool_calls %}<|bot|>{% for c in m.tool_calls %}"
    "{{ c.function.name }}({{ c.function.arguments | tojson }});{% endfor %}<|eot_id|>"
    "{% else %}{{ '<|bot|>' if m.role == 'assistant' else '<|user|>' }}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}"
)


def test_an_answer_that_calls_tools_ends_in_its_own_way(spec: TokenizerSpec) -> None:
    calls = (ToolCall("add", {"a": 1}), ToolCall("add", {"a": 2}))
    turns = [TURNS[0], Message("assistant", "", calls), Message("tool", "add 3"), Message("assistant", "3")]
    text, marked, _ = template(CALLING, spec).render_dialogue(turns)
    called = 'add({"a": 1});add({"a": 2});<|eot_id|>'
    assert [text[start:end] for start, end in marked] == [called, "3<|im_end|>"]
    text, marked, _ = template(CALLING.replace(";{% endfor %}<|eot_id|>", ";{% endfor %}"), spec).render_dialogue(turns)
    # Here a call is over when the result's turn opens.
    assert [text[start:end] for start, end in marked] == [called.replace("<|eot_id|>", "<|user|>"), "3<|im_end|>"]


def test_calls_are_given_to_a_template_in_the_form_that_it_shows(spec: TokenizerSpec) -> None:
    joins_text = CALLING.replace("{{ c.function.arguments | tojson }}", "{{ '' + c.function.arguments }}")
    wants_null = joins_text.replace("if m.tool_calls", "if m.content is none")
    turns = [TURNS[0], Message("assistant", "", (ToolCall("add", {"a": "é"}),))]
    for jinja in (CALLING, joins_text, wants_null):
        assert template(jinja, spec).render_dialogue(turns).text.endswith('<|bot|>add({"a": "é"});<|eot_id|>')
    drops = "{# tool_calls #}" + OPENED + "<|im_end|>\n{% endfor %}" + ASKED
    with pytest.raises(UserError, match="chat template leaves out the call of add"):
        template(drops, spec).render_dialogue(turns)


def test_reasoning_that_quotes_the_answer_does_not_hide_where_it_ends(spec: TokenizerSpec) -> None:
    jinja = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning %}{{ m.reasoning }}<|im_end|>{% endif %}"
        "{{ m.content }}<|im_end|>\n{% endfor %}" + ASKED
    )
    text, marked, _ = template(jinja, spec).render_dialogue([TURNS[0], TURNS[1]._replace(reasoning="is it 4?")])
    assert [text[start:end] for start, end in marked] == ["is it 4?<|im_end|>4<|im_end|>"]


def test_a_chat_template_that_leaves_out_the_reasoning_of_the_last_answer_refuses_it(spec: TokenizerSpec) -> None:
    field = OPENED + "{% if not loop.last %}{{ m.thinking }}{% endif %}<|im_end|>\n{% endfor %}" + ASKED
    tags = (
        OPENED.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}") + "<|im_end|>\n{% endfor %}" + ASKED
    )
    for jinja, said in (
        (field, TURNS[1]._replace(reasoning="is it 4?")),
        (tags, TURNS[1]._replace(content="<think>is it?</think>4")),
    ):
        with pytest.raises(UserError, match="leaves out the reasoning of the last answer; use another --prompt-type"):
            template(jinja, spec).render_dialogue([TURNS[0], said])


def test_a_chat_template_with_a_mistake_in_its_syntax_is_refused_whatever_the_row(spec: TokenizerSpec) -> None:
    with pytest.raises(UserError, match="chat template is no valid jinja") as caught:
        template("{% for m in messages %}", spec)
    assert type(caught.value) is UserError
