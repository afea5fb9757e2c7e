"""Auto: prices and a bound, plans made with these prices, and more of both while there is time and the gap is open.

1. A quick plan, or the one of the last epoch as far as it is still possible.
2. In stages: rounds of prices of subcarriers and CPU time, which prove a bound (`solvers.compiled.dual`), and steps of
   large-neighbourhood search with these prices (`solvers.compiled.neighbourhood`).
3. Where all groups can be listed, after the first stage: the search through all plans (`exact`).
4. A sharper bound from whole schedules of the cores (`solvers.compiled.core_schedules`); where subcarriers are few,
   from column generation as well.
5. More of both in turn; then the plans are divided into those with and those without a device, again and again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from takeup.edge.model import Allocation, Answer, Instance
from takeup.edge.policies.exact import MOST_WORK, NUM_SLOTS, prove
from takeup.edge.solvers.bounds import for_the_most_promising
from takeup.edge.solvers.column_generation import can_list, column_bound
from takeup.edge.solvers.market import Market

DONE = 2e-6  # of the bound; a gap as small as this is not worth another step
SEARCH_WORK = 20_000_000  # pairs of masks: some tenths of a second
MOST_STEPS, LAST_STEPS = 40_000, 4_000  # of the search with a budget, and at its end
SOME_ROUNDS, SOME_STEPS, TURN = 120, 600, 0.05  # of prices and of search in turn, and the share of the budget for each
NUM_TURNS, MOST_TURNS, HELPED = 4, 8, 0.97  # turns without and with a budget; the last one leaves this of the gap
SPLIT_ROUNDS, SPLIT_STEPS, MOST_SPLITS = 80, 80, 400  # of prices and of search; without a budget until one helps little
LEAST_ROUNDS, SPLIT_SHARE = 20, 0.15  # of prices, where a split takes more than this share of the budget
MOST_IDLE = 0.1  # of the budget for splits that leave the bound, after which the search has half as much
FEW_SUBCARRIERS = 40  # up to which columns are generated
NUM_SCHEDULES, MOST_SCHEDULES = 40, 150  # rounds of prices for whole schedules, without and with a budget
WINDOWS = 50  # rounds of prices that take as long as the first one with all windows
PREPARATION = 20  # rounds of prices that take as long as the first one of these
FIRST_SHARE, PRICED_SHARE = 0.4, 0.6  # of the budget, for quick plans, and for what comes before the first priced one
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
    return for_the_most_promising(
        instance, "auto", lambda small: _best(small, used, start if small is instance else None)
    )


def _best(instance: Instance, used: Used, start: Allocation | None) -> Answer:
    market = Market(instance, start, is_over=lambda: used() > FIRST_SHARE)
    market.improve_prices(1)
    if used() < PRICED_SHARE:
        market.use_prices()
        market.grow_plan()
    _improve(market, used, STAGES[:1])
    answer = market.answer("auto")
    if can_list(instance, NUM_SLOTS) and used() < 0.5 and market.gap_share > DONE:
        answer = prove(instance, answer, MOST_WORK if used is unlimited else SEARCH_WORK)
        market.lower_bound_to(answer.bound_j)
    if (answer.gap_share or 0.0) > DONE:
        answer = _better(answer, _longer(market, used))
    return answer


def _longer(market: Market, used: Used) -> Answer:
    """The answer of all further steps."""
    began = used()
    if began < FIRST_SHARE:
        market.improve_prices(1)
        if used() + WINDOWS * (used() - began) < FIRST_SHARE and market.list_windows():
            market.aim_again()
    _improve(market, used, STAGES[1:])
    if used() > STAGES[-1][-1]:
        _spend(market.improve_plan, MOST_STEPS, used, 0.8)
    if market.gap_share > DONE and used() < 0.8:
        _sharpen(market, used)
        _alternate(market, used)
        _divide(market, used)
        if used is not unlimited:
            _spend(market.improve_plan, LAST_STEPS, used, 0.94)
    return market.answer("auto")


def _better(first: Answer, second: Answer) -> Answer:
    """The better plan, with the later bound."""
    return second if second.worth_j >= first.worth_j else replace(first, bound_j=second.bound_j)


def _improve(market: Market, used: Used, stages: Sequence[tuple[int, float, int, float]]) -> None:
    for num_rounds, prices_until, num_steps, plan_until in stages:
        if market.gap_share > DONE and used() < prices_until:
            _spend(market.improve_prices, num_rounds, used, prices_until)
            market.use_prices()
            _spend(market.improve_plan, num_steps, used, plan_until)


def _spend(act: Callable[[int], None], most: int, used: Used, until: float) -> None:
    """Act up to so many times, in parts that are small against the budget."""
    done, part = 0, 1
    while done < most and used() < until:
        began = used()
        act(part)
        done += part
        share = used() - began
        part = min(most - done, 2 * part, max(1, int(part * CHUNK / share)) if share > 0 else most)


def _sharpen(market: Market, used: Used) -> None:
    """Bounds from whole schedules and from columns, as far as there is time."""
    began = used()
    market.improve_prices(1)
    if used() + PREPARATION * (used() - began) < 0.8:
        _spend(market.bound_by_whole_runs, NUM_SCHEDULES if used is unlimited else MOST_SCHEDULES, used, 0.8)
    if market.instance.num_subcarriers <= FEW_SUBCARRIERS and market.gap_share > DONE and used() < 0.6:
        market.lower_bound_to(column_bound(market.instance, market.worth_j, lambda: used() > 0.7))


def _alternate(market: Market, used: Used) -> None:
    """More prices and more search in turn, while they help and there is time; a fixed number without a budget."""
    for _ in range(NUM_TURNS if used is unlimited else MOST_TURNS):
        if used() >= 0.94 or market.gap_share <= DONE:
            return
        before = market.gap_share
        market.aim_again()
        _spend(market.improve_prices, SOME_ROUNDS, used, min(0.94, used() + TURN))
        market.use_prices()
        num_steps = SOME_STEPS if used is unlimited else MOST_STEPS
        _spend(market.improve_plan, num_steps, used, min(0.94, used() + TURN))
        if market.gap_share > HELPED * before:
            return


def _divide(market: Market, used: Used) -> None:
    """Split the plans by one device after the other; where that leaves the bound for long, the search goes on."""
    num_rounds, taken, idle = SPLIT_ROUNDS, 0.0, 0.0
    for _ in range(MOST_SPLITS):
        began, before, bound_j = used(), market.gap_share, market.bound_j
        if began >= 0.94 or began + taken >= 1.0 or before <= DONE or not market.split(num_rounds, SPLIT_STEPS):
            return
        if used is unlimited and market.gap_share > HELPED * before:
            return
        taken = used() - began
        num_rounds = max(LEAST_ROUNDS, num_rounds // 2) if taken > SPLIT_SHARE else num_rounds
        idle = idle + taken if market.bound_j == bound_j else 0.0
        if idle > MOST_IDLE:
            _spend(market.improve_plan, MOST_STEPS, used, min(0.94, used() + 0.5 * idle))
            idle = 0.0
