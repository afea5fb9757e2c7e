"""Solve an instance within a time budget: the best plan, a bound on what any plan is worth, and prices.

`auto` takes one step after the other: see `policies.auto` for the steps. A step that has begun is finished, so none is
begun late in the budget; on large cells one step may still exceed it. Any other policy by its name takes the time it
takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from takeup.edge.model import Answer, Instance
from takeup.edge.policies import find_policy
from takeup.edge.policies.auto import improvements
from takeup.edge.policies.bounds.priced import price
from takeup.errors import BadInput

LAST_START = 0.4  # of the budget: a step that begins later might end after it


def solve(
    instance: Instance, method: str = "auto", budget_ms: float = 500.0, now: Callable[[], float] = time.monotonic
) -> Answer:
    """The best answer found; it always has a bound, and so a gap, and prices.

    `prices.subcarrier_j` and `prices.core_j` say by how much the bound of an easier problem rises with one more
    subcarrier like those there are, and with one more core: zero where there is enough already.
    """
    if not budget_ms >= 0:
        raise BadInput(f"budget_ms is {budget_ms:g}; give zero for the quick answer, or more")
    if method != "auto":
        return _certified(instance, find_policy(method).allocate(instance))
    until_s = now() + LAST_START * budget_ms / 1000
    steps = improvements(instance)
    answer = next(steps)
    while now() < until_s and (better := next(steps, None)) is not None:
        answer = better
    return answer


def _certified(instance: Instance, answer: Answer) -> Answer:
    """The answer of a policy, with a bound if it has none, and prices."""
    priced = price(instance)
    bound_j = priced.bound_j if answer.bound_j is None else min(answer.bound_j, priced.bound_j)
    return replace(answer, bound_j=max(answer.worth_j, bound_j), prices=priced.prices)
