"""A policy at work on engines: what is told, what is left behind, and what happens when an engine is away."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from cluster.cluster_outcomes import HOUR_S, two_pools
from takeup.cluster.experiment import ClusterScenario, run
from takeup.cluster.model import Decision, Grade, Job, Kind, Node, SetQuota, Start, State, Waiting, Workload
from takeup.core.clock import VirtualClock
from takeup.core.report import Report
from takeup.core.scenario import validate
from takeup.errors import BadInput, MissingEngine, TakeupError, UnknownName

JOB = Job("j", Kind.HIGH, "us", "a", 4.0)


class StubEngine:
    """One node and one job that waits; remembers what it was made with and told."""

    last: ClassVar[StubEngine | None] = None
    trouble: ClassVar[Callable[[int], Exception | None]] = lambda looks: None

    def __init__(self, journal: Path | None = None, *, conf: Path | None = None, read_only: bool = False) -> None:
        self.journal, self.conf, self.read_only = journal, conf, read_only
        self.applied: list[Decision] = []
        self.num_looks, self.is_closed = 0, False
        self.skipped = Counter({"malformed annotation": 2})
        type(self).last = self

    def observe(self) -> State:
        self.num_looks += 1
        problem = type(self).trouble(self.num_looks)
        if problem is not None:
            raise problem
        waits = () if any(isinstance(each, Start) for each in self.applied) else (Waiting(JOB, 0.0),)
        return State(float(self.num_looks), (Node("n", "a", 8),), (), waits)

    def apply(self, decision: Decision) -> None:
        self.applied.append(decision)

    def close(self) -> None:
        self.is_closed = True


class WatchingEngine(StubEngine):
    """Says by itself when something has changed."""

    waits: ClassVar[list[float]] = []

    def wait_for_change(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        if len(self.waits) >= 3:
            raise KeyboardInterrupt
        return True


class RememberingEngine(StubEngine):
    """Knows what ran in the last day, and in the last four weeks."""

    def past(self, begin: datetime, end: datetime) -> tuple[Workload, Counter[str]]:
        assert (end - begin).total_seconds() in {86_400, 28 * 86_400}
        return two_pools(), Counter()


class BusyEngine(StubEngine):
    """Four of its eight GPUs were in use for the last four weeks, by jobs of high priority."""

    def past(self, begin: datetime, end: datetime) -> tuple[Workload, Counter[str]]:
        long_s = (end - begin).total_seconds()
        node, job = ([0], [8]), ([Kind.HIGH], [0], [0], [4.0], [1], [0.0], [long_s], [1.0], [3600.0])
        return Workload("past", ("a",), ("us",), *map(np.array, (*node, *job))), Counter()

    def observe(self) -> State:
        return replace(super().observe(), now_s=time.time())


class ForgetfulEngine(BusyEngine):
    """Has no accounting."""

    def past(self, begin: datetime, end: datetime) -> tuple[Workload, Counter[str]]:
        raise TakeupError("sacct: no accounting storage")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Callable[..., type[StubEngine]]:
    """Puts an engine in the place of all real ones, and virtual time in that of the wall's."""

    def put(kind: type[StubEngine] = StubEngine, trouble: Any = lambda looks: None) -> type[StubEngine]:
        monkeypatch.setattr("takeup.cluster.experiment.live.find_engine", lambda name: kind)
        monkeypatch.setattr("takeup.cluster.experiment.live.WallClock", VirtualClock)
        monkeypatch.setattr(kind, "trouble", staticmethod(trouble))
        monkeypatch.setattr(WatchingEngine, "waits", [])
        return kind

    return put


def scenario(**values: Any) -> ClusterScenario:
    return validate(
        ClusterScenario,
        {"verb": "run", "engine": "slurm", "for_s": 20.0, "period_s": 5.0, "dry_run": True} | values,
        "test",
    )


def made() -> StubEngine:
    return next(kind.last for kind in (WatchingEngine, RememberingEngine, StubEngine) if kind.last is not None)


@pytest.fixture(autouse=True)
def forgotten() -> None:
    for kind in (StubEngine, WatchingEngine, RememberingEngine):
        kind.last = None


def tables(report: Report) -> dict[str, tuple[tuple[object, ...], ...]]:
    return {table.title: table.rows for table in report.tables}


def test_a_dry_run_tells_and_touches_nothing(stub: Callable[..., type[StubEngine]]) -> None:
    stub()
    told: list[str] = []
    report = run(scenario(), tell=told.append)

    assert made().read_only
    assert made().applied == []
    assert made().is_closed
    assert [line for line in told if "start" in line] == ["dry run: start j on n: high priority, idle GPUs fit"]
    assert ("start", "dry run", 5) in tables(report)["Decisions"]
    assert "nothing was changed" in report.notes
    assert "left out of the last state: 2 x malformed annotation" in report.notes


def test_decisions_are_carried_out_and_a_quiet_run_tells_nothing(
    stub: Callable[..., type[StubEngine]], tmp_path: Path
) -> None:
    stub()
    told: list[str] = []
    report = run(scenario(dry_run=False, journal=str(tmp_path / "j")), quiet=True, tell=told.append)

    assert told == []
    assert [each.grade for each in made().applied if isinstance(each, Start)] == [Grade.HIGH]
    assert any(isinstance(each, SetQuota) for each in made().applied)
    assert made().journal == tmp_path / "j"
    assert ("start", "applied", 1) in tables(report)["Decisions"]


