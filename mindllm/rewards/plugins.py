"""User functions: looked up in their file without running it, and loaded by path in the workers."""

import ast
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mindllm.errors import UserError, did_you_mean


class Parameters(NamedTuple):
    """The parameters of a reward function."""

    required: tuple[str, ...]  # without a default
    optional: tuple[str, ...]
    takes_any: bool  # has **columns


def parameters_of(function: Callable[..., Any]) -> Parameters:
    """Read the parameters of a loaded function."""
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Parameters(
        required=tuple(p.name for p in named if p.default is p.empty),
        optional=tuple(p.name for p in named if p.default is not p.empty),
        takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def inspect_plugin(name: str, path: str) -> Parameters | None:
    """Find the function in the file without running the file.

    Returns its parameters, or None where the name is bound by something other than ``def``.
    Raises UserError: no such file, not Python, no such name, or an ``async`` function.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"reward '{name}': no file '{path}'")
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), filename=file.name)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UserError(f"reward '{name}': '{path}' is not a Python file: {error}") from error
    functions = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    node = functions.get(name)
    if isinstance(node, ast.AsyncFunctionDef):
        raise UserError(f"reward '{name}' in '{path}' is async; a reward function must be a plain def")
    if node is not None:
        return _parameters_of_node(node)
    if name in _other_names(tree):
        return None
    found = f"functions there: {', '.join(functions) or 'none'}"
    raise UserError(f"reward '{name}': no such function in '{path}', {found}{did_you_mean(name, functions)}")


def _parameters_of_node(node: ast.FunctionDef) -> Parameters:
    arguments = node.args
    positional = [argument.arg for argument in arguments.args]
    without_default = len(arguments.posonlyargs) + len(positional) - len(arguments.defaults)
    first_optional = max(0, without_default - len(arguments.posonlyargs))
    keyword = list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    return Parameters(
        required=(*positional[:first_optional], *(a.arg for a, default in keyword if default is None)),
        optional=(*positional[first_optional:], *(a.arg for a, default in keyword if default is not None)),
        takes_any=arguments.kwarg is not None,
    )


def _other_names(tree: ast.Module) -> set[str]:
    """Return what the module binds in other ways than ``def``, nested statements included."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names |= {inner.name for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef)}
    return names


def load_plugin(name: str, path: str) -> Callable[..., Any]:
    """Run the file, once per process, and return its function ``name``.

    The module's name is made from the whole path, so files of the same name never meet, and its folder is not put on
    ``sys.path``, where it could shadow other modules. Whatever the file raises comes through.
    """
    file = Path(path).expanduser().resolve()
    digest = hashlib.sha256(str(file).encode()).hexdigest()[:12]
    module_name = f"mindllm_reward_{digest}_{file.stem}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"'{path}' is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses and pickle look modules up there
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
    function: Callable[..., Any] = getattr(sys.modules[module_name], name)
    return function
