"""Auto: the quick plan first, then bounds and better plans, each step only while something is left to gain.

1. `joint_plus`, and a bound for any size (`solvers.bounds.price`).
2. Where all groups can be listed: the search through all plans (`exact`).
3. Prices and columns (`cg`), with the best schedule of one core at these prices. A plan from the columns.
4. The relaxation as an integer program (`solvers.bounds.relax`): sometimes better where the CPU is scarce, but slow.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from takeup.edge.model import Answer, Instance
from takeup.edge.policies.cg import answer_from_columns, can_generate, generate_columns
from takeup.edge.policies.exact import NUM_SLOTS, prove
from takeup.edge.policies.joint import JointPlus
from takeup.edge.solvers.bounds import price, relax
from takeup.edge.solvers.pricers import can_list

DONE = 2e-6  # of the bound; a gap as small as this is not worth another step
PLAN_WORK = 100_000  # priced uploads: some hundredths of a second
SEARCH_WORK = 20_000_000  # pairs of masks: some tenths of a second
MOST_NODES = 20


@dataclass(frozen=True, slots=True)
class Auto:
    """All steps that still help; the effort of each depends on the instance alone."""

    name: str = "auto"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The best allocation found, with the best bound and the worth of one more subcarrier and core."""
        return replace(deque(improvements(instance), maxlen=1).pop(), policy=self.name)


def improvements(instance: Instance) -> Iterator[Answer]:
    """Answers that get better from step to step: each has the best plan, the best bound and the prices so far."""
    priced = price(instance)
    known = replace(JointPlus(most_work=PLAN_WORK).allocate(instance), policy="auto", prices=priced.prices)
    answer = _bounded(known, priced.bound_j)
    yield answer
    for step in (_search, _columns, _whole_choices):
        if answer.gap_share is not None and answer.gap_share > DONE:
            answer = step(instance, answer)
            yield answer


def _bounded(answer: Answer, bound_j: float) -> Answer:
    """The answer with the lower of its bound and this one."""
    bound_j = bound_j if answer.bound_j is None else min(answer.bound_j, bound_j)
    return replace(answer, bound_j=max(answer.worth_j, bound_j))


def _better(answer: Answer, other: Answer) -> Answer:
    """The plan of the other one, if it is worth more, with the lower bound and the prices of the first."""
    best = other if other.worth_j > answer.worth_j else answer
    bounds_j = [each.bound_j for each in (answer, other) if each.bound_j is not None]
    return replace(best, bound_j=max(best.worth_j, min(bounds_j)), prices=answer.prices)


def _search(instance: Instance, answer: Answer) -> Answer:
    if not can_list(instance, NUM_SLOTS):
        return answer
    return _better(answer, prove(instance, answer, SEARCH_WORK).answer)


def _whole_choices(instance: Instance, answer: Answer) -> Answer:
    relaxed = relax(instance, MOST_NODES)
    if relaxed is None:
        return answer
    devices: dict[int, tuple[int, ...]] = dict.fromkeys(relaxed.devices.tolist(), ())
    started = replace(JointPlus().allocate(instance, [devices]), policy=answer.policy)
    return _bounded(_better(answer, started), relaxed.bound_j)


def _columns(instance: Instance, answer: Answer) -> Answer:
    if not can_generate(instance):
        return answer
    generated = generate_columns(instance, answer)
    return _bounded(_better(answer, answer_from_columns(instance, answer, generated)), generated.bound_j)
