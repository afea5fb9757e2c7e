"""A scheduler at work on an engine: observe, decide, apply, and at the end what was decided and why.

Engines are real clusters in real time, where a dry run reports decisions, and changes nothing. Every decision is a
line. Where an engine remembers what ran, every day ends with a look back: the jobs of the day are replayed under this
scheduler and under another one.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

from takeup.cluster.contract import ClusterEngine, Scheduler
from takeup.cluster.engines import find_engine
from takeup.cluster.experiment.replays import scheduler_of
from takeup.cluster.experiment.scenario import DAY_S, ClusterScenario, hourly_demand, report_on
from takeup.cluster.model import Decision, State, Workload
from takeup.cluster.report import live as views
from takeup.cluster.report.outcomes import schedulers_table
from takeup.cluster.simulate import replay
from takeup.core.clock import Clock, WallClock
from takeup.core.control import ApplyOutcome, ControlLoop
from takeup.core.files import write_atomically
from takeup.core.pages import Page, PageServer
from takeup.core.report import Report, Table
from takeup.errors import BadInput, MissingEngine, TakeupError

Tell = Callable[[str], None]
PERIOD_S = 1.0  # a job that waits for a GPU should not wait for us
HEALTHY_S = 60.0  # a round may last so long
HISTORY_H = 28 * 24  # hours of accounting that a forecast begins with
JOURNALLED = {"slurm"}  # others keep in the cluster itself what must survive


def run_engine(scenario: ClusterScenario, quiet: bool, tell: Tell | None = None) -> Report:
    """Run the policy on the engine for `for_s` seconds, or until interrupted."""
    work = _LiveRun(scenario, lambda text: None if tell is None or quiet else tell(text))
    try:
        work.go()
    finally:
        work.close()
    return work.report()


class _NotInstalled(BaseException):
    """Ends a loop that would otherwise go on: an engine that does not answer may come back, this one will not."""


@dataclass(slots=True)
class _ObservedEngine:
    """An engine whose last state is remembered, when it was looked at last, and what went wrong then."""

    engine: ClusterEngine
    on_look: Callable[[], None]
    last: State | None = None
    looked_s: float = field(default_factory=time.monotonic)
    problem: str = "it was not looked at yet"

    def observe(self) -> State:
        try:
            self.last = self.engine.observe()
            self.problem = ""
        except MissingEngine as error:
            raise _NotInstalled from error
        except TakeupError as error:
            self.problem = str(error)
            raise
        finally:
            self.looked_s = time.monotonic()
            self.on_look()
        return self.last

    def apply(self, decision: Decision) -> None:
        self.engine.apply(decision)


@dataclass(slots=True)
class _LiveRun:
    """A loop over an engine, and what it leaves behind."""

    scenario: ClusterScenario
    tell: Tell
    clock: Clock = field(init=False)
    engine: Any = field(init=False)
    watched: _ObservedEngine = field(init=False)
    scheduler: Scheduler = field(init=False)
    loop: ControlLoop[State, Decision] = field(init=False)
    diary: views.DecisionLog = field(default_factory=views.DecisionLog, init=False)
    problems: list[str] = field(default_factory=list, init=False)
    days: list[Table] = field(default_factory=list, init=False)
    pages: PageServer | None = field(default=None, init=False)
    text: str = field(default="", init=False)

    def __post_init__(self) -> None:
        scenario, self.clock = self.scenario, WallClock()
        self.engine = _engine(scenario)
        self.watched = _ObservedEngine(self.engine, self._write_metrics)
        self.scheduler = scheduler_of(scenario, scenario.policies[0])
        period_s = scenario.period_s or PERIOD_S
        hear: dict[str, Any] = {"on_decision": self._hear, "on_problem": self._complain}
        self.loop = ControlLoop(self.clock, self.watched, self.scheduler, period_s, dry_run=scenario.dry_run, **hear)
        if scenario.listen is not None:
            pages: dict[str, Page] = {"/metrics": lambda: (True, self.text), "/healthz": self._health}
            self.pages = PageServer(scenario.listen, pages | {"/readyz": self._readiness})

    def go(self) -> None:
        """Work until the time is over; an interrupt ends it, and the report follows."""
        try:
            self._go()
        except _NotInstalled as ended:
            raise MissingEngine(str(ended.__cause__)) from None

    def _go(self) -> None:
        if hasattr(self.engine, "past"):
            self._learn_history()
            self.clock.after(DAY_S, self._look_back)
        with suppress(KeyboardInterrupt):
            if hasattr(self.engine, "wait_for_change"):
                self._follow()
                return
            self.loop.start()
            self.clock.run(self.scenario.for_s)
        self.loop.stop()

    def _follow(self) -> None:
        """A round after every change, and one every period."""
        until_s = time.monotonic() + (inf if self.scenario.for_s is None else self.scenario.for_s)
        while True:
            self.loop.step()
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            self.engine.wait_for_change(min(self.loop.period_s, left_s))

    def close(self) -> None:
        """Close the pages, and the engine if it can be closed; a failure is part of the report."""
        if self.pages is not None:
            self.pages.close()
        try:
            getattr(self.engine, "close", lambda: None)()
        except TakeupError as error:
            self._complain(str(error))

    def report(self) -> Report:
        """What was decided, what the cluster looks like now, and what went wrong."""
        counters, scenario = self.loop.counters, self.scenario
        if counters.num_rounds and counters.num_rounds == counters.num_failed_rounds:
            raise BadInput(f"not one of {counters.num_rounds} rounds went well: {self.problems[-1]}")
        states = () if self.watched.last is None else (views.state_table(self.watched.last),)
        tables = (views.counts_table(self.diary), views.decisions_table(self.diary), *states, *self.days)
        skipped = getattr(self.engine, "skipped", {})
        notes = (
            f"{counters.num_rounds} rounds, {counters.num_failed_rounds} of them failed",
            "nothing was changed" if scenario.dry_run else "decisions were carried out",
            *(f"left out of the last state: {count} x {reason}" for reason, count in skipped.items()),
            *self.problems,
        )
        return report_on(scenario, f"Cluster: {scenario.policies[0]} on {scenario.engine}", *tables, notes=notes)

    def _hear(self, decision: Decision, outcome: ApplyOutcome) -> None:
        if self.diary.note(decision, outcome):
            self.tell(f"{outcome}: {views.sentence(decision)}")

    def _complain(self, problem: str) -> None:
        self.problems.append(problem)
        self.tell(problem)

    def _write_metrics(self) -> None:
        """What was done until now; a disk that is full stops nothing."""
        if self.scenario.metrics is None and self.scenario.listen is None:
            return
        self.text = views.prometheus(self.loop.counters, self.diary, self.watched.last)
        try:
            if self.scenario.metrics is not None:
                write_atomically(Path(self.scenario.metrics), self.text)
        except TakeupError as error:
            if str(error) not in self.problems:
                self._complain(str(error))

    def _health(self) -> tuple[bool, str]:
        """Whether rounds still begin; what ails the cluster is no reason to restart."""
        ago_s = time.monotonic() - self.watched.looked_s
        return ago_s < HEALTHY_S + 10 * self.loop.period_s, f"the last round began {ago_s:.0f} s ago\n"

    def _readiness(self) -> tuple[bool, str]:
        """Whether the last round saw the cluster; one that stands by for a leader is ready too."""
        problem = self.watched.problem
        return not problem or "holds the lease" in problem, f"{problem or 'the cluster is known'}\n"

    def _learn_history(self) -> None:
        """Demand of the last weeks from accounting, so that a forecast does not begin again with every start."""
        end = datetime.now().astimezone()
        begin = end - timedelta(hours=HISTORY_H)
        try:
            workload, _ = self.engine.past(begin, end)
        except TakeupError as error:
            self._complain(f"the forecast begins without history: {error}")
            return
        for pool, gpus in zip(workload.pools, hourly_demand(workload, HISTORY_H - 1).T.tolist(), strict=True):
            self.scheduler.learn(pool, begin.timestamp(), gpus)

    def _look_back(self) -> None:
        """Replay the last day under this policy and the other one; a failure is reported and ignored."""
        self.clock.after(DAY_S, self._look_back)
        end = datetime.now().astimezone()
        try:
            workload, _ = self.engine.past(end - timedelta(days=1), end)
            self.days.append(_day_table(self.scenario, workload, f"The day until {end:%Y-%m-%d %H:%M}"))
        except TakeupError as error:
            self._complain(f"no look back at this day: {error}")


def _day_table(scenario: ClusterScenario, workload: Workload, title: str) -> Table:
    names = (scenario.policies[0], scenario.against)
    table = schedulers_table([replay(workload, scheduler_of(scenario, name)) for name in names])
    return replace(table, title=f"{title}, replayed")


def _engine(scenario: ClusterScenario) -> Any:
    kind = find_engine(str(scenario.engine))
    given: dict[str, Any] = {"conf": Path(scenario.conf) if scenario.conf else None, "read_only": scenario.dry_run}
    if scenario.engine in JOURNALLED:
        if scenario.journal is None and not scenario.dry_run:
            raise BadInput("a controller that was killed must find its place again; name a file with '--journal'")
        given["journal"] = Path(scenario.journal) if scenario.journal else None
    elif scenario.engine == "kubernetes" and not scenario.dry_run:
        given["elects"] = True
    return kind(**given)
