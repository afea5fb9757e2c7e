"""Policies of other packages, found by the entry points of a group such as `takeup.caching.policies`."""

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from takeup.errors import BadInput, UnknownName

Policy = TypeVar("Policy")


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
