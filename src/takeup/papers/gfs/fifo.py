"""Against plain FIFO: GPU time delivered up to every hour, and how often guarantees were broken.

No window should be below FIFO; days inside one may be. A scheduler that works ahead has less left for a later day;
without evictions, both do the same work in the end, so that more on one day *must* be less on another. So the report
also shows how much was delivered up to each hour, and `days` inspects every lower day: what was idle, and whether any
scheduler could have matched FIFO.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from takeup.cluster.experiment.scenario import select_jobs
from takeup.cluster.model import Grade, Kind, Workload
from takeup.cluster.policies import find_policy
from takeup.cluster.quota.allocator import SpotQuota
from takeup.cluster.scheduling.outcome import Outcome
from takeup.cluster.simulate.replay import IdleReason, ReplayMoment, fits_pool
from takeup.core.arrays import Floats
from takeup.core.report import Cell, Check, Column, Table
from takeup.papers import Findings
from takeup.papers.gfs.baselines import Numbers, SpotLoad, begin_window, window_s

# Upper bound on the allocation of any scheduler on a day, from the state in which the day began -----------------------
#
# How it works. It is a maximum flow from spot jobs to hours: each job has a remaining amount of work and a maximum
# number of GPUs, and each hour has the capacity not used by high-priority jobs. So the bound is for a clairvoyant
# scheduler that preempts, divides and moves spot jobs at no cost. It serves high-priority jobs when GFS does, and
# repeats no more work.

SLOT_S, NUM_SLOTS = 3600.0, 24  # seconds in an hour, and hours of a day
MAX_FLOW_UNITS = 2**30


def allocation_bound_gpu_s(
    workload: Workload, ours: Outcome, hour: int, left_gpu_s: Floats, later_gpu_s: Floats
) -> float:
    """Upper bound on the GPU-seconds allocated in the day that begins with this hour.

    `left_gpu_s` and `later_gpu_s` are the remaining work of all jobs when the day begins and when it ends.
    """
    hours = slice(hour, hour + NUM_SLOTS)
    used = ours.allocated_gpu_s[:, hours].sum(axis=0)
    spot = (workload.job_kind == Kind.SPOT) & (workload.job_submit_s < (hour + NUM_SLOTS) * SLOT_S)
    gpus = workload.job_gpus[spot] * workload.job_workers[spot]
    begin_s = np.arange(hour, hour + NUM_SLOTS) * SLOT_S
    here_s = np.clip(begin_s + SLOT_S - workload.job_submit_s[spot, None], 0.0, SLOT_S)
    room_gpu_s = ours.capacity_gpus.sum() * SLOT_S - used[:, Grade.HIGH]
    twice_gpu_s = used[:, Grade.GUARANTEED :].sum() - (left_gpu_s - later_gpu_s)[spot].sum()
    fresh_gpu_s = _max_flow(left_gpu_s[spot], gpus[:, None] * here_s, room_gpu_s)
    return float(used[:, Grade.HIGH].sum() + fresh_gpu_s + max(0.0, twice_gpu_s))


def _max_flow(work: Floats, rates: Floats, room: Floats) -> float:
    """The largest flow from jobs with `work` to hours with `room`, at most `rates[job, hour]` from one to the other.

    The solver uses 32-bit integers: work is capped at the total capacity, and large pools are counted in larger units.
    """
    unit = max(1.0, float(room.sum()) / MAX_FLOW_UNITS)
    work = np.minimum(work, room.sum())
    some = work > 0
    num_jobs, num_hours = int(some.sum()), len(room)
    graph = np.zeros((num_jobs + num_hours + 2, num_jobs + num_hours + 2), np.int32)
    graph[0, 1 : num_jobs + 1] = np.ceil(work[some] / unit)
    graph[1 : num_jobs + 1, num_jobs + 1 : -1] = np.ceil(np.minimum(rates[some], room) / unit)
    graph[num_jobs + 1 : -1, -1] = np.ceil(room / unit)
    return unit * float(maximum_flow(csr_array(graph), 0, len(graph) - 1).flow_value)


# Days with less allocation than FIFO, one by one: was usable capacity left idle, and could any scheduler match FIFO?
#
# How it works. GFS is replayed once more, and inspected every five minutes: if a waiting job would fit, capacity was
# left idle unnecessarily. When a day begins, the remaining spot work is known for every job, and from it an upper
# bound on the allocation of any scheduler on that day. If FIFO was above that bound, no scheduler could match it from
# that state.

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
        return {why: idle_pp if why == IdleReason.NONE_WAITS else 0.0 for why in IdleReason}
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
        "gfs less fifo; most over FIFO: what no scheduler that serves high-priority jobs when gfs does could exceed "
        "from the state in which the day began, below 0 where it could not be won; idle: GPUs under gfs, and jobs that "
        "wait"
    )
    return Table("Days with less allocation than FIFO", columns, tuple(rows), note)


COMPARED = ("fifo", "gfs")
MOVES = ("chronus", "chronus_published")
STOCK = ("kube", "slurm", "high_first")  # as they are, without a quota
SUMMARY_NOTE = (
    "gfs less fifo, which has no quota, evicts no job and passes over jobs that do not fit; delivered: GPU time "
    "allocated since the beginning, in hours of the whole pool; a day below FIFO is no loss where gfs is still ahead "
    "after it"
)


def against_fifo(expected: Numbers, draws: Sequence[SpotLoad], backs: Sequence[DailyGaps]) -> Findings:
    """Delivered GPU time up to every hour, days individually, and how often guaranteed spot jobs were evicted."""
    checks: list[Check] = []
    for name in dict.fromkeys(load.name for load in draws):
        checks += _load_checks(expected, name, [load for load in draws if load.name == name])
        checks += _days_checks(expected, name, [back for back in backs if back.load.name == name])
    first = [load for load in draws if load.seed == expected["setting"]["seed"]]
    return Findings(tuple(checks), (_summary(draws), days_table(backs), _immediate_service_table(expected, first[-1])))


def _load_checks(expected: Numbers, name: str, draws: Sequence[SpotLoad]) -> list[Check]:
    bar, most = expected["fifo_bar"], round(100 * (1 - expected["setting"]["probability"]), 9)
    least = 100 * min(_least_delivered_share(load) for load in draws)
    broken = max(100 * load.outcomes["gfs"].broken().high for load in draws)
    what = "delivered GPU time over FIFO's, worst hour of any seed"
    why = "the bar was chosen with our numbers in view: shown, not judged"
    return [
        Check.at_least(f"{name} load, {what}", least, bar["least_percent"], unit="%", source="unverified", why=why),
        Check.at_most(f"{name} load, promises broken, 95 % bound, worst seed", broken, most, unit="%"),
        _windows_check(name, draws, bar["windows_below"]),
    ]


def _days_checks(expected: Numbers, name: str, backs: Sequence[DailyGaps]) -> list[Check]:
    """Number of lower days, how many are a net loss, how many no scheduler could match; and usable idle capacity.

    A scheduler that is ahead before cannot keep the count at 0.
    """
    bar, lower = expected["fifo_bar"], [day for back in backs for day in back.lower]
    num_behind, num_lost = sum(day.after_h < -TINY for day in lower), sum(not day.can_match_fifo for day in lower)
    num_fitting, num_moments = sum(back.num_fitting for back in backs), sum(back.num_moments for back in backs)
    why = (
        f"of {sum(len(back.days) for back in backs)} days; after {len(lower) - num_behind} of these gfs had still "
        "delivered more since the beginning, so that it had less left to do; "
        f"after {num_behind} it had delivered less; {num_lost} could be won by no scheduler from where they began; "
        "more on one day must be less on another"
    )
    return [
        Check.at_most(
            f"{name} load, days with less allocation than FIFO, all seeds", len(lower), bar["days_below"], why=why
        ),
        Check.at_most(
            f"{name} load, moments at which a waiting job would fit, all seeds",
            num_fitting,
            bar["moments_fitting"],
            why=f"of {num_moments} moments, five minutes apart",
        ),
    ]


def _windows_check(name: str, draws: Sequence[SpotLoad], most: float) -> Check:
    """Number of draws with less allocation than FIFO over the whole window."""
    below = [load.seed for load in draws if _gap_pp(load, "allocation_rate") < -TINY]
    why = f"of {len(draws)} windows" + (f"; seed {', '.join(map(str, below))}" if below else "")
    return Check.at_most(f"{name} load, whole windows with less allocation than FIFO", float(len(below)), most, why=why)


def _least_delivered_share(load: SpotLoad) -> float:
    """GPU time delivered relative to FIFO's, at the worst hour of the window."""
    ours, theirs = (load.outcomes[name].delivered_gpu_h() for name in ("gfs", "fifo"))
    hours = slice(int(load.outcomes["gfs"].from_s // 3600), None)
    return float(np.min(ours[hours] / np.maximum(theirs[hours], TINY)))


def _gap_pp(load: SpotLoad, rate: str) -> float:
    """GFS less FIFO over the window, in percentage points."""
    ours, theirs = (getattr(load.metrics(name), rate) for name in ("gfs", "fifo"))
    return float(100 * (ours - theirs))


def _lead_h(load: SpotLoad) -> Floats:
    """Lead of GFS at the end of each hour, in hours of the whole pool."""
    ours, theirs = (load.outcomes[name] for name in ("gfs", "fifo"))
    return (ours.delivered_gpu_h() - theirs.delivered_gpu_h()) / float(ours.capacity_gpus.sum())


def _daily_pp(load: SpotLoad) -> Floats:
    return 100 * (load.outcomes["gfs"].daily() - load.outcomes["fifo"].daily())


def _summary(draws: Sequence[SpotLoad]) -> Table:
    columns = (
        Column("load"), Column("seed"), Column("allocation", "pp", 3), Column("useful", "pp", 3),
        Column("delivered, least lead", "h", 3), Column("delivered, lead at the end", "h", 3),
        Column("days below"), Column("of"), Column("lowest day", "pp", 3), Column("behind after days"),
        Column("promises broken", "%", 2),
        Column("high JQT", "s", 0), Column("high JQT of FIFO", "s", 0),
    )  # fmt: skip
    return Table("Against FIFO", columns, tuple(_summary_row(load) for load in draws), SUMMARY_NOTE)


def _summary_row(load: SpotLoad) -> tuple[Cell, ...]:
    lead_h, daily = _lead_h(load), _daily_pp(load)
    broken = 1 - load.metrics("gfs").promises_kept
    num_behind = int((np.cumsum(daily) < -TINY).sum())
    return (
        load.name, load.seed, _gap_pp(load, "allocation_rate"), _gap_pp(load, "useful_rate"), float(lead_h.min()),
        float(lead_h[-1]), int((daily < -TINY).sum()), len(daily), float(daily.min()), num_behind, 100 * broken,
        *(load.metrics(name).high_jqt_s.mean for name in ("gfs", "fifo")),
    )  # fmt: skip


def _immediate_service_table(expected: Numbers, load: SpotLoad) -> Table:
    """Cost of serving high-priority jobs immediately, and days below FIFO by scheduler."""
    outcomes = {name: load.outcomes[name] for name in (*COMPARED, *MOVES) if name in load.outcomes} | {
        name: load.replay(expected, find_policy(name)) for name in STOCK
    }
    fifo, rows = load.outcomes["fifo"].daily(), list[tuple[Cell, ...]]()
    for name, outcome in outcomes.items():
        metrics, num_below = outcome.metrics(), int((outcome.daily() - fifo < -TINY).sum())
        rows.append((name, 100 * metrics.allocation_rate, num_below, metrics.num_evictions, metrics.high_jqt_s.mean))
    columns = (
        Column("scheduler"), Column("allocation", "%", 2), Column("days below FIFO"), Column("evictions"),
        Column("high JQT", "s", 0),
    )  # fmt: skip
    note = (
        "a scheduler that evicts for high-priority jobs at once delivers less where wide spot gangs run for days, with "
        "or without quota; chronus may move every job every 20 minutes, and as evaluated each pays two minutes for "
        "that, which count as allocated"
    )
    return Table(f"At once or in turn, {load.name} load", columns, tuple(rows), note)
