"""Days with less allocation than FIFO, one by one: was usable capacity left idle, and could any scheduler match FIFO?

How it works. GFS is replayed once more, and inspected every five minutes: if a waiting job would fit, capacity was left
idle unnecessarily. When a day begins, the remaining spot work is known for every job, and from it an upper bound on the
allocation of any scheduler on that day. If FIFO was above that bound, no scheduler could match it from that state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from takeup.cluster.experiment.workloads import select_jobs
from takeup.cluster.fleet.outcome import Outcome
from takeup.cluster.model import Workload
from takeup.cluster.policies import find_policy
from takeup.cluster.policies.gfs.quota import SpotQuota
from takeup.cluster.simulate.moment import IdleReason, ReplayMoment
from takeup.cluster.simulate.replay import fits_pool
from takeup.core.arrays import Floats
from takeup.core.report import Cell, Column, Table
from takeup.papers.gfs.bound import allocation_bound_gpu_s
from takeup.papers.gfs.loads import Numbers, SpotLoad, begin_window, window_s

HOUR_S, DAY_S, HOURS = 3600.0, 86_400.0, 24  # seconds in an hour, seconds in a day, and hours of a day
TINY = 1e-9


@dataclass(frozen=True, slots=True)
class DailyGap:
    """A day of GFS less FIFO, in percentage points of the pool and in hours of the whole pool.

    `bound_pp` is the upper bound on the lead over FIFO. `idle_pp` is the idle share by reason.
    """

    number: int
    allocation_pp: float
    before_h: float
    after_h: float
    bound_pp: float
    idle_pp: Mapping[IdleReason, float]

    @property
    def is_lower(self) -> bool:
        """Whether less was allocated than by FIFO."""
        return self.allocation_pp < -TINY

    @property
    def can_match_fifo(self) -> bool:
        """Whether the bound permits some scheduler to allocate as much as FIFO."""
        return self.bound_pp >= -TINY


@dataclass(frozen=True, slots=True)
class DailyGaps:
    """All days of a draw, and the number of samples at which a waiting job would have fitted."""

    load: SpotLoad
    num_moments: int
    num_fitting: int
    days: tuple[DailyGap, ...]

    @property
    def lower(self) -> tuple[DailyGap, ...]:
        """The days with less allocation than FIFO."""
        return tuple(day for day in self.days if day.is_lower)


@dataclass(slots=True)
class _IdleSampler:
    """Records idle GPUs by day and reason, and the remaining work when days begin and the last one ends."""

    from_s: float
    num_days: int
    idle_gpus: list[Counter[IdleReason]] = field(init=False)
    left_gpu_s: list[Floats] = field(default_factory=list)
    num_moments: int = 0
    num_fitting: int = 0

    def __post_init__(self) -> None:
        self.idle_gpus = [Counter() for _ in range(self.num_days)]

    def sample(self, moment: ReplayMoment) -> None:
        """Record one more sample."""
        while len(self.left_gpu_s) <= self.num_days and moment.now_s >= self.from_s + DAY_S * len(self.left_gpu_s):
            self.left_gpu_s.append(moment.left_gpu_s())
        day = int((moment.now_s - self.from_s) // DAY_S)
        if 0 <= day < self.num_days:
            why = moment.why_idle()
            self.num_moments += 1
            self.num_fitting += why == IdleReason.FITS
            self.idle_gpus[day][why] += int(moment.idle_gpus.sum())


def inspect_days(expected: Numbers, load: SpotLoad, tick: Callable[[], None]) -> DailyGaps:
    """Replay GFS on a draw of one pool again and inspect every day."""
    from_s, to_s = window_s(expected)
    watcher = _IdleSampler(from_s, int((to_s - from_s) // DAY_S))
    jobs = select_jobs(load.workload, fits_pool(load.workload))
    ours = begin_window(expected, jobs).replay(
        find_policy("gfs", SpotQuota(make_forecast=load.warm_start)), watcher.sample
    )
    days = tuple(_daily_gap(jobs, ours, load.outcomes["fifo"], number, watcher) for number in range(watcher.num_days))
    tick()
    return DailyGaps(load, watcher.num_moments, watcher.num_fitting, days)


def _daily_gap(jobs: Workload, ours: Outcome, fifo: Outcome, number: int, watcher: _IdleSampler) -> DailyGap:
    num_gpus, hour = float(ours.capacity_gpus.sum()), int(ours.from_s // HOUR_S) + HOURS * number
    lead_h = (ours.delivered_gpu_h() - fifo.delivered_gpu_h()) / num_gpus
    most = allocation_bound_gpu_s(jobs, ours, hour, *watcher.left_gpu_s[number : number + 2])
    return DailyGap(
        number=number + 1,
        allocation_pp=100 * float(ours.daily()[number] - fifo.daily()[number]),
        before_h=float(lead_h[hour - 1]) if hour else 0.0,
        after_h=float(lead_h[hour + HOURS - 1]),
        bound_pp=100 * (most / (num_gpus * DAY_S) - float(fifo.daily()[number])),
        idle_pp=_idle_by_reason(100 * (1 - float(ours.daily()[number])), watcher.idle_gpus[number]),
    )


def _idle_by_reason(idle_pp: float, seen: Counter[IdleReason]) -> dict[IdleReason, float]:
    """Divide the idle share in the sampled proportions; without samples, no spot job was present."""
    total = seen.total()
    if not total:
        return {why: idle_pp if why == IdleReason.NOBODY_WAITS else 0.0 for why in IdleReason}
    return {why: idle_pp * seen[why] / total for why in IdleReason}


def days_table(backs: Sequence[DailyGaps]) -> Table:
    """Every day with less allocation than FIFO: the lead before and after, idle GPUs, and the upper bound."""
    rows: list[tuple[Cell, ...]] = [
        (
            back.load.name, back.load.seed, day.number, day.allocation_pp, day.before_h, day.after_h, day.bound_pp,
            *(day.idle_pp[why] for why in IdleReason),
        )
        for back in backs
        for day in back.lower
    ]  # fmt: skip
    columns = (
        Column("load"), Column("seed"), Column("day"), Column("allocation", "pp", 3),
        Column("lead before", "h of the pool", 3), Column("lead after", "h of the pool", 3),
        Column("most over FIFO", "pp", 2), *(Column(f"idle: {why.value}", "pp", 2) for why in IdleReason),
    )  # fmt: skip
    note = (
        "gfs less fifo; most over FIFO: what nobody who serves high-priority jobs when gfs does could exceed from the "
        "state in which the day began, below 0 where it could not be won; idle: GPUs under gfs, and jobs that wait"
    )
    return Table("Days with less allocation than FIFO", columns, tuple(rows), note)
