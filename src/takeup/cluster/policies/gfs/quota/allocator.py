"""The spot quota allocator: what demand leaves free for the hours that are promised, times a safety coefficient.

Duan et al., ASPLOS 2026, on the spot quota allocator. With capacity C and the p-quantile of the highest demand over
the next H hours, f(H) = C - quantile is free, and the quota is Q(H) = coefficient * f(H). Beyond the paper: the
quantile is that of the maximum, not the highest of hourly quantiles; promises for all H and p hold together (see
`menu`); the quota can be limited to what could run now, idle GPUs and guaranteed jobs; and gangs that need whole
nodes get promises only as far as a forecast of whole nodes allows.

    source = SpotQuota()
    source.quota("A100", evidence)                  every five minutes: how much guaranteed jobs may hold, by hours
    source.offer("A100", evidence, num_gpus=16, num_nodes=2)                     the best promises for such a job now
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from takeup.cluster.fleet.evidence import Evidence
from takeup.cluster.model import Offer, Quota
from takeup.cluster.policies.gfs.forecast import DEFAULT_MODEL, Scope, make_forecaster
from takeup.cluster.policies.gfs.quota.demand import DemandForecast, HourlyDemand, in_nodes
from takeup.cluster.policies.gfs.quota.feedback import Feedback, Goal, corrected
from takeup.cluster.policies.gfs.quota.menu import Menu, SpotPromise
from takeup.errors import BadInput

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


@dataclass(slots=True)
class SpotQuota:
    """A source of quotas that remembers a forecast and a coefficient for each pool; same evidence, same answers.

    Quotas are for the goal's probability. `has_feedback` off leaves the coefficient at 1. `is_executable` limits quotas
    to what could run at this moment.
    """

    goal: Goal = field(default_factory=Goal)
    hours: tuple[float, ...] = HOURS
    probabilities: tuple[float, ...] = PROBABILITIES
    make_forecast: Callable[[], DemandForecast] | None = None
    has_feedback: bool = True
    is_executable: bool = False
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
        limit = evidence.idle_gpus + evidence.guaranteed_gpus if self.is_executable else evidence.capacity_gpus
        free = self._free(state, state.forecast, evidence.capacity_gpus, self.goal.probability)
        (below,) = state.forecast.max_quantiles(self.hours[:1], self.goal.probability)
        return Quota(pool, {hours: min(limit, gpus) for hours, gpus in zip(self.hours, free, strict=True)}, below)

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

        `sold` are promises still running; without them, all guaranteed GPUs count as promised for ever.
        """
        if num_gpus < 1 or num_nodes < 0:
            raise BadInput(f"{num_gpus} GPUs on {num_nodes} whole nodes cannot be offered; ask for one GPU or more")
        if num_gpus > evidence.idle_gpus or num_nodes > evidence.idle_nodes:
            return ()
        if not sold and evidence.guaranteed_gpus > 0:
            strongest_s = evidence.now_s + self.hours[-1] * 3600.0
            sold = (SpotPromise(evidence.guaranteed_gpus, strongest_s, self.probabilities[-1]),)
        menu = self.menu(pool, evidence)
        if num_nodes and (nodes := self.node_menu(pool, evidence)) is not None:
            menu = _placeable(menu, nodes.available(self._sold_nodes(evidence), evidence.now_s), num_nodes)
        return menu.offers(num_gpus, sold, evidence.now_s)

    def _sold_nodes(self, evidence: Evidence) -> tuple[SpotPromise, ...]:
        """The nodes that guaranteed jobs hold at least, as if promised for ever."""
        num_nodes = ceil(evidence.guaranteed_gpus * evidence.num_nodes / max(1.0, evidence.capacity_gpus))
        until_s = evidence.now_s + self.hours[-1] * 3600.0
        return (SpotPromise(num_nodes, until_s, self.probabilities[-1]),) if num_nodes else ()

    def _menu(self, pool: str, state: _Pool, forecast: DemandForecast, capacity: float) -> Menu:
        columns = (self._free(state, forecast, capacity, level) for level in self.probabilities)
        return Menu(pool, self.hours, self.probabilities, tuple(zip(*columns, strict=True)))

    def _updated(self, pool: str, evidence: Evidence) -> _Pool:
        """The state of a pool updated with this evidence; idempotent for evidence of the same moment."""
        assert self.make_forecast is not None
        if pool not in self._pools:
            self._pools[pool] = _Pool(self.make_forecast())
        state = self._pools[pool]
        if evidence.now_s <= state.asked_s:
            return state
        state.asked_s = evidence.now_s
        state.forecast.update(evidence)
        if self.has_feedback:
            counts = evidence.num_kept, evidence.num_broken
            state.feedback = corrected(state.feedback, self.goal, evidence.now_s, *counts, evidence.longest_wait_s)
        return state

    def _free(self, state: _Pool, forecast: DemandForecast, capacity: float, level: float) -> list[float]:
        """What demand leaves free for each number of hours, corrected."""
        share, taken = state.feedback.coefficient, forecast.max_quantiles(self.hours, level)
        if level > self.goal.probability:
            share = min(1.0, share)  # that the goal is kept with ease says little about a stronger promise
        return [min(max(0.0, capacity - each) * share, capacity) for each in taken]


def _placeable(menu: Menu, left_nodes: Sequence[Sequence[float]], num_nodes: int) -> Menu:
    """The menu for a gang of `num_nodes` whole nodes: entries without enough nodes offer nothing."""
    free = (
        tuple(gpus if nodes >= num_nodes else 0.0 for gpus, nodes in zip(*rows, strict=True))
        for rows in zip(menu.free_gpus, left_nodes, strict=True)
    )
    return replace(menu, free_gpus=tuple(free))
