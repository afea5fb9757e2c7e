"""The spot quota allocator: what demand leaves free for the hours that are promised, times a safety coefficient.

Duan et al., ASPLOS 2026, on the spot quota allocator. With capacity C and the p-quantile of the highest demand over
the next H hours, f(H) = C - quantile is free, and the quota is Q(H) = coefficient * f(H). Beyond the paper: the
quantile is that of the maximum, not the highest of hourly quantiles; promises for all H and p hold together (see
`Menu`); and gangs that need whole nodes get promises only as far as a forecast of whole nodes allows.

    source = SpotQuota()
    source.quota("A100", evidence)                  every five minutes: how much guaranteed jobs may hold, by hours
    source.offer("A100", evidence, num_gpus=16, num_nodes=2)                     the best promises for such a job now
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from statistics import NormalDist
from typing import Protocol

import numpy as np
import numpy.typing as npt

from takeup.cluster.contract import Evidence
from takeup.cluster.forecast import DEFAULT_MODEL, make_forecaster
from takeup.cluster.forecast.forecaster import Forecaster, Scope
from takeup.cluster.model import Offer, Quota
from takeup.errors import BadInput

# The menu of promises: GPUs for a number of hours with a probability, all of them kept together -----------------------
#
# How it works. `free_gpus[i][j]` is what demand leaves free for `hours[i]` with `probabilities[j]`. When demand takes
# more than is free, weaker promises are broken before stronger ones: a higher probability is stronger, and at the same
# probability the one that lasts longer. So a promise is kept with its probability if it and all stronger ones fit into
# what is free for it; selling one uses up every weaker one. A stronger promise also satisfies a request for a weaker
# one.

HOUR_S = 3600.0
Table = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class SpotPromise:
    """`num_gpus` GPUs are promised until `until_s`, with this probability."""

    num_gpus: float
    until_s: float
    probability: float


@dataclass(frozen=True, slots=True)
class Menu:
    """What can be promised in a pool; `free_gpus[i][j]` belongs to `hours[i]` and `probabilities[j]`, both rising."""

    pool: str
    hours: tuple[float, ...]
    probabilities: tuple[float, ...]
    free_gpus: Table

    def available(self, sold: Iterable[SpotPromise], now_s: float) -> Table:
        """GPUs that can still be promised for each entry; fewer for more hours and higher probabilities."""
        live = [promise for promise in sold if promise.until_s > now_s]
        raw = [[self._room(live, now_s, hours, level) for level in self.probabilities] for hours in self.hours]
        for row in range(len(self.hours) - 1, -1, -1):  # a stronger promise covers a weaker one
            for column in range(len(self.probabilities) - 1, -1, -1):
                longer = raw[row + 1][column] if row + 1 < len(self.hours) else 0.0
                surer = raw[row][column + 1] if column + 1 < len(self.probabilities) else 0.0
                raw[row][column] = max(raw[row][column], longer, surer)
        return tuple(map(tuple, raw))

    def offers(self, num_gpus: int, sold: Iterable[SpotPromise], now_s: float) -> tuple[Offer, ...]:
        """The longest promise for each probability that nothing surer outlasts; the surest first."""
        table, found, longest = self.available(sold, now_s), [], 0.0
        for column in range(len(self.probabilities) - 1, -1, -1):
            enough = [hours for row, hours in enumerate(self.hours) if table[row][column] >= num_gpus]
            if enough and enough[-1] > longest:
                longest = enough[-1]
                found.append(Offer(self.pool, num_gpus, longest, self.probabilities[column]))
        return tuple(found)

    def _room(self, live: Sequence[SpotPromise], now_s: float, hours: float, level: float) -> float:
        """GPUs that may be added to this entry, so that it and every weaker promise sold is still kept."""
        room = self._free(hours, level) - _load(live, now_s, hours, level)
        for promise in live:
            left_h = (promise.until_s - now_s) / HOUR_S
            if (promise.probability, left_h) <= (level, hours):
                free = self._free(left_h, promise.probability)
                room = min(room, free - _load(live, now_s, left_h, promise.probability))
        return max(0.0, room)

    def _free(self, hours: float, level: float) -> float:
        """Free GPUs of the smallest entry that covers the request; 0 if none does."""
        for row, known_h in enumerate(self.hours):
            if known_h >= hours:
                columns = (column for column, known in enumerate(self.probabilities) if known >= level)
                return next((self.free_gpus[row][column] for column in columns), 0.0)
        return 0.0


def _load(live: Sequence[SpotPromise], now_s: float, hours: float, level: float) -> float:
    """GPUs of promises at least as strong."""
    return sum(
        promise.num_gpus
        for promise in live
        if (promise.probability, (promise.until_s - now_s) / HOUR_S) >= (level, hours)
    )


# What high-priority demand of a pool stays under from now on, for some hours and with some probability ----------------
#
# How it works. A forecaster predicts whole hours and learns when one is over. In between, demand of the current hour
# above the last one shifts the forecast; demand below does not, for it may come back. Before the first hour is over
# there is no history: then demand is a random walk, by a quarter of the pool in an hour.

TINY_H = 1e-9
GUESSED_SHARE = 0.25  # of the pool: how far demand moves in an hour while nothing is known


def in_nodes(evidence: Evidence) -> Evidence | None:
    """The same evidence counted in nodes: a node with a high-priority job is taken, whole; None if unknown.

    Sixty-four idle GPUs, one on each node, are of no use to a gang; the number of whole nodes is a separate series.
    """
    if not evidence.num_nodes or len(evidence.hourly_high_nodes) != len(evidence.hourly_demand):
        return None
    now, hourly = np.array([evidence.high_nodes_now]), evidence.hourly_high_nodes[:, None]
    return replace(evidence, capacity_gpus=float(evidence.num_nodes), demand_now=now, hourly_demand=hourly)


class DemandForecast(Protocol):
    """A forecast of one pool that follows the evidence."""

    def update(self, evidence: Evidence) -> None:
        """Take in what is known now."""

    def max_quantiles(self, hours: Sequence[float], probability: float) -> list[float]:
        """GPUs that demand stays under for each number of hours from now."""


class HourlyDemand:
    """Adapts any forecaster of hourly demand to queries at any moment; the pool is one series."""

    def __init__(self, model: Forecaster) -> None:
        self.model = model
        self.num_hours_seen = 0
        self.capacity_gpus = 0.0
        self.hour_passed_share = 0.0
        self.surplus_gpus = 0.0
        self.last_gpus = 0.0
        self.bounds: dict[float, list[float]] = {}

    def update(self, evidence: Evidence) -> None:
        """Learn the hours that are over; note how far the present one is above the last."""
        self.capacity_gpus = evidence.capacity_gpus
        if len(evidence.hourly_demand) > self.num_hours_seen:
            self.learn(evidence.hourly_demand[self.num_hours_seen :].sum(axis=1), evidence.capacity_gpus)
        self.hour_passed_share = evidence.now_s / HOUR_S % 1.0
        self.surplus_gpus = max(0.0, float(evidence.demand_now.sum()) - self.last_gpus)

    def learn(self, hourly_gpus: npt.NDArray[np.float64], capacity_gpus: float) -> None:
        """Demand of the next hours that are over, one or more."""
        for hour, gpus in enumerate(hourly_gpus.tolist(), start=self.num_hours_seen):
            self.model.observe(hour, [gpus])
        self.num_hours_seen += len(hourly_gpus)
        self.last_gpus = float(hourly_gpus[-1])
        forecast = self.model.forecast(capacity=capacity_gpus)
        table = forecast.maxima.quantiles[0].T.tolist()
        self.bounds = dict(zip(forecast.levels, table, strict=True))

    def max_quantiles(self, hours: Sequence[float], probability: float) -> list[float]:
        """GPUs that demand stays under for each number of hours from now, at most capacity."""
        if not self.bounds:
            return [min(self._guess_gpus(each, probability), self.capacity_gpus) for each in hours]
        bounds, passed_h, surplus = self.bounds[probability], self.hour_passed_share - TINY_H, self.surplus_gpus
        last = len(bounds) - 1
        return [min(bounds[min(ceil(passed_h + each) - 1, last)] + surplus, self.capacity_gpus) for each in hours]

    def _guess_gpus(self, hours: float, probability: float) -> float:
        """How far demand may rise, as long as no hour is over."""
        change = GUESSED_SHARE * self.capacity_gpus * sqrt(hours) * NormalDist().inv_cdf(probability)
        return self.surplus_gpus + max(0.0, change)


# The safety coefficient: smaller after broken promises, larger after quiet hours in which spot jobs wait --------------
#
# Duan et al., ASPLOS 2026, on the spot quota allocator. With the rate e of broken promises and its goal e* = 1 - p, the
# coefficient is multiplied by e*/e when e >= 1.5 e*, and by 1.5 - e/e* when e <= 0.5 e* while a spot job has waited for
# an hour.
#
# How it works. Every promise is evidence once: what led to a correction is forgotten. Until there is enough of it,
# evidence is weighed against two broken promises' worth of keeping the goal exactly, so that one eviction alone changes
# nothing. A period in which spot jobs wait and none runs says that the quota is too small, but not that it may exceed
# the forecast.

PERIOD_S = 3600.0
WINDOW_S = 4 * 3600.0
LONG_WAIT_S, SHORT_SHARE = 3600.0, 0.75
LEAST, MOST = 0.25, 4.0  # evidence alone decides in between; a narrow range would leave a careful forecast uncorrected
NUM_DOUBTED = 2.0  # broken promises that chance may explain


@dataclass(frozen=True, slots=True)
class Goal:
    """The share of promises to keep."""

    probability: float = 0.9

    def __post_init__(self) -> None:
        if not 0.0 < self.probability < 1.0:
            raise BadInput(f"promises cannot be kept with probability {self.probability:g}; choose one between 0 and 1")

    @property
    def broken_share(self) -> float:
        """How many promises may be broken."""
        return 1.0 - self.probability


@dataclass(frozen=True, slots=True)
class Feedback:
    """The coefficient, and the evidence since it was last corrected or weighed."""

    coefficient: float = 1.0
    num_kept: int = 0
    num_broken: int = 0
    since_s: float | None = None

    def broken_share(self, goal: Goal) -> float:
        """The rate of broken promises, in doubt the goal."""
        weight = NUM_DOUBTED / goal.broken_share
        return (self.num_broken + NUM_DOUBTED) / (self.num_kept + self.num_broken + weight)


def corrected(
    before: Feedback, goal: Goal, now_s: float, num_kept: int, num_broken: int, longest_wait_s: float
) -> Feedback:
    """The coefficient after new evidence; `num_kept` and `num_broken` count what happened since the last call."""
    since_s = now_s if before.since_s is None else before.since_s
    after = Feedback(before.coefficient, before.num_kept + num_kept, before.num_broken + num_broken, since_s)
    if num_broken and after.broken_share(goal) >= 1.5 * goal.broken_share:
        return _clean(after.coefficient * goal.broken_share / after.broken_share(goal), now_s)
    if now_s - since_s < PERIOD_S:
        return after
    if longest_wait_s > LONG_WAIT_S and (growth := _growth(after, goal)) > 1.0:
        return _clean(after.coefficient * growth, now_s)
    return _clean(after.coefficient, now_s) if now_s - since_s >= WINDOW_S else after


def _growth(feedback: Feedback, goal: Goal) -> float:
    num = feedback.num_kept + feedback.num_broken
    if num == 0:
        return min(1.5, max(1.0, 1.0 / feedback.coefficient))
    excess = feedback.num_broken / num / goal.broken_share
    return 1.5 - excess if excess <= 0.5 else 1.0


def _clean(coefficient: float, now_s: float | None) -> Feedback:
    return Feedback(min(max(LEAST, coefficient), MOST), since_s=now_s)


HOURS = (0.5, 1.0, 2.0, 4.0, 8.0)
PROBABILITIES = (0.8, 0.9, 0.99)


def forecast_by(
    model: str = DEFAULT_MODEL,
    hours: Sequence[float] = HOURS,
    probabilities: Sequence[float] = PROBABILITIES,
) -> Callable[[], HourlyDemand]:
    """Makes the forecast of a pool, by the model of this name."""
    # One hour more than promised: the first hour is always partly over.
    scope = Scope(int(max(hours)) + 1, tuple(sorted(probabilities)))
    return lambda: HourlyDemand(make_forecaster(model, scope))


@dataclass(slots=True)
class _Pool:
    forecast: DemandForecast
    feedback: Feedback = field(default_factory=Feedback)
    asked_s: float = -1.0
    nodes: DemandForecast | None = None
    most_gpus: float = np.inf  # of the last quota


@dataclass(slots=True)
class SpotQuota:
    """A source of quotas that remembers a forecast and a coefficient for each pool; same evidence, same answers.

    Quotas are for the goal's probability. `has_feedback` off leaves the coefficient at 1.
    """

    goal: Goal = field(default_factory=Goal)
    hours: tuple[float, ...] = HOURS
    probabilities: tuple[float, ...] = PROBABILITIES
    make_forecast: Callable[[], DemandForecast] | None = None
    has_feedback: bool = True
    _pools: dict[str, _Pool] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.hours = tuple(sorted(set(self.hours)))
        self.probabilities = tuple(sorted({*self.probabilities, self.goal.probability}))
        if not self.hours or self.hours[0] <= 0 or self.hours[-1] > 23:
            raise BadInput(f"promises for {self.hours} hours cannot be made; choose hours above 0 and up to 23")
        if self.make_forecast is None:
            self.make_forecast = forecast_by(hours=self.hours, probabilities=self.probabilities)

    def quota(self, pool: str, evidence: Evidence) -> Quota:
        """How many GPUs guaranteed spot jobs may hold from now on, by the hours promised."""
        state = self._updated(pool, evidence)
        free = self._free(state, state.forecast, evidence.capacity_gpus, self.goal.probability)
        state.most_gpus = max(free)
        (below,) = state.forecast.max_quantiles(self.hours[:1], self.goal.probability)
        return Quota(pool, dict(zip(self.hours, free, strict=True)), below, state.feedback.coefficient)

    def coefficient(self, pool: str) -> float:
        """The safety coefficient of a pool now."""
        return self._pools[pool].feedback.coefficient if pool in self._pools else 1.0

    def menu(self, pool: str, evidence: Evidence) -> Menu:
        """What could be promised if nothing were promised yet."""
        state = self._updated(pool, evidence)
        return self._menu(pool, state, state.forecast, evidence.capacity_gpus)

    def node_menu(self, pool: str, evidence: Evidence) -> Menu | None:
        """The same in whole nodes without high-priority jobs; None if the evidence does not count nodes."""
        state, counted = self._updated(pool, evidence), in_nodes(evidence)
        if counted is None:
            return None
        assert self.make_forecast is not None
        if state.nodes is None:
            state.nodes = self.make_forecast()
        state.nodes.update(counted)
        return self._menu(pool, state, state.nodes, counted.capacity_gpus)

    def offer(
        self, pool: str, evidence: Evidence, num_gpus: int, num_nodes: int = 0, sold: Sequence[SpotPromise] = ()
    ) -> tuple[Offer, ...]:
        """The best promises for a job that could start now, none if it could not; a gang needs `num_nodes` whole nodes.

        `sold` are promises still running; without them, those that `sold_of` assumes.
        """
        if num_gpus < 1 or num_nodes < 0:
            raise BadInput(f"{num_gpus} GPUs on {num_nodes} whole nodes cannot be offered; ask for one GPU or more")
        if num_gpus > evidence.idle_gpus or num_nodes > evidence.idle_nodes:
            return ()
        menu = self.menu(pool, evidence)
        if num_nodes and (nodes := self.node_menu(pool, evidence)) is not None:
            held = ceil(evidence.guaranteed_gpus * evidence.num_nodes / max(1.0, evidence.capacity_gpus))
            left = nodes.available(self._strongest(held, evidence.now_s), evidence.now_s)
            menu = _placeable(menu, left, num_nodes)
        return menu.offers(num_gpus, sold or self.sold_of(evidence), evidence.now_s)

    def sold_of(self, evidence: Evidence) -> tuple[SpotPromise, ...]:
        """All guaranteed GPUs, as if promised in the strongest way: when each promise ends is not in the evidence."""
        return self._strongest(evidence.guaranteed_gpus, evidence.now_s)

    def _strongest(self, amount: float, now_s: float) -> tuple[SpotPromise, ...]:
        return (SpotPromise(amount, now_s + self.hours[-1] * HOUR_S, self.probabilities[-1]),) if amount > 0 else ()

    def _menu(self, pool: str, state: _Pool, forecast: DemandForecast, capacity: float) -> Menu:
        columns = (self._free(state, forecast, capacity, level) for level in self.probabilities)
        return Menu(pool, self.hours, self.probabilities, tuple(zip(*columns, strict=True)))

    def _updated(self, pool: str, evidence: Evidence) -> _Pool:
        """The state of a pool updated with this evidence; idempotent for evidence of the same moment."""
        assert self.make_forecast is not None
        if pool not in self._pools:
            self._pools[pool] = _Pool(self.make_forecast(), _clean(evidence.coefficient, None))
        state = self._pools[pool]
        if evidence.now_s <= state.asked_s:
            return state
        state.asked_s = evidence.now_s
        state.forecast.update(evidence)
        if self.has_feedback:
            counts = evidence.num_kept, evidence.num_broken
            is_short = evidence.guaranteed_gpus > SHORT_SHARE * state.most_gpus  # jobs may have got no promise
            wait_s = np.inf if is_short else evidence.longest_wait_s
            state.feedback = corrected(state.feedback, self.goal, evidence.now_s, *counts, wait_s)
        return state

    def _free(self, state: _Pool, forecast: DemandForecast, capacity: float, level: float) -> list[float]:
        """What demand leaves free for each number of hours, corrected."""
        share, taken = state.feedback.coefficient, forecast.max_quantiles(self.hours, level)
        if level > self.goal.probability:
            share = min(1.0, share)  # that the goal is kept with ease says little about a stronger promise
        if share <= 1.0:
            return [max(0.0, capacity - each) * share for each in taken]
        return [min(max(0.0, capacity - each / share), capacity) for each in taken]


def _placeable(menu: Menu, left_nodes: Sequence[Sequence[float]], num_nodes: int) -> Menu:
    """The menu for a gang of `num_nodes` whole nodes: entries without enough nodes offer nothing."""
    free = (
        tuple(gpus if nodes >= num_nodes else 0.0 for gpus, nodes in zip(*rows, strict=True))
        for rows in zip(menu.free_gpus, left_nodes, strict=True)
    )
    return replace(menu, free_gpus=tuple(free))
