"""Named objects that are imported on first use: engines, commands, public names, policies of other packages."""

import ast
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from takeup.core.extras import explain
from takeup.errors import BadInput, UnknownName

Policy = TypeVar("Policy")


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


# Policies of other packages, by the entry points of a group such as `takeup.caching.policies` -------------------------


def find_policy(domain: str, name: str, ours: Mapping[str, Policy], needed: Iterable[str]) -> Policy:
    """The policy of this name: one of ours, else that of an installed package, which has the attributes `needed`."""
    if name in ours:
        return ours[name]
    others = installed(domain)
    if name not in others:
        raise UnknownName(f"{domain} policy", name, [*ours, *others])
    found: Policy = _loaded(domain, others[name], needed)
    return found


def installed(domain: str) -> dict[str, EntryPoint]:
    """The policies that installed packages offer to a domain, by name."""
    return {point.name: point for point in entry_points(group=f"takeup.{domain}.policies")}


def _loaded(domain: str, point: EntryPoint, needed: Iterable[str]) -> Any:
    where = f"{domain} policy {point.name!r} of the package {point.dist.name if point.dist else '?'}"
    try:
        policy = point.load()
    except Exception as error:  # the code of another package may raise anything
        raise BadInput(
            f"{where} cannot be loaded from {point.value!r}: {error}; update or remove the package"
        ) from error
    missing = [name for name in needed if not hasattr(policy, name)]
    if missing:
        raise BadInput(f"{where} has no {missing[0]!r}; docs/guides/write-a-policy.md says what a policy needs")
    return policy
