"""How much a site needs: the fewest subcarriers, the fewest cores and the slowest core that serve enough devices.

Every question is asked of the same random cells with one thing changed, so that answers differ by that thing alone. The
share of served devices grows with the resource up to chance, so halving the range finds the least that is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from takeup.edge.contract import Policy
from takeup.edge.model import Instance

InstanceFactory = Callable[[int], Sequence[Instance]]


@dataclass(frozen=True, slots=True)
class RequiredAmount:
    """The least amount that reaches the target, or None within the limit, with the share served at that amount."""

    amount: int | None
    served_share: float


def served_share(instances: Sequence[Instance], policy: Policy) -> float:
    """The share of all devices that offload."""
    accepted = sum(policy.allocate(instance).allocation.num_accepted for instance in instances)
    return accepted / max(1, sum(instance.num_devices for instance in instances))


def least_enough(make: InstanceFactory, policy: Policy, target_share: float, most: int) -> RequiredAmount:
    """The least amount, from one to `most`, with which `make(amount)` serves the target share."""
    high = 1
    while (share := served_share(make(high), policy)) < target_share:  # small cells first: they are quick
        if high == most:
            return RequiredAmount(None, share)
        high = min(2 * high, most)
    low = high // 2 + 1
    while low < high:
        middle = (low + high) // 2
        here = served_share(make(middle), policy)
        if here >= target_share:
            high, share = middle, here
        else:
            low = middle + 1
    return RequiredAmount(high, share)
