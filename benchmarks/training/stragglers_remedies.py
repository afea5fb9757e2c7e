"""Parts of stragglers.py in which a slow job is helped: real ranks over Gloo, watched by their calls alone.

recovery   one rank of four computes 1.5 times as long: throughput before, then, and with other shares of the batch
schedule   a cable between two stages of a pipeline becomes thin: throughput before, then, and with another schedule

A job is healthy at first, then slow, then helped, by whoever watches it and knows only its calls. What came back is the
share of the lost throughput, within the same job, so that a machine that is busy for a while does not count; the median
of several jobs is judged. Jobs that nobody helps stand beside them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from support.watch_lab import JobRecord, SlowPeriod, WatchedJob, run_jobs
from takeup.core.report import Cell, Check, Column, Table
from takeup.training.stragglers.remedy.remediation import WatchSettings
from takeup.training.stragglers.watch.session import WatchSession

Part = tuple[list[Table], list[Check]]
NUM_JOBS = 3  # that are helped
FOREVER = 100_000
SETTLED = 8  # iterations after which a change counts
SHARES = WatchedJob("batches", 4, 120, 0.16, (SlowPeriod((2,), 40, FOREVER, factor=1.5),))
PIPELINE = WatchedJob("adaptive", 4, 56, 0.36, (SlowPeriod((1, 2), 20, FOREVER, rate_bps=28e6),), num_rows=512)
LEAST_SHARES, LEAST_SCHEDULE = 0.6, 0.5


def recovery(tick: Callable[[], object], options: Namespace) -> Part:
    """Other shares of the batch for a slow rank."""
    best = "the best shares of 40 micro-batches, 11 11 7 11, bring back 0.727"
    return _part("A slow rank gets less work", SHARES, LEAST_SHARES, best, tick)


def schedule(tick: Callable[[], object], options: Namespace) -> Part:
    """Another schedule for a pipeline with a slow link."""
    best = "above 1: the schedule before was not the best one for a healthy link either"
    return _part("A pipeline with a thin cable plans anew", PIPELINE, LEAST_SCHEDULE, best, tick)


class Phases(NamedTuple):
    """The medians of iterations of one job: healthy, slow, and helped."""

    healthy_s: float
    slow_s: float
    helped_s: float

    @property
    def came_back(self) -> float:
        """The share of the lost throughput."""
        healthy, slow, helped = (1 / time_s for time_s in self)
        return (helped - slow) / (healthy - slow)


def _part(title: str, job: WatchedJob, least: float, best: str, tick: Callable[[], object]) -> Part:
    jobs = [job] * (NUM_JOBS + 1)  # the last one is not helped
    sessions, recorded = _watched(jobs, *[WatchSettings()] * NUM_JOBS, WatchSettings(rebalance=False))
    tick()
    phases = [_phases(job, *each) for each in zip(sessions, recorded, strict=True)]
    names = [*(f"helped, {number}" for number in range(1, NUM_JOBS + 1)), "not helped"]
    rows = [_row(name, each, session) for name, each, session in zip(names, phases, sessions, strict=True)]
    columns = (
        Column("job"),
        *(Column(name, "ms", 1) for name in ("healthy", "slow", "then")),
        Column("came back", digits=3),
        Column("what was done"),
    )
    shares = [each.came_back for each in phases[:-1]]
    note = f"{best}; from {min(shares):.3f} to {max(shares):.3f}"
    return [Table(title, columns, tuple(rows), note)], [
        Check.at_least(f"{title}: share of the lost throughput that came back, median", median(shares), least)
    ]


def _watched(jobs: Sequence[WatchedJob], *settings: WatchSettings) -> tuple[list[WatchSession], list[JobRecord]]:
    """Run the jobs, each with a session beside it that has its settings."""
    sessions: dict[str, WatchSession] = {}

    def beside(place: Path, _: bool) -> None:
        if place.exists():
            if place.name not in sessions:
                sessions[place.name] = WatchSession(place, settings[int(place.name)])
            sessions[place.name].poll()

    recorded = run_jobs([replace(job, seed=number + 1) for number, job in enumerate(jobs)], beside)
    return [sessions[str(number)] for number in range(len(jobs))], recorded


def _phases(job: WatchedJob, session: WatchSession, recorded: JobRecord) -> Phases:
    """Iterations before the job became slow, from then until that was known, and from some after the last action on."""
    first, times_s = job.slow[0].first, recorded.iterations_s
    unheard = len(times_s) - session.watcher.num_iterations  # before the calls that mark iterations were known
    declared = [finding.event.declared + unheard for finding in session.findings if finding.event.is_slow]
    known = min(declared, default=first + SETTLED)
    acted = max(declared, default=first) + SETTLED
    parts = (times_s[first // 4 : first], times_s[first + 1 : known], times_s[acted:])
    return Phases(*(median(part.tolist()) for part in parts))


def _row(name: str, phases: Phases, session: WatchSession) -> tuple[Cell, ...]:
    done = "; ".join(finding.action for finding in session.findings) or "nothing was noticed"
    is_helped = name != "not helped"
    return name, *(1e3 * time_s for time_s in phases), phases.came_back if is_helped else None, done
