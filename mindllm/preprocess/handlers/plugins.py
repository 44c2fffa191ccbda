"""Handlers from a file of the user's own."""

import hashlib
import importlib.util
import sys
from pathlib import Path

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.preprocess.handlers.base import Handler, HandlerOptions, handler_class


def load_handler_file(file: str) -> None:
    """Run a python file that registers handlers; once a process.

    Raises:
        UserError: missing, or it raises while it is loaded.
    """
    path = Path(file).resolve()
    # By path, not by name: two files of one name are two modules, and neither hides one of the standard library.
    name = f"mindllm_handler_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise UserError(f"--handler-file {file}: no such python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"--handler-file {file} does not load: {type(error).__name__}: {error}") from error


def build_handler(options: HandlerOptions, spec: TokenizerSpec) -> Handler:
    """The handler an options object asks for, ready to encode.

    Raises:
        UserError: no such handler, or one that does not fit the tokenizer.
    """
    if options.handler_file is not None:
        load_handler_file(options.handler_file)
    return handler_class(options.handler)(options, spec)