def test_acting_on_slurm_needs_a_journal(stub: Callable[..., type[StubEngine]]) -> None:
    stub()
    with pytest.raises(BadInput, match="name a file with '--journal'"):
        run(scenario(dry_run=False))


def test_the_configuration_reaches_the_engine(stub: Callable[..., type[StubEngine]]) -> None:
    stub()
    run(scenario(conf="/etc/x.conf"))

    assert made().conf == Path("/etc/x.conf")


def test_an_engine_that_comes_back_is_used_again(stub: Callable[..., type[StubEngine]]) -> None:
    stub(trouble=lambda looks: TakeupError("Slurm did not answer") if looks < 4 else None)
    told: list[str] = []
    report = run(scenario(), tell=told.append)

    assert report.notes[0] == "5 rounds, 3 of them failed"
    assert sum("Slurm did not answer" in line for line in told) == 1
    assert any("Slurm did not answer" in note for note in report.notes)
    assert ("start", "dry run", 2) in tables(report)["Decisions"]


def test_an_engine_that_never_answers_is_an_error_that_says_why(stub: Callable[..., type[StubEngine]]) -> None:
    stub(trouble=lambda looks: TakeupError("Slurm did not answer"))
    with pytest.raises(BadInput, match=r"not one of 5 rounds went well: .* Slurm did not answer"):
        run(scenario())
    assert made().is_closed


def test_an_engine_that_is_not_installed_is_said_at_once(stub: Callable[..., type[StubEngine]]) -> None:
    stub(trouble=lambda looks: MissingEngine("engine 'slurm' needs the program 'squeue'"))
    with pytest.raises(MissingEngine, match="squeue"):
        run(scenario(for_s=None))
    assert made().num_looks == 1


def test_an_unexpected_failure_does_not_stop_the_rounds(stub: Callable[..., type[StubEngine]]) -> None:
    stub(trouble=lambda looks: ValueError("what is this") if looks == 3 else None)
    report = run(scenario())

    assert report.notes[0] == "5 rounds, 1 of them failed"
    assert any("ValueError: what is this" in note for note in report.notes)


def test_where_changes_are_told_every_change_has_a_round_and_an_interrupt_ends_with_a_report(
    stub: Callable[..., type[StubEngine]],
) -> None:
    stub(WatchingEngine)
    report = run(scenario(engine="kubernetes", for_s=None, period_s=7.0))

    assert WatchingEngine.waits == [7.0, 7.0, 7.0]
    assert report.notes[0] == "3 rounds, 0 of them failed"
    assert report.title == "Cluster: gfs on kubernetes"


def test_no_wait_for_changes_is_longer_than_what_was_asked_for(stub: Callable[..., type[StubEngine]]) -> None:
    stub(WatchingEngine)
    run(scenario(engine="kubernetes", for_s=3.0, period_s=7.0))

    assert all(0 < wait_s <= 3.0 for wait_s in WatchingEngine.waits)


def test_counters_and_gauges_are_kept_in_a_file(stub: Callable[..., type[StubEngine]], tmp_path: Path) -> None:
    stub(trouble=lambda looks: TakeupError("away") if looks == 2 else None)
    run(scenario(metrics=str(tmp_path / "takeup.prom")))
    text = (tmp_path / "takeup.prom").read_text()

    assert "takeup_cluster_rounds_total 5\n" in text
    assert "takeup_cluster_failed_rounds_total 1\n" in text
    assert 'takeup_cluster_decisions_total{decision="start",outcome="dry run"} 3\n' in text
    assert 'takeup_cluster_gpus{pool="a"} 8\n' in text
    assert 'takeup_cluster_waiting_jobs{pool="a"} 1\n' in text


def test_metrics_that_cannot_be_written_are_told_once_and_stop_nothing(
    stub: Callable[..., type[StubEngine]], tmp_path: Path
) -> None:
    stub()
    (tmp_path / "file").write_text("")
    report = run(scenario(metrics=str(tmp_path / "file" / "takeup.prom")))

    assert report.notes[0] == "5 rounds, 0 of them failed"
    assert sum("cannot write" in note for note in report.notes) == 1


def test_a_forecast_begins_with_what_accounting_knows(stub: Callable[..., type[StubEngine]]) -> None:
    promised: list[str] = []
    for kind in (BusyEngine, ForgetfulEngine):
        stub(kind)
        told: list[str] = []
        run(scenario(for_s=1.0), tell=told.append)
        promised += [line for line in told if "promise in a" in line]
    assert "4 GPUs for 4 h, 4 GPUs for 8 h" in promised[0]
    assert "4 GPUs for 8 h" not in promised[1]
    assert any("the forecast begins without history: sacct: no accounting storage" in line for line in told)


def test_every_day_is_replayed_under_both_policies(stub: Callable[..., type[StubEngine]]) -> None:
    stub(RememberingEngine)
    report = run(scenario(for_s=2.5 * 86_400, period_s=6 * HOUR_S, against="kube"))
    days = [table for table in report.tables if table.title.startswith("The day until")]

    assert len(days) == 2
    assert all([row[0] for row in day.rows] == ["gfs", "kube"] for day in days)


def test_an_unknown_engine_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="no cluster engine 'slrum'; did you mean 'slurm'"):
        run(scenario(engine="slrum"))
