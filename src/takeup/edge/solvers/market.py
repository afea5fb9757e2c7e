"""Prices, bound and plans of one instance: rounds of prices and steps of search, as many as the caller has time for."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.edge.model import Allocation, Answer, Instance, Prices, Radio, Reason
from takeup.edge.solvers.bounds import with_bound
from takeup.edge.solvers.compiled.core_schedules import Jobs, earnings, whole_runs_bound
from takeup.edge.solvers.compiled.dual import FIRST_AIM, Ascent, CoreTime, Options, descend, list_options
from takeup.edge.solvers.compiled.neighbourhood import LEAST_FACTOR, improve, new_search, return_to_best, start_from
from takeup.edge.solvers.compiled.uplinks import CHANNEL, DEVICE, CellArrays, Uplinks, measure_reach
from takeup.edge.solvers.partial_plan import PartialPlan, SiteQuantities

NUM_SLOTS, NUM_FINE_SLOTS = 64, 400
MOST_NODES, MOST_WINDOWS = 20_000, 8_000_000
PART_ROUNDS = 20  # of whole schedules, for a part of the plans
FIRST_SHARES = (0.03, 0.1, 0.0)  # of what all devices could save: prices of all subcarriers for the first plans
FIRST_PRICES = 0.3  # of the worth of the first plan: all subcarriers together, and all CPU time together
NEXT_AIM = 0.05  # of the difference between bound and plan
PART_AIM = 0.2  # the same for a part of the plans
SLACK = 1.5  # devices are ordered by their margins up to a cost of this much of their worth
ROUNDING = 1e-9  # of the bound


class _Part(NamedTuple):
    """Some of the plans: a bound on them, and its prices."""

    bound_j: float
    ascent: Ascent


class Market:
    """Subcarriers and CPU time with prices, and plans that are made with them."""

    def __init__(
        self,
        instance: Instance,
        start: Allocation | None = None,
        seed: int = 0,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin with the better of a quick plan and of `start`, as far as that one is still possible.

        Quick plans are made at several prices, until `is_over`.
        """
        self.instance = instance
        self._is_over = is_over
        latest_s = instance.deadlines_s - instance.run_s
        self._up = _uplinks(instance)
        self._options = _without_empty(list_options(self._up, latest_s, instance.worth_j.copy()))
        self._up.cell.devices["reach_j"][self._options.num == 0] = -np.inf
        self._time = _core_time(instance, latest_s)
        self._search = new_search(self._up, self._options, instance.num_cores, seed)
        self._search.margin_j[:] = self._up.cell.devices["reach_j"]
        self._first_plans()
        if start is not None:
            devices = np.flatnonzero(start.offloads)
            devices = devices[np.argsort(-start.start_s[devices], kind="stable")]
            cores = _cores(instance, start.start_s[devices], instance.run_s[devices])
            start_from(self._search, devices, cores, start.owners == devices[:, None])
            self._first_plans()
        return_to_best(self._search)
        self._ascent = self._first_prices()
        self._bound_j = np.inf
        self._parts: list[_Part] = []
        self._runs: tuple[Jobs, Floats, float] | None = None
        self._runs_help = False

    def _first_plans(self) -> None:
        """The plan there is, with all devices that still fit, at some prices."""
        total_j = float(np.maximum(0.0, self._search.margin_j).sum()) / self.instance.num_subcarriers
        for share in FIRST_SHARES:
            self._search.prices[:] = share * total_j
            self.worth_j = improve(self._search, 1, True)
            if self._is_over():
                return

    def _first_prices(self) -> Ascent:
        num_devices, num_subcarriers = self._up.logs.shape
        prices = np.full(num_subcarriers + NUM_SLOTS, FIRST_PRICES * self.worth_j / num_subcarriers)
        prices[num_subcarriers:] = FIRST_PRICES * self.worth_j / NUM_SLOTS
        scale = np.ones(len(prices))
        scale[num_subcarriers:] = (num_subcarriers / NUM_SLOTS) ** 2
        return Ascent(
            prices,
            prices.copy(),
            np.zeros(len(prices)),
            scale,
            np.array([np.inf]),
            np.array([FIRST_AIM * self.worth_j]),
            np.array([self.worth_j]),
            np.zeros(1, np.int64),
            np.zeros(num_devices),
            np.zeros((num_devices, num_subcarriers), np.bool_),
            np.full(num_devices, np.nan),
            np.zeros(num_devices),
            np.zeros(num_devices, np.int64),
            np.full(num_devices, -np.inf),
            np.full(num_devices, np.inf),
        )

    @property
    def bound_j(self) -> float:
        """What no plan is worth more than; infinite before the first round of prices."""
        return min(self._bound_j, float(self._ascent.bound_j[0])) * (1 + ROUNDING)

    @property
    def gap_share(self) -> float:
        """The largest share of the possible worth that may be missing."""
        return max(0.0, 1 - self.worth_j / self.bound_j) if self.bound_j > 0 else 0.0

    @property
    def prices_j(self) -> tuple[Floats, Floats]:
        """The best prices so far: of every subcarrier, and of all CPU time of every slot."""
        count = self._up.logs.shape[1]
        return self._ascent.best[:count].copy(), self._ascent.best[count:].copy()

    @property
    def edges_s(self) -> Floats:
        """Where the slots of CPU time begin and end."""
        return self._time.edges_s

    def improve_prices(self, num_rounds: int) -> None:
        """Rounds of better prices."""
        self._ascent.known_j[0] = self.worth_j
        descend(self._up, self._options, self._time, self._ascent, self.instance.num_cores, num_rounds, 1.0)

    def list_windows(self) -> bool:
        """From now on groups of neighbours are priced one by one, if rates are Shannon's and they are not too many."""
        num_devices, count = self._up.logs.shape
        shape = (num_devices, 1 + int(self._options.span.max(initial=0)), count * (count + 1) // 2)
        if self._up.contiguous and len(self._up.rates) == 0 and np.prod(shape) <= MOST_WINDOWS:
            self._options = self._options._replace(windows_j=np.full(shape, np.nan))
        return len(self._options.windows_j) > 0

    def aim_again(self) -> None:
        """The next rounds make larger steps again, after they have become small."""
        self._ascent.aim_j[0] = max(float(self._ascent.aim_j[0]), NEXT_AIM * (self.bound_j - self.worth_j))
        self._ascent.stale[0] = 0

    def use_prices(self, ascent: Ascent | None = None) -> None:
        """The search continues with the best prices, or those of a part of the plans."""
        ascent = ascent or self._ascent
        descend(self._up, self._options, self._time, ascent, self.instance.num_cores, 0, SLACK)
        prices_j = ascent.best[: self._up.logs.shape[1]].copy()
        self._search.prices[:] = prices_j
        self._search.margin_j[:] = np.where(ascent.must > 0, self.instance.worth_j.sum(), ascent.margin_j)
        self._search.room.hint_s[:] = ascent.limit_s
        if self.instance.radio.modulations:
            self._search = self._search._replace(options=_by_floor(self._options, prices_j, self._up.contiguous))

    def grow_plan(self) -> None:
        """The better of the plan there is and of one that grows from nothing at the best prices."""
        now = self._search.now
        now.owner[:], now.size[:], now.start_s[:], now.length[:] = -1, 0, np.nan, 0
        self.worth_j = improve(self._search, 1, True)
        return_to_best(self._search)

    def improve_plan(self, num_steps: int) -> None:
        """Steps of large-neighbourhood search."""
        self.worth_j = improve(self._search, num_steps, False)

    def split(self, num_rounds: int, num_steps: int) -> bool:
        """Divide the plans with the largest bound into those with a device and those without; False if that is over.

        Where no device is undecided, plans are divided by the start of a device: before a moment, or after; if starts
        cost nothing, there are only more rounds of prices. Prices are improved for both parts, and the search looks for
        a plan in them; the largest bound of all parts holds for all plans.
        """
        parts = self._parts or [_Part(self.bound_j, self._ascent)]
        at = max(range(len(parts)), key=lambda place: parts[place].bound_j)
        count, whole = len(parts), parts.pop(at)
        for division in self._divisions(whole.ascent):
            ascent = _restarted(whole.ascent, PART_AIM * (whole.bound_j - self.worth_j), self.worth_j)
            if division is not None:
                name, device, value = division
                getattr(ascent, name)[device] = value
            parts.append(self._bounded(whole.bound_j, ascent, num_rounds))
            if parts[-1].bound_j > self.worth_j:
                self.use_prices(ascent)
                self.improve_plan(num_steps)
        self._parts = parts
        self.lower_bound_to(max(part.bound_j for part in parts))
        return len(parts) > count or parts[-1].bound_j < whole.bound_j

    def _bounded(self, bound_j: float, ascent: Ascent, num_rounds: int) -> _Part:
        """A part of plans with this bound, after rounds of its own prices."""
        descend(self._up, self._options, self._time, ascent, self.instance.num_cores, num_rounds, 1.0)
        bound_j = min(bound_j, float(ascent.bound_j[0]) * (1 + ROUNDING))
        if self._runs_help and bound_j > self.worth_j:
            bound_j = min(bound_j, self._runs_bound(self._whole_runs(ascent), PART_ROUNDS))
        return _Part(bound_j, ascent)

    def _divisions(self, ascent: Ascent) -> list[tuple[str, int, float] | None]:
        """By the device that takes most at the best prices and is nearly indifferent; or by a start; or by nothing."""
        descend(self._up, self._options, self._time, ascent, self.instance.num_cores, 0, SLACK)
        count, edges_s = self._up.logs.shape[1], self.edges_s
        starts_s, ends_s = ascent.start_s[:, None], (ascent.start_s + self.instance.run_s)[:, None]
        inside_s = np.maximum(0.0, np.minimum(ends_s, edges_s[1:]) - np.maximum(starts_s, edges_s[:-1]))
        share = np.nan_to_num(inside_s) / (self.instance.num_cores * (edges_s[1] - edges_s[0]))
        run_j = share @ ascent.best[count:]
        taken_j = ascent.groups @ ascent.best[:count] + run_j
        is_open = (ascent.must == 0) & ~np.isnan(ascent.start_s) & (taken_j > 0)
        if is_open.any():
            device = int(np.argmax(np.where(is_open, taken_j - np.abs(ascent.margin_j), -np.inf)))
            return [("must", device, 1), ("must", device, -1)]
        from_s = np.maximum(ascent.from_s, self._time.starts_s[:, 0])
        spare_s = np.minimum(ascent.until_s, self._time.starts_s[:, -1]) - from_s
        spare_s[(ascent.must < 0) | (spare_s <= edges_s[1] - edges_s[0])] = 0.0
        device = int(np.argmax(run_j * spare_s))
        middle_s = from_s[device] + 0.5 * spare_s[device]
        is_over = run_j[device] * spare_s[device] <= 0
        return [None] if is_over else [("until_s", device, middle_s), ("from_s", device, middle_s)]

    def lower_bound_to(self, bound_j: float | None) -> None:
        """Take over a bound that was proven elsewhere, if there is one."""
        self._bound_j = self._bound_j if bound_j is None else min(self._bound_j, bound_j)

    def bound_by_whole_runs(self, num_rounds: int) -> None:
        """Rounds of a bound from whole schedules of the cores, at the prices of subcarriers of the first call."""
        instance = self.instance
        if not (instance.run_s > (self.edges_s[-1] - self.edges_s[0]) / NUM_FINE_SLOTS).all():
            return
        self._runs = self._runs or self._whole_runs(self._ascent)
        found_j = self._runs_bound(self._runs, num_rounds)
        self._runs_help |= found_j < self.bound_j
        self.lower_bound_to(found_j)

    def _runs_bound(self, runs: tuple[Jobs, Floats, float], num_rounds: int) -> float:
        jobs, device_j, fixed_j = runs
        num_cores = self.instance.num_cores
        return float(whole_runs_bound(jobs, num_cores, fixed_j, device_j, self.worth_j, num_rounds, MOST_NODES))

    def _whole_runs(self, ascent: Ascent) -> tuple[Jobs, Floats, float]:
        """What starts earn at the best prices of subcarriers, prices of devices, and the sum of the former."""
        instance = self.instance
        edges_s = np.linspace(self.edges_s[0], self.edges_s[-1], NUM_FINE_SLOTS + 1)
        descend(self._up, self._options, self._time, ascent, instance.num_cores, 0, 1.0)
        prices_j = ascent.best[: self._up.logs.shape[1]]
        latest_s = instance.deadlines_s - instance.run_s
        earned_j = earnings(self._up, self._options, prices_j, edges_s, latest_s)
        earned_j[(ascent.from_s[:, None] > edges_s[1:]) | (ascent.must < 0)[:, None]] = 0.0
        due_s = np.minimum(instance.deadlines_s, ascent.until_s + instance.run_s)
        by_deadline = np.argsort(-due_s, kind="stable")  # schedules are made from their ends
        rows = by_deadline[(earned_j.max(axis=1) > 0)[by_deadline]]
        least_j = np.where(ascent.must[rows] > 0, -np.inf, 0.0)
        jobs = Jobs(earned_j[rows], edges_s, due_s[rows], instance.run_s[rows], least_j)
        return jobs, np.maximum(least_j, ascent.margin_j[rows]), float(prices_j.sum())

    def answer(self, policy: str) -> Answer:
        """The best plan, with the bound and what one more subcarrier and core would be worth."""
        best = self._search.best
        plan = PartialPlan(SiteQuantities(self.instance))
        for device in np.flatnonzero(best.size).tolist():
            plan.groups[device] = best.group[device, : best.size[device]].tolist()
            plan.limits_s[device] = float(best.start_s[device])
        can_save = self._up.cell.devices["reach_j"] > 0
        reasons = np.where(can_save, np.int8(Reason.CROWDED_OUT), np.int8(Reason.NO_SAVING))
        answer = plan.answer(policy, reasons)
        subcarriers_j, slots_j = self.prices_j
        prices = Prices(float(subcarriers_j.mean()), float(slots_j.sum()) / self.instance.num_cores)
        return with_bound(self.instance, replace(answer, prices=prices), self.bound_j)


def _restarted(ascent: Ascent, aim_j: float, known_j: float) -> Ascent:
    """A copy that begins again at the best prices."""
    copy = Ascent._make(each.copy() for each in ascent)
    copy.prices[:] = copy.best
    copy.direction[:], copy.bound_j[:], copy.stale[:] = 0.0, np.inf, 0
    copy.aim_j[:], copy.known_j[:] = aim_j, known_j
    return copy


@cache
def load_kernels() -> None:
    """Compile the kernels, or load them, once in a process, so that no time budget has to pay for that."""
    ones = np.ones(2)
    tiny = Instance(np.ones((2, 2)), ones, ones, 4 * ones, Radio(1.0, 1.0, 10.0), 2.0, 10.0, 1.0)
    plan = Market(tiny).answer("auto").allocation
    market = Market(tiny, plan)
    market.improve_prices(1)
    market.use_prices()
    market.grow_plan()
    market.bound_by_whole_runs(1)


def _cores(instance: Instance, start_s: Floats, run_s: Floats) -> Ints:
    """A core for each run, the last to start first: the one that is free for the shortest time."""
    taken_s, cores = np.full(instance.num_cores, np.inf), np.zeros(len(start_s), np.int64)
    for row, end_s in enumerate((start_s + run_s).tolist()):
        free = np.where(taken_s >= end_s - ROUNDING, taken_s, np.inf)
        cores[row] = np.argmin(free) if np.isfinite(free).any() else np.argmax(taken_s)
        taken_s[cores[row]] = start_s[row]
    return cores


def _uplinks(instance: Instance) -> Uplinks:
    gains, modulations = instance.gain_to_noise, instance.radio.modulations
    sizes = np.arange(instance.num_subcarriers + 2)
    allowed = np.isin(sizes, instance.group_sizes) if instance.group_sizes else sizes > 0
    allowed[-1] = False
    ranked = np.argsort(-gains, axis=1, kind="stable")
    cell = _cell(instance, gains)
    measure_reach(cell, ranked)
    return Uplinks(
        cell,
        np.log(gains),
        1 / gains,
        np.log(2) * instance.bits / instance.radio.bandwidth_hz,
        ranked,
        np.log(2) * np.array([each.bits_per_hz_s for each in modulations]),
        np.array([each.least_ratio for each in modulations], np.float64),
        bool(instance.contiguous),
        allowed,
    )


def _cell(instance: Instance, gains: Floats) -> CellArrays:
    devices, channels = np.zeros(len(gains), DEVICE), np.empty(gains.shape, CHANNEL)
    channels["log"], channels["inverse"] = np.log2(gains), 1 / gains
    devices["bits_per_hz"], devices["worth_j"] = instance.bits / instance.radio.bandwidth_hz, instance.worth_j
    devices["due_s"], devices["run_s"] = instance.deadlines_s, instance.run_s
    devices["release_s"] = instance.releases_s
    return CellArrays(float(instance.radio.max_power_w), float(instance.radio.circuit_power_w), devices, channels)


def _core_time(instance: Instance, latest_s: Floats) -> CoreTime:
    """Equal slots from the first release to the last deadline; runs may be cheapest where they touch an edge."""
    first_s, last_s = float(instance.releases_s.min()), float(instance.deadlines_s.max())
    edges_s = np.linspace(first_s, last_s, NUM_SLOTS + 1)
    touching_s = np.concatenate(
        [np.broadcast_to(edges_s, (len(latest_s), len(edges_s))), edges_s - instance.run_s[:, None], latest_s[:, None]],
        axis=1,
    )
    low_s, high_s = instance.releases_s[:, None], np.maximum(latest_s, instance.releases_s)[:, None]
    return CoreTime(edges_s, np.sort(np.clip(touching_s, low_s, high_s), axis=1))


def _without_empty(options: Options) -> Options:
    """The same in arrays that are as wide as the longest row."""
    width = max(1, int(options.num.max(initial=0)))
    return options._replace(**{name: getattr(options, name)[:, :width].copy() for name in Options._fields[1:-1]})


def _by_floor(options: Options, prices_j: Floats, contiguous: bool) -> Options:
    """The options of modulations from the least floor on, at the smallest prices that the search uses."""
    sums_j = np.concatenate([[0.0], np.cumsum(prices_j if contiguous else np.sort(prices_j))])
    if contiguous:
        sums_j = np.array([(sums_j[size:] - sums_j[: len(sums_j) - size]).min() for size in range(len(sums_j))])
    used = np.arange(options.size.shape[1]) < options.num[:, None]
    floors_j = np.full(options.size.shape, np.inf)
    floors_j[used] = options.floor_j[used] + LEAST_FACTOR * np.maximum(0.0, sums_j)[options.size[used]]
    order = np.argsort(floors_j, axis=1)
    return options._replace(
        end_s=np.take_along_axis(options.end_s, order, axis=1),
        size=np.take_along_axis(options.size, order, axis=1),
        ratio=np.take_along_axis(options.ratio, order, axis=1),
        floor_j=np.take_along_axis(floors_j, order, axis=1),
    )
