"""Auto: prices and a bound, plans made with these prices, and more of both while there is time and the gap is open.

1. A quick plan, or the one of the last epoch as far as it is still possible.
2. In stages: rounds of prices of subcarriers and CPU time, which prove a bound (`solvers.compiled.dual`), and steps of
   large-neighbourhood search with these prices (`solvers.compiled.neighbourhood`).
3. Where all groups can be listed: the search through all plans (`exact`).
4. A sharper bound from whole schedules of the cores (`solvers.compiled.core_schedules`); where subcarriers are few,
   from column generation (`cg`) as well.
5. The plans of the other policies, so that `auto` is never worse than one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from takeup.edge.model import Allocation, Answer, Instance
from takeup.edge.policies.cg import answer_from_columns, can_generate, generate_columns
from takeup.edge.policies.exact import NUM_SLOTS, prove
from takeup.edge.policies.gma import Gma
from takeup.edge.policies.joint import JointPlus, has_kernels
from takeup.edge.policies.separate import CpuFirst, RadioFirst
from takeup.edge.solvers.bounds import price, relax, with_bound
from takeup.edge.solvers.column_generation import can_list
from takeup.edge.solvers.market import Market

DONE = 2e-6  # of the bound; a gap as small as this is not worth another step
SEARCH_WORK = 20_000_000  # pairs of masks: some tenths of a second
MOST_DEVICES = 2_000  # with prices and a search of their own; more get a quick plan and a linear program
MOST_COMPARED = 400  # devices up to which the other policies are tried
MOST_STEPS, MOST_STALE = 40_000, 6_000  # of the search with a budget, in all and without a better plan
SOME_STEPS = 200  # between two looks at the progress
ENOUGH_STEPS = 4_000  # without a budget
FEW_SUBCARRIERS, MOST_NODES = 40, 20  # up to which columns are generated, and of the relaxation by sizes
NUM_SCHEDULES = 150  # rounds of prices for whole schedules
PREPARATION = 20  # rounds of prices that take as long as the first one of these
CHUNK = 0.04  # share of the budget that is used between two looks at the clock

Used = Callable[[], float]  # the share of a time budget that is used

# Rounds of prices until a share of the budget is used, then steps of search until another one.
STAGES = ((6, 0.25, 16, 0.4), (60, 0.5, 300, 0.6), (240, 0.65, 1_000, 0.7))


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
        return best_answer(instance)


def best_answer(instance: Instance, used: Used = unlimited, start: Allocation | None = None) -> Answer:
    """The best answer within a time budget, also from the plan of the last epoch; it has a bound and prices."""
    if not 0 < instance.num_devices <= MOST_DEVICES:
        quick = JointPlus().allocate(instance)
        priced = price(instance)
        return with_bound(instance, replace(quick, policy="auto", prices=priced.prices), priced.bound_j)
    market = Market(instance, start)
    market.improve_prices(1)
    for num_rounds, prices_until, num_steps, plan_until in STAGES:
        if market.gap_share > DONE and used() < prices_until:
            _spend(market.improve_prices, num_rounds, used, prices_until)
            market.use_prices()
            _spend(market.improve_plan, num_steps, used, plan_until)
    if used() > STAGES[-1][-1]:
        _spend(market.improve_plan, MOST_STEPS, used, 0.8)
    answer = market.answer("auto")
    if can_list(instance, NUM_SLOTS) and used() < 0.5 and market.gap_share > DONE:
        answer = _proven(instance, answer)
    if answer.gap_share is not None and answer.gap_share > DONE and used() < 0.8:
        answer = _longer(market, answer, used)
    return answer


def _spend(act: Callable[[int], None], most: int, used: Used, until: float) -> None:
    """Act up to so many times, in parts that are small against the budget."""
    done, part = 0, 1
    while done < most and used() < until:
        began = used()
        act(part)
        done += part
        share = used() - began
        part = min(most - done, 2 * part, max(1, int(part * CHUNK / share)) if share > 0 else most)


def _longer(market: Market, answer: Answer, used: Used) -> Answer:
    """A sharper bound, the plans of the other policies, and a longer search."""
    if _has_time_for(PREPARATION, market, used):
        _spend(market.bound_by_whole_runs, NUM_SCHEDULES, used, 0.8)
    answer = _compared(market.instance, with_bound(market.instance, answer, market.bound_j), used)
    if used() < 0.6:
        answer = _by_columns(market.instance, answer, used)
    if used() == 0.0:
        market.improve_plan(ENOUGH_STEPS)
    done, success, best_j = 0, 0, market.worth_j
    while 0.0 < used() < 0.94 and done - success < MOST_STALE and done < MOST_STEPS and market.gap_share > DONE:
        _spend(market.improve_plan, SOME_STEPS, used, 0.94)
        done += SOME_STEPS
        if market.worth_j > best_j:
            success, best_j = done, market.worth_j
    return with_bound(market.instance, _better(market.answer("auto"), answer), answer.bound_j)


def _has_time_for(num_rounds: int, market: Market, used: Used) -> bool:
    """Whether this many rounds of prices would still fit; it takes one."""
    began = used()
    market.improve_prices(1)
    return used() + num_rounds * (used() - began) < 0.8


def _proven(instance: Instance, answer: Answer) -> Answer:
    """The search through all plans, from the answer on."""
    found = prove(instance, answer, SEARCH_WORK).answer
    return with_bound(instance, _better(answer, found), found.bound_j)


def _by_columns(instance: Instance, answer: Answer, used: Used) -> Answer:
    """Bounds and plans of column generation and of the relaxation by sizes: sharp where subcarriers are few."""
    if instance.num_subcarriers > FEW_SUBCARRIERS or not can_generate(instance):
        return answer
    generated = generate_columns(instance, answer, is_over=lambda: used() > 0.7)
    found = answer_from_columns(instance, answer, generated) if used() < 0.6 else answer
    answer = with_bound(instance, _better(answer, found), generated.bound_j)
    relaxed = relax(instance, MOST_NODES) if used() < 0.3 else None
    return answer if relaxed is None else with_bound(instance, answer, relaxed.bound_j)


def _better(answer: Answer, other: Answer) -> Answer:
    """The plan of the other one, if it is worth more, with the bound and the prices of the first."""
    best = other if other.worth_j > answer.worth_j else answer
    return replace(best, policy=answer.policy, bound_j=answer.bound_j, prices=answer.prices)


def _compared(instance: Instance, answer: Answer, used: Used) -> Answer:
    """The best of the answer and of the plans of the other policies, while the gap is open and there is time."""
    for policy in (JointPlus(), CpuFirst(), RadioFirst(), Gma()):
        is_open = answer.gap_share is not None and answer.gap_share > DONE
        if is_open and used() < 0.6 and has_kernels(instance) and instance.num_devices <= MOST_COMPARED:
            answer = _better(answer, policy.allocate(instance))
    return answer
