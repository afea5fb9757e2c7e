"""Named objects that are imported on first use: engines, commands, the public names of a domain."""

import ast
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from takeup.core.extras import explain
from takeup.errors import UnknownName


def load(target: str) -> Any:
    """The object that `module:attribute` names; the error for a missing optional package names its extra."""
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise explain(error, attribute) or error from error


def find(kind: str, name: str, targets: Mapping[str, str]) -> Any:
    """The object that `name` stands for; the error for an unknown name suggests the nearest one."""
    if name not in targets:
        raise UnknownName(kind, name, targets)
    return load(targets[name])


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package; its public names are the imports in its `__init__.pyi`."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8"))
    imports = (node for node in stub.body if isinstance(node, ast.ImportFrom))
    targets = {alias.name: f"{node.module}:{alias.name}" for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name not in targets:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return load(targets[name])

    names = sorted(targets)
    return get, lambda: names, names
