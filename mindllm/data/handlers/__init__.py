"""Handlers, by name. A handler is a row shape (alpaca, ...) and an encoding of it (prompts, dialogues)."""

from mindllm.data.handlers import alpaca as _alpaca  # noqa: F401  registers its handlers
from mindllm.data.handlers.base import Encoded, Handler, HandlerOptions, build_handler, handler_class, handler_names

__all__ = ["Encoded", "Handler", "HandlerOptions", "build_handler", "handler_class", "handler_names"]
