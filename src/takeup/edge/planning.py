"""Planning: solve one instance within a time budget, and size a site."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from takeup.edge.contract import Policy
from takeup.edge.model import Allocation, Answer, Instance
from takeup.edge.policies import find_policy
from takeup.edge.policies.auto import best_answer
from takeup.edge.solvers.bounds import InvalidBound, price, with_bound
from takeup.edge.solvers.market import load_kernels
from takeup.edge.traces.files import save_instance
from takeup.errors import BadInput, TakeupError

# Solve an instance within a time budget: the best plan, a bound on what any plan is worth, and prices -----------------
#
# `auto` takes one step after the other: see `policies.auto` for the steps, each of which looks at the budget. Any other
# policy by its name takes the time it takes.

INVALID = Path("takeup-out/invalid-bound.json")


def solve(
    instance: Instance,
    method: str = "auto",
    budget_ms: float = 500.0,
    now: Callable[[], float] = time.monotonic,
    start: Allocation | None = None,
) -> Answer:
    """The best answer found; it always has a bound, and so a gap, and prices. `auto` may begin with an older plan.

    `prices.subcarrier_j` and `prices.core_j` say by how much the bound rises at most with one more subcarrier like
    those there are, and with one more core: zero where there is enough already. The first call in a process also
    loads compiled code, which is not part of the budget.
    """
    if not budget_ms >= 0:
        raise BadInput(f"budget_ms is {budget_ms:g}; give zero for the quick answer, or more")
    try:
        return _solved(instance, method, budget_ms, now, start)
    except InvalidBound as error:
        save_instance(INVALID, error.instance)
        raise TakeupError(f"{error}; please report it with the instance, saved in {INVALID}") from error


def _solved(
    instance: Instance, method: str, budget_ms: float, now: Callable[[], float], start: Allocation | None
) -> Answer:
    policy = find_policy(method)
    if method != "auto":
        answer = policy.allocate(instance)
        if answer.bound_j is not None or policy.ignores_cpu:  # no bound holds for a plan that no site can execute
            return answer
        priced = price(instance)
        return replace(with_bound(instance, answer, priced.bound_j), prices=priced.prices)
    load_kernels()
    began_s = now()

    def used() -> float:
        return 1000 * (now() - began_s) / budget_ms if budget_ms > 0 else 1.0

    return best_answer(instance, used, start)


# How much a site needs: the fewest subcarriers, the fewest cores and the slowest core that serve enough devices -------
#
# Every question is asked of the same random cells with one thing changed, so that answers differ by that thing alone.
# The share of served devices grows with the resource up to chance, so halving the range finds the least that is
# enough.

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
