"""One-day windows that all begin from one state: as in an independent replication of GFS, except for the state.

How it works. Until a window begins there are only high-priority jobs, served by FIFO. Then follows a day of spot jobs
under the scheduler being compared. No scheduler has worked ahead, so the allocation on the day is comparable. The
replication found the printed scheduler below FIFO, because the capacity it reserves is idle.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from takeup.cluster.experiment.scenario import select_jobs
from takeup.cluster.model import Kind, Workload
from takeup.cluster.policies import find_policy
from takeup.cluster.policies.baselines import FIFO
from takeup.cluster.quota.allocator import SpotQuota
from takeup.cluster.scheduling.outcome import Metrics
from takeup.cluster.simulate import ReplayPrefix
from takeup.core.arrays import Floats
from takeup.core.report import Cell, Check, Column, Table
from takeup.papers import Findings, Numbers
from takeup.papers.gfs.baselines import DAY_S, SpotLoad, WarmStart, window_s

SCHEDULERS = ("fifo", "gfs_published", "gfs")
TINY = 1e-9


@dataclass(frozen=True, slots=True)
class OneDayWindows:
    """All one-day windows of a load, over its seeds, by scheduler."""

    name: str
    metrics: dict[str, list[Metrics]]

    def gaps_pp(self, policy: str, rate: str = "allocation_rate") -> Floats:
        """A rate of a scheduler less that of FIFO, window by window."""
        ours, theirs = ([getattr(one, rate) for one in self.metrics[name]] for name in (policy, "fifo"))
        return np.asarray(100 * (np.array(ours) - np.array(theirs)))

    def mean(self, policy: str, of: Callable[[Metrics], float]) -> float:
        """A metric of a scheduler, averaged over windows."""
        return float(np.mean([of(one) for one in self.metrics[policy]]))


def replay_one_day_windows(expected: Numbers, draws: Sequence[SpotLoad], tick: Callable[[], None]) -> OneDayWindows:
    """Replay every day of draws of one load under all schedulers; calls `tick` after each draw."""
    metrics: dict[str, list[Metrics]] = {name: [] for name in SCHEDULERS}
    from_s, to_s = window_s(expected)
    for load in draws:
        taught = WarmStart()
        for begin_s in np.arange(from_s, to_s, DAY_S).tolist():
            begun = ReplayPrefix(_day_workload(load.workload, begin_s), begin_s, begin_s + DAY_S, before=FIFO)
            for name in SCHEDULERS:
                outcome = begun.replay(find_policy(name, SpotQuota(make_forecast=taught)))
                taught.learn(outcome)
                metrics[name].append(outcome.metrics())
        tick()
    return OneDayWindows(draws[0].name, metrics)


def _day_workload(workload: Workload, begin_s: float) -> Workload:
    """High-priority jobs up to the end of the day, and the spot jobs of the day."""
    submit_s = workload.job_submit_s
    return select_jobs(
        workload, (submit_s < begin_s + DAY_S) & ((workload.job_kind == Kind.HIGH) | (submit_s >= begin_s))
    )


def one_day_findings(expected: Numbers, loads: Sequence[OneDayWindows]) -> Findings:
    """How often, and by how much, less was allocated than under FIFO."""
    checks = [check for days in loads for check in _checks(expected, days)]
    return Findings(tuple(checks), (_table(loads),))


def _checks(expected: Numbers, days: OneDayWindows) -> list[Check]:
    gaps, printed = (days.gaps_pp(name) for name in ("gfs", "gfs_published"))
    ours_s, theirs_s = (days.mean(policy, _high_wait_s) for policy in ("gfs", "fifo"))
    why = f"high-priority jobs wait {ours_s:.0f} s, under FIFO {theirs_s:.0f} s"
    name, least = f"{days.name} load, one-day windows, allocation over that of", expected["fifo_bar"]["one_day_gain_pp"]
    return [
        Check.at_least(f"{name} FIFO", float(gaps.mean()), least, unit="pp", why=why),
        Check.at_least(f"{name} the printed scheduler", float(np.mean(gaps - printed)), 0.0, unit="pp"),
    ]


def _table(loads: Sequence[OneDayWindows]) -> Table:
    columns = (
        Column("load"), Column("scheduler"), Column("windows"), Column("below FIFO"), Column("above FIFO"),
        Column("allocation", "pp", 3), Column("lowest", "pp", 3), Column("highest", "pp", 3), Column("useful", "pp", 3),
        Column("high JQT", "s", 1), Column("spot p95 JCT", "s", 0), Column("evictions per start", "%", 2),
    )  # fmt: skip
    rows = [_row(days, name) for days in loads for name in SCHEDULERS]
    note = (
        "rates less those of FIFO, means over windows of all seeds; until a window begins, FIFO serves high-priority "
        "jobs and there are no spot jobs"
    )
    return Table("One-day windows from one state", columns, tuple(rows), note)


def _row(days: OneDayWindows, name: str) -> tuple[Cell, ...]:
    gaps = days.gaps_pp(name)
    return (
        days.name, name, len(gaps), int((gaps < -TINY).sum()), int((gaps > TINY).sum()),
        float(gaps.mean()), float(gaps.min()), float(gaps.max()), float(days.gaps_pp(name, "useful_rate").mean()),
        days.mean(name, _high_wait_s), days.mean(name, lambda one: one.spot_jct_s.p95),
        100 * days.mean(name, lambda one: one.evictions_per_start),
    )  # fmt: skip


def _high_wait_s(metrics: Metrics) -> float:
    return metrics.high_jqt_s.mean
