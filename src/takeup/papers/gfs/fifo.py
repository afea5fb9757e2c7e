"""Against plain FIFO: GPU time delivered up to every hour, and how often guarantees were broken.

No window should be below FIFO; days inside one may be. A scheduler that works ahead has less left for a later day;
without evictions, both do the same work in the end, so that more on one day *must* be less on another. So the report
also shows how much was delivered up to each hour, and `days` inspects every lower day: what was idle, and whether any
scheduler could have matched FIFO.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from takeup.cluster.fleet.rules import TRY_SMALLER, SchedulerRules
from takeup.cluster.model import Grade
from takeup.cluster.policies import POLICIES, RuleBasedScheduler
from takeup.core.arrays import Floats
from takeup.core.report import Cell, Check, Column, Table
from takeup.papers.findings import Findings
from takeup.papers.gfs.days import DailyGaps, days_table
from takeup.papers.gfs.loads import Numbers, SpotLoad

TINY = 1e-9
COMPARED = ("fifo", "gfs")
MOVES = ("chronus", "chronus_published")
SUMMARY_NOTE = (
    "gfs less fifo, which has no quota, evicts nobody and passes over who does not fit; delivered: GPU time allocated "
    "since the beginning, in hours of the whole pool; a day below FIFO is no loss where gfs is still ahead after it"
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
    broken = max(100 * load.outcomes["gfs"].broken(Grade.GUARANTEED).high for load in draws)
    what = "delivered GPU time over FIFO's, worst hour of any seed"
    why = "the bar was chosen with our numbers in view: shown, not judged"
    return [
        Check.at_least(f"{name} load, {what}", least, bar["least_percent"], unit="%", source="unverified", why=why),
        Check.at_most(f"{name} load, eviction of guaranteed spot jobs, 95 % bound, worst seed", broken, most, unit="%"),
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
        f"after {num_behind} it had delivered less; {num_lost} could be won by nobody from where they began; "
        "more on one day must be less on another"
    )
    return [
        Check.at_most(
            f"{name} load, days with less allocation than FIFO, all seeds", len(lower), bar["days_below"], why=why
        ),
        Check.at_most(
            f"{name} load, moments at which somebody waits who would fit, all seeds",
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
        Column("guaranteed evicted", "%", 2),
        Column("high JQT", "s", 0), Column("high JQT of FIFO", "s", 0),
    )  # fmt: skip
    return Table("Against FIFO", columns, tuple(_summary_row(load) for load in draws), SUMMARY_NOTE)


def _summary_row(load: SpotLoad) -> tuple[Cell, ...]:
    lead_h, daily = _lead_h(load), _daily_pp(load)
    broken = 1 - load.metrics("gfs").guarantee_kept[Grade.GUARANTEED]
    num_behind = int((np.cumsum(daily) < -TINY).sum())
    return (
        load.name, load.seed, _gap_pp(load, "allocation_rate"), _gap_pp(load, "useful_rate"), float(lead_h.min()),
        float(lead_h[-1]), int((daily < -TINY).sum()), len(daily), float(daily.min()), num_behind, 100 * broken,
        *(load.metrics(name).high_jqt_s.mean for name in ("gfs", "fifo")),
    )  # fmt: skip


def _immediate_service_table(expected: Numbers, load: SpotLoad) -> Table:
    """Cost of serving high-priority jobs immediately, with and without a quota; and days below FIFO by scheduler."""
    rules = {f"{name} without quota": POLICIES[name]._replace(uses_quota=False) for name in ("kube", "slurm")}
    rules["high priority first, nobody evicted"] = SchedulerRules(high_failure=TRY_SMALLER, spot_failure=TRY_SMALLER)
    outcomes = {name: load.outcomes[name] for name in (*COMPARED, *MOVES) if name in load.outcomes} | {
        name: load.replay(expected, RuleBasedScheduler(name, each)) for name, each in rules.items()
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
        "who evicts for high-priority jobs at once delivers less where wide spot gangs run for days, quota or not; "
        "chronus may move every job every 20 minutes, and as evaluated each pays two minutes for that, which count as "
        "allocated"
    )
    return Table(f"At once or in turn, {load.name} load", columns, tuple(rows), note)
