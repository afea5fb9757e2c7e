"""Named objects that are imported on first use: engines, commands, the public names of a domain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from takeup.errors import UnknownName


def load(target: str) -> Any:
    """The object that `module:attribute` names."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def find(kind: str, name: str, targets: Mapping[str, str]) -> Any:
    """The object that `name` stands for; the error for an unknown name suggests the nearest one."""
    if name not in targets:
        raise UnknownName(kind, name, targets)
    return load(targets[name])


def lazy_names(
    package: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names are defined in the submodules given by `homes`."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return load(f"{package}.{home_of[name]}:{name}")

    return get, lambda: sorted(home_of)
