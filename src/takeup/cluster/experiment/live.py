"""A scheduler at work on an engine: observe, decide, apply, and at the end what was decided and why.

The embedded engine plays the jobs of a workload in virtual time. The others are real clusters in real time, where a dry
run reports decisions, and changes nothing. On a terminal the cluster is shown while work goes on; anywhere else every
decision is a line. Where an engine remembers what ran, every day ends with a look back: the jobs
of the day are replayed under this scheduler and under another one.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from takeup.cluster.contract import ClusterEngine
from takeup.cluster.engines import find_engine
from takeup.cluster.experiment.replays import scheduler_of
from takeup.cluster.experiment.scenario import DAY_S, ClusterScenario, load_workload, report_on
from takeup.cluster.model import Decision, State, Workload
from takeup.cluster.report import live as views
from takeup.cluster.report.outcomes import schedulers_table
from takeup.cluster.simulate import replay
from takeup.core.clock import Clock, VirtualClock, WallClock
from takeup.core.control import ApplyOutcome, ControlLoop
from takeup.core.files import write_atomically
from takeup.core.render import to_text
from takeup.core.report import Report, Table
from takeup.errors import BadInput, MissingEngine, TakeupError

# A report that is redrawn periodically while work goes on, on a terminal only -----------------------------------------

DRAW_EVERY_S = 0.25


@dataclass(slots=True)
class LiveView:
    """The live area of the terminal; the report is built only when a redraw is due."""

    live: Live
    monotonic: Callable[[], float] = time.monotonic
    _drawn_s: float = field(default=-inf, init=False)

    def draw(self, picture: Callable[[], Report]) -> None:
        """Show how things are now, unless that was shown a moment ago."""
        now_s = self.monotonic()
        if now_s - self._drawn_s < DRAW_EVERY_S:
            return
        self._drawn_s = now_s
        console = self.live.console
        text = to_text(picture(), width=console.width, colour=console.color_system is not None)
        self.live.update(Text.from_ansi(text), refresh=True)


@contextmanager
def live_view(*, quiet: bool, stream: TextIO | None = None) -> Iterator[LiveView | None]:
    """A view for the duration of the block; None if `quiet` or if the stream is not a terminal."""
    stream = sys.stderr if stream is None else stream
    if quiet or not stream.isatty():
        yield None
        return
    console = Console(file=stream)
    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        yield LiveView(live)


Tell = Callable[[str], None]
VIRTUAL_PERIOD_S, REAL_PERIOD_S = 300.0, 1.0  # a job that waits for a GPU should not wait for us
JOURNALLED = {"slurm"}  # others keep in the cluster itself what must survive


def run_engine(scenario: ClusterScenario, quiet: bool, tell: Tell | None = None) -> Report:
    """Run the policy on the engine for `for_s` seconds, or until interrupted."""
    with live_view(quiet=quiet or tell is None) as seen:
        work = _LiveRun(scenario, lambda text: None if tell is None or quiet or seen else tell(text), seen)
        try:
            work.go()
        finally:
            work.close()
    return work.report()


class _NotInstalled(BaseException):
    """Ends a loop that would otherwise go on: an engine that does not answer may come back, this one will not."""


@dataclass(slots=True)
class _ObservedEngine:
    """An engine whose last state is remembered."""

    engine: ClusterEngine
    on_look: Callable[[], None]
    last: State | None = None

    def observe(self) -> State:
        """The cluster as it is now."""
        try:
            self.last = self.engine.observe()
        except MissingEngine as error:
            raise _NotInstalled from error
        finally:
            self.on_look()
        return self.last

    def apply(self, decision: Decision) -> None:
        """Carry one decision out."""
        self.engine.apply(decision)


@dataclass(slots=True)
class _LiveRun:
    """A loop over an engine, and what it leaves behind."""

    scenario: ClusterScenario
    tell: Tell
    view: LiveView | None = None
    clock: Clock = field(init=False)
    engine: Any = field(init=False)
    watched: _ObservedEngine = field(init=False)
    loop: ControlLoop[State, Decision] = field(init=False)
    diary: views.DecisionLog = field(default_factory=views.DecisionLog, init=False)
    problems: list[str] = field(default_factory=list, init=False)
    days: list[Table] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        scenario, is_virtual = self.scenario, self.scenario.verb == "play"
        self.clock = VirtualClock() if is_virtual else WallClock()
        self.engine = _engine(scenario, self.clock)
        self.watched = _ObservedEngine(self.engine, self._look)
        scheduler = scheduler_of(scenario, scenario.policies[0])
        period_s = scenario.period_s or (VIRTUAL_PERIOD_S if is_virtual else REAL_PERIOD_S)
        hear: dict[str, Any] = {"on_decision": self._hear, "on_problem": self._complain}
        self.loop = ControlLoop(self.clock, self.watched, scheduler, period_s, dry_run=scenario.dry_run, **hear)

    def go(self) -> None:
        """Work until the time is over; an interrupt ends it, and the report follows."""
        try:
            self._go()
        except _NotInstalled as ended:
            raise MissingEngine(str(ended.__cause__)) from None

    def _go(self) -> None:
        if hasattr(self.engine, "past"):
            self.clock.after(DAY_S, self._look_back)
        with suppress(KeyboardInterrupt):
            if hasattr(self.engine, "wait_for_change"):
                self._follow()
                return
            self.loop.start()
            self.clock.run(self._until_s())
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
        """Close the engine if it can be closed; a failure is part of the report."""
        try:
            getattr(self.engine, "close", lambda: None)()
        except TakeupError as error:
            self._complain(str(error))

    def report(self) -> Report:
        """What was decided, what the cluster looks like now, and what went wrong."""
        counters, scenario = self.loop.counters, self.scenario
        if counters.num_rounds and counters.num_rounds == counters.num_failed_rounds:
            raise BadInput(f"not one of {counters.num_rounds} rounds went well: {self.problems[0]}")
        states = () if self.watched.last is None else (views.state_table(self.watched.last),)
        tables = (views.counts_table(self.diary), views.decisions_table(self.diary), *states, *self.days)
        skipped = getattr(self.engine, "skipped", {})
        notes = (
            f"{counters.num_rounds} rounds, {counters.num_failed_rounds} of them failed",
            "nothing was changed" if scenario.dry_run else "decisions were carried out",
            *(f"left out of the last state: {count} x {reason}" for reason, count in skipped.items()),
            *self.problems,
        )
        return report_on(
            scenario, f"Cluster: {scenario.policies[0]} on {scenario.engine or 'simulated jobs'}", *tables, notes=notes
        )

    def _until_s(self) -> float | None:
        if self.scenario.for_s is not None:
            return self.scenario.for_s
        return DAY_S if self.scenario.verb == "play" else None

    def _hear(self, decision: Decision, outcome: ApplyOutcome) -> None:
        if self.diary.note(decision, outcome):
            self.tell(f"{outcome}: {views.sentence(decision)}")

    def _complain(self, problem: str) -> None:
        self.problems.append(problem)
        self.tell(problem)

    def _look(self) -> None:
        """Let others see how things are; nothing that goes wrong with that stops the work."""
        self._write_metrics()
        if self.view is not None:
            try:
                self.view.draw(self._picture)
            except Exception as error:
                self.view = None
                self._complain(f"the cluster is no longer shown: {type(error).__name__}: {error}")

    def _picture(self) -> Report:
        scenario = self.scenario
        title = f"{scenario.policies[0]} on {scenario.engine or 'simulated jobs'}" + (
            ", dry run" if scenario.dry_run else ""
        )
        return views.screen(title, scenario.seed, self.watched.last, self.diary, self.loop.counters, self.problems)

    def _write_metrics(self) -> None:
        """What was done until now; a disk that is full stops nothing."""
        if self.scenario.metrics is None:
            return
        text = views.prometheus(self.loop.counters, self.diary, self.watched.last)
        try:
            write_atomically(Path(self.scenario.metrics), text)
        except TakeupError as error:
            if str(error) not in self.problems:
                self._complain(str(error))

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


def _engine(scenario: ClusterScenario, clock: Clock) -> Any:
    kind = find_engine(scenario.engine or "embedded")
    if scenario.verb == "play":
        return kind(load_workload(scenario)[0], clock)
    given: dict[str, Any] = {"conf": Path(scenario.conf) if scenario.conf else None, "read_only": scenario.dry_run}
    if scenario.engine in JOURNALLED:
        if scenario.journal is None and not scenario.dry_run:
            raise BadInput("a controller that was killed must find its place again; name a file with '--journal'")
        given["journal"] = Path(scenario.journal) if scenario.journal else None
    return kind(**given)
