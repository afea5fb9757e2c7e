"""The part `locate` of stragglers.py: the slow rank, named without a pause and confirmed by tests in one.

Real ranks over Gloo, 4 to 8 of them. Half of the slow ranks and links are so for real, from outside: processes that are
stopped for a part of the time, cables between network namespaces that became thin. These are also tested in a pause.
The others are slow in the loop or below the hook, where a test would not see it. Which, and how much, is drawn from
--seed. With --keep FILE, the cases of several runs, such as --cases 0,1,2, are judged together.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from support.watch_lab import SlowPeriod, WatchedJob, run_jobs
from takeup.core.report import Cell, Check, Column, Table
from takeup.core.seeds import Streams
from takeup.training.stragglers.contract import Finding
from takeup.training.stragglers.detect.change_points import ChangePointDetector
from takeup.training.stragglers.remedy.remediation import WatchSettings
from takeup.training.stragglers.watch.session import WatchSession

Part = tuple[list[Table], list[Check]]
COMPUTE_S = 0.06
FIRST, END = 40, 78  # iterations that are slow
NUM_ROWS = 512  # of messages over cables: 128 KiB
LEAST_NAMED = 0.95
COLUMNS = (
    Column("seed and case"),
    Column("loop"),
    Column("ranks", "", 0),
    Column("slow"),
    Column("how"),
    Column("named"),
    Column("delay", "iterations", 0),
    Column("right"),
    Column("confirmed"),
)


def locate(tick: Callable[[], object], options: Namespace) -> Part:
    """Which share of slow ranks and links is named, without a pause; and which of those tested is confirmed."""
    every = dict(enumerate(_drawn_jobs(Streams(options.seed).stream("locate"))))
    chosen = [int(each) for each in options.cases.split(",")] if options.cases else list(every)
    jobs = [every[number] for number in chosen]
    ChangePointDetector().see(np.ones(40))  # compiled before ranks need the cores
    rows: list[tuple[Cell, ...]] = [
        (f"{options.seed}/{number}", *_row(job, session))
        for number, job, session in zip(chosen, jobs, _watched(jobs), strict=True)
    ]
    tick()
    rows = _kept(options.keep, rows)
    right, tested = [bool(row[-2]) for row in rows], [row[-1] for row in rows if row[-1] != "not tested"]
    note = (
        f"{sum(right)} of {len(right)} are named right without a pause; {tested.count('yes')} of {len(tested)} tested "
    )
    return [Table("Who is slow", COLUMNS, tuple(rows), note + "in a pause are confirmed")], [
        Check.at_least("share of slow ranks and links named right without a pause", _share(right), LEAST_NAMED),
        Check.at_least("share of those tested in a pause that it confirms", _share([t == "yes" for t in tested]), 1.0),
    ]


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / max(1, len(flags))


# Cases ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Case:
    kind: str
    num_ranks: int
    is_link: bool
    is_outside: bool


CASES = (
    *(_Case(kind, ranks, False, False) for kind, ranks in (("ddp", 4), ("fsdp", 4), ("pipeline", 4), ("grid", 8))),
    *(_Case(kind, ranks, True, False) for kind, ranks in (("pipeline", 4), ("grid", 4), ("stage", 8))),
    *(_Case(kind, ranks, False, True) for kind, ranks in (("ddp", 4), ("fsdp", 4), ("pipeline", 4), ("grid", 4))),
    *(_Case(kind, ranks, True, True) for kind, ranks in (("pipeline", 4), ("grid", 4), ("pipeline", 6))),
)


def _drawn_jobs(random: np.random.Generator) -> list[WatchedJob]:
    return [_job(case, random) for case in CASES]


def _job(case: _Case, random: np.random.Generator) -> WatchedJob:
    kind = "grid" if case.kind == "stage" else case.kind
    num_rows = NUM_ROWS if case.is_link and case.is_outside else 8
    slow = _slow_link(case, random) if case.is_link else _slow_rank(case, random)
    compute_s = 2 * COMPUTE_S if slow.is_stopped else COMPUTE_S  # several stops in every iteration
    return WatchedJob(kind, case.num_ranks, END, compute_s, (slow,), is_sporadic=True, num_rows=num_rows)  # type: ignore[arg-type]


def _slow_rank(case: _Case, random: np.random.Generator) -> SlowPeriod:
    rank, factor = int(random.integers(case.num_ranks)), float(random.uniform(1.5, 2.5))
    return SlowPeriod((rank,), FIRST, END, factor=factor, is_stopped=case.is_outside)


def _slow_link(case: _Case, random: np.random.Generator) -> SlowPeriod:
    """Between neighbours of a pipeline, or among all ranks of a stage, which reduce together."""
    ranks = _link_of(case, random)
    if case.is_outside:
        return SlowPeriod(ranks, FIRST, END, rate_bps=float(random.uniform(30e6, 60e6)))  # 128 KiB take 18 to 36 ms
    return SlowPeriod(ranks, FIRST, END, delay_s=float(random.uniform(0.015, 0.03)))


def _link_of(case: _Case, random: np.random.Generator) -> tuple[int, ...]:
    if case.kind == "stage":
        return tuple(range(int(random.integers(2)), case.num_ranks, 2))
    first = int(random.integers(case.num_ranks - 1))
    first -= first % 2 if case.kind == "grid" else 0
    return first, first + 1


# Watching -------------------------------------------------------------------------------------------------------------


def _watched(jobs: Sequence[WatchedJob]) -> list[WatchSession]:
    """Run all jobs, each with a session beside it, which may pause those that are slow from outside."""
    sessions: dict[int, WatchSession] = {}

    def beside(place: Path, _: bool) -> None:
        if not place.exists():
            return
        number = int(place.name)
        if number not in sessions:
            settings = WatchSettings(confirm=_is_outside(jobs[number]), rebalance=False)
            sessions[number] = WatchSession(place, settings)
        if not _slow_finding(sessions[number]):  # one is enough
            sessions[number].poll()

    run_jobs(jobs, beside)
    return [sessions[number] for number in range(len(jobs))]


def _is_outside(job: WatchedJob) -> bool:
    return job.slow[0].is_stopped or bool(job.slow[0].rate_bps)


def _slow_finding(session: WatchSession) -> Finding | None:
    """The first since the job was made slow; what this machine did to it before is not what is asked for."""
    slow = (finding for finding in session.findings if finding.event.is_slow)
    return next((finding for finding in slow if finding.event.declared >= FIRST), None)


def _row(job: WatchedJob, session: WatchSession) -> tuple[Cell, ...]:
    truth, finding = job.slow[0], _slow_finding(session)
    named = finding.event.suspects[0] if finding is not None and finding.event.suspects else None
    found = "nobody" if named is None else f"{named.kind} {_listed(named.ranks)}"
    is_right = named is not None and (named.kind, set(named.ranks)) == (truth.kind, set(truth.ranks))
    late = None if finding is None else finding.event.declared - truth.first
    amount = f"{truth.factor:.2f}x" if truth.kind == "compute" else _amount(truth)
    how = f"{amount}, {'from outside' if _is_outside(job) else 'inside'}"
    what = f"{truth.kind} {_listed(truth.ranks)}"
    return job.kind, job.num_ranks, what, how, found, late, is_right, _confirmed(truth, finding)


def _amount(truth: SlowPeriod) -> str:
    return f"{truth.rate_bps / 1e6:.0f} Mbit/s" if truth.rate_bps else f"{1e3 * truth.delay_s:.0f} ms"


def _confirmed(truth: SlowPeriod, finding: Finding | None) -> str:
    """Whether tests in a pause found the same, and nothing else."""
    confirmed = None if finding is None else finding.confirmed
    if confirmed is None:
        return "not tested"
    if confirmed.problem:
        return f"not tested: {confirmed.problem}"
    expected = ({truth.ranks[0]}, set()) if truth.kind == "compute" else (set(), {truth.ranks})
    found = (set(confirmed.slow_ranks), set(confirmed.slow_links))
    return "yes" if found == expected else f"no: {confirmed.sentence()}"


def _listed(ranks: Sequence[int]) -> str:
    return " ".join(map(str, ranks))


def _kept(path: Path | None, rows: list[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
    """These rows after those of earlier runs, which are kept in this file."""
    if path is None:
        return rows
    before = [tuple(json.loads(line)) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    every = [row for row in before if row[0] not in {row[0] for row in rows}] + rows
    path.write_text("".join(json.dumps(row) + "\n" for row in every), "utf-8")
    return every
