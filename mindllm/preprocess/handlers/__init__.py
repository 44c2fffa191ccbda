"""Handlers, by name. A handler is a row shape (alpaca, ...) and an encoding of it (prompts, dialogues, ...)."""

from mindllm.preprocess.handlers import alpaca, conversations, kto, pretrain, process_rewards  # noqa: F401  register theirs
from mindllm.preprocess.handlers.base import (
    Encoded,
    Handler,
    HandlerOptions,
    handler_class,
    handler_names,
    register_handler,
)
from mindllm.preprocess.handlers.plugins import build_handler, load_handler_file

__all__ = [
    "Encoded",
    "Handler",
    "HandlerOptions",
    "build_handler",
    "handler_class",
    "handler_names",
    "load_handler_file",
    "register_handler",
]
