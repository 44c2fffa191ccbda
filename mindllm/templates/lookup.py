"""Prompt templates by name: conversations to text, with the character ranges that are trained on.

A template is a small file in configs/templates/ (the format is in docs/data.md), a file of the user's in that format,
or `hf`, the tokenizer's own chat template.
"""

import re
from pathlib import Path

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError, did_you_mean
from mindllm.resources import TEMPLATES
from mindllm.templates.chat import ChatTemplate
from mindllm.templates.declared import DeclaredTemplate, read_template
from mindllm.templates.messages import Message, Template

HF = "hf"


def template_names() -> list[str]:
    """Every value `--prompt-type` accepts, a file of the user's own apart."""
    return sorted([HF, *(path.stem for path in TEMPLATES.glob("*.yaml"))])


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


def load_template(prompt_type: str, spec: TokenizerSpec, thinking: bool = True) -> Template:
    """Bind a resolved prompt type to a tokenizer; without `thinking`, prompts ask for an answer without reasoning.

    Raises:
        UserError: the template file is malformed, needs a token the tokenizer lacks, or knows no thinking.
    """
    if prompt_type == HF:
        return ChatTemplate(spec, thinking)
    return DeclaredTemplate(read_template(template_path(prompt_type)), spec, thinking)


def template_path(prompt_type: str) -> Path:
    """File behind a prompt type other than `hf`."""
    named = TEMPLATES / f"{prompt_type}.yaml"
    return named if named.is_file() else Path(prompt_type)


def end_tokens(template: Template, spec: TokenizerSpec) -> list[str]:
    """Special tokens that end an answer, both where a turn follows it and where none does; those that are trained."""
    known = {*spec.special_texts, *template.markers, *([spec.eos] if spec.eos else [])}
    if not known:
        return []
    special = re.compile("|".join(map(re.escape, sorted(known, key=len, reverse=True))))
    question, answer = Message("user", "question"), Message("assistant", "response")
    found: dict[str, None] = {}
    for dialogue in ([question, answer], [question, answer, question, answer]):
        try:
            text, marked, _ = template.render_dialogue(dialogue)
        except UserError:  # a chat template that refuses so short a conversation
            continue
        start, end = marked[0]
        found |= dict.fromkeys(special.findall(text[start:end].rpartition(answer.content)[2])[-1:])
    return list(found)
