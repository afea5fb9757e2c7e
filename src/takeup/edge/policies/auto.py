"""Auto: the quick plan first, then better plans and bounds, each step only while the gap is open.

1. `joint_plus`, and a bound for any size (`solvers.bounds.price`).
2. The plans of the baselines, so that `auto` is never worse than one of them.
3. Where all groups can be listed: the search through all plans (`exact`).
4. Large-neighbourhood search from the best plan, where there are kernels.
5. Prices and columns (`cg`), with the best schedule of one core at these prices. A plan from the columns.
6. The relaxation as an integer program (`solvers.bounds.relax`): sometimes better where the CPU is scarce, but slow.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from takeup.edge.model import Answer, Instance
from takeup.edge.policies.cg import answer_from_columns, can_generate, generate_columns
from takeup.edge.policies.exact import NUM_SLOTS, prove
from takeup.edge.policies.gma import Gma
from takeup.edge.policies.joint import JointPlus, groups_of, has_kernels
from takeup.edge.policies.separate import CpuFirst, RadioFirst
from takeup.edge.solvers.bounds import price, relax, with_bound
from takeup.edge.solvers.column_generation import can_list

DONE = 2e-6  # of the bound; a gap as small as this is not worth another step
PLAN_WORK = 100_000  # priced uploads: some hundredths of a second
SEARCH_WORK = 20_000_000  # pairs of masks: some tenths of a second
MOST_NODES = 20
MOST_COMPARED = 1_000  # devices up to which the baselines are tried
NUM_SHAKES, SHAKE_WORK = 100, 300_000  # in a part of the large-neighbourhood search: some hundredths of a second
MOST_PARTS, MOST_STALE = 20, 5  # parts, in all and without a better plan

Used = Callable[[], float]  # the share of a time budget that is used


def unlimited() -> float:
    """No time budget: the effort depends on the instance alone."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Auto:
    """All steps that still help; the effort of each depends on the instance alone."""

    name: str = "auto"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The best allocation found, with the best bound and the worth of one more subcarrier and core."""
        return replace(deque(improvements(instance), maxlen=1).pop(), policy=self.name)


def improvements(instance: Instance, used: Used = unlimited) -> Iterator[Answer]:
    """Answers that get better from step to step: each has the best plan, the best bound and the prices so far.

    A step starts only before its share of the budget is used, and steps that take long look at the budget themselves.
    """
    has_columns = can_generate(instance)  # which give a better bound
    priced = price(instance, lambda: has_columns and used() > 0.02)
    quick = JointPlus(most_work=PLAN_WORK, is_over=lambda: used() > 0.2).allocate(instance)
    answer = with_bound(instance, replace(quick, policy="auto", prices=priced.prices), priced.bound_j)
    yield answer
    for step, latest in STEPS:
        if used() < latest and answer.gap_share is not None and answer.gap_share > DONE:
            answer = step(instance, answer, used)
            yield answer


def _better(answer: Answer, other: Answer) -> Answer:
    """The plan of the other one, if it is worth more, with the bound and the prices of the first."""
    best = other if other.worth_j > answer.worth_j else answer
    return replace(best, policy=answer.policy, bound_j=answer.bound_j, prices=answer.prices)


def _baselines(instance: Instance, answer: Answer, used: Used) -> Answer:
    if instance.num_devices <= MOST_COMPARED:
        for policy in (CpuFirst(), RadioFirst(), Gma()):
            if used() < 0.3:
                answer = _better(answer, policy.allocate(instance))
    return answer


def _search(instance: Instance, answer: Answer, used: Used) -> Answer:
    del used
    if not can_list(instance, NUM_SLOTS):
        return answer
    found = prove(instance, answer, SEARCH_WORK).answer
    return with_bound(instance, _better(answer, found), found.bound_j)


def _shaken(instance: Instance, answer: Answer, used: Used, until: float) -> Answer:
    """Large-neighbourhood search in parts, until the share of the budget is used or nothing gets better."""
    if not has_kernels(instance) or instance.num_devices > MOST_COMPARED:
        return answer
    number, stale = 0, 0
    while used() < until and stale < MOST_STALE and (number < MOST_PARTS or used() > 0.0):
        shaking = JointPlus(most_work=SHAKE_WORK, num_shakes=NUM_SHAKES, seed=number, only_starts=True)
        found = shaking.allocate(instance, [groups_of(answer.allocation)])
        stale = 0 if found.worth_j > answer.worth_j * (1 + DONE) else stale + 1
        answer, number = _better(answer, found), number + 1
    return answer


def _columns(instance: Instance, answer: Answer, used: Used) -> Answer:
    if not can_generate(instance):
        return answer
    generated = generate_columns(instance, answer, is_over=lambda: used() > 0.7)
    found = answer_from_columns(instance, answer, generated) if used() < 0.6 else answer
    return with_bound(instance, _better(answer, found), generated.bound_j)


def _whole_choices(instance: Instance, answer: Answer, used: Used) -> Answer:
    relaxed = relax(instance, MOST_NODES)
    if relaxed is None or used() > 0.6:
        return answer
    devices: dict[int, tuple[int, ...]] = dict.fromkeys(relaxed.devices.tolist(), ())
    return with_bound(instance, _better(answer, JointPlus().allocate(instance, [devices])), relaxed.bound_j)


# Every step, and the share of the budget after which it does not begin.
STEPS: tuple[tuple[Callable[[Instance, Answer, Used], Answer], float], ...] = (
    (_baselines, 0.3),
    (_search, 0.3),
    (partial(_shaken, until=0.4), 0.4),
    (_columns, 0.6),
    (_whole_choices, 0.3),
    (partial(_shaken, until=0.95), 0.9),
)
