"""Watch a PyTorch job: the only module that connects its call logs, the detector and the outputs."""

import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from takeup.training.stragglers.detect.detector import StragglerDetector
from takeup.training.stragglers.locate.edge_colouring import link_passes, ring_links
from takeup.training.stragglers.locate.suspects import blame_cpu_contention
from takeup.training.stragglers.model import CallLog, SlowdownEvent
from takeup.training.stragglers.remedy.escalation import DurationDistribution, Remedy, plan_escalation
from takeup.training.stragglers.remedy.rank_swap import PredictedRankSwap, best_rank_swap, traffic_of
from takeup.training.stragglers.remedy.rebalance import Pace, rebalance
from takeup.training.stragglers.watch import launch
from takeup.training.stragglers.watch.agent import Agent, Listener, address_of
from takeup.training.stragglers.watch.reports import (
    finding_values,
    live_line,
    metrics_of,
    report_unhealthy,
    serve_metrics,
    write_finding,
)
from takeup.training.stragglers.watch.ring_reader import RingCollector
from takeup.training.stragglers.watch.session import Finding, WatchSession, WatchSettings
from takeup.training.traces.slowdowns import LINK_MINUTES

LOOK_EVERY_S = 0.2
DRAIN_S = 10.0  # wait for final reports of other machines after the local part of the job ends
OWN_WEIGHT = 5  # weight of an event of this job, in published events
LEAST_SAVED = 0.1  # of an iteration
Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options given by the user."""

    as_json: bool = False
    out: Path | None = None
    quiet: bool = False
    metrics_port: int | None = None
    on_unhealthy: str | None = None
    shim: Path | None = None
    listen: str | None = None
    report_to: str | None = None
    token: str = ""
    settings: WatchSettings = field(default_factory=WatchSettings)


def watch(command: Sequence[str], asked: WatchOptions, say: Say, tell: Say) -> int:
    """Run the job, watch it, and return its exit code. `say` receives human-readable lines, `tell` JSON."""
    with tempfile.TemporaryDirectory(prefix="takeup-watch-") as name:
        if asked.report_to is not None:
            return _send(command, asked, Path(name))
        with _listening(asked, say) as listener:
            session = new_session(Path(name), asked.settings, None if listener is None else listener.ranks)
            job = _start(command, asked, Path(name))
            with _passing_on_signals(job), _metrics(asked, session, say), _live(asked, session) as refresh:
                try:
                    for _ in _polls(job, listener):
                        for finding in session.poll():
                            _report_finding(asked, session, finding, say, tell)
                        refresh()
                except Exception as error:  # an error in the watcher must never end the job
                    say(f"takeup no longer watches, the job goes on: {type(error).__name__}: {error}")
                    job.wait()
        if not asked.quiet:
            say(_summary(session))
        return job.returncode


def _start(command: Sequence[str], asked: WatchOptions, folder: Path) -> subprocess.Popen[bytes]:
    return launch.start(command, folder, sys.stderr if asked.as_json else None, asked.shim)


def _polls(job: subprocess.Popen[bytes], listener: Listener | None = None) -> Iterator[None]:
    """Poll while the job runs, and once after it ends, here and on machines that report to this one."""
    while job.poll() is None:
        yield
        time.sleep(LOOK_EVERY_S)
    if listener is not None:
        listener.drain(DRAIN_S)
    yield


def _send(command: Sequence[str], asked: WatchOptions, folder: Path) -> int:
    """Run the part of a job that is on this machine and send its calls; another machine watches."""
    assert asked.report_to is not None
    agent = Agent(RingCollector(folder), address_of(asked.report_to), asked.token)
    job = _start(command, asked, folder)
    with _passing_on_signals(job):
        for _ in _polls(job):
            agent.poll()
    agent.close()
    return job.returncode


@contextmanager
def _listening(asked: WatchOptions, say: Say) -> Iterator[Listener | None]:
    """The listener for ranks of other machines, or None if `listen` is not set."""
    if asked.listen is None:
        yield None
        return
    listener = Listener(address_of(asked.listen), asked.token)
    say(f"takeup: listening at {listener.address[0]}:{listener.address[1]}")
    try:
        yield listener
    finally:
        listener.close()


def new_session(
    folder: Path, settings: WatchSettings | None = None, far: Mapping[int, Any] | None = None
) -> WatchSession:
    """A session with our watcher, for the ring buffers in this folder and the ranks of other machines."""
    return WatchSession(
        folder,
        StragglerDetector,
        divide_microbatches,
        ring_passes,
        settings or WatchSettings(),
        {} if far is None else far,
        blame_cpu_contention,
        wait_before_restart_s,
        rank_swap,
    )


def divide_microbatches(paces_s: Sequence[float], num_microbatches: int) -> tuple[int, ...]:
    """How many micro-batches each rank should get."""
    return rebalance([Pace(pace_s) for pace_s in paces_s], num_microbatches).counts


def wait_before_restart_s(loss_share: float, cost_s: float, durations_s: Sequence[float]) -> float:
    """How long an event must last before a restart pays off, by past durations; this job's weigh more."""
    law = DurationDistribution(
        (*_usual_durations_s(), *(each for each in durations_s if each > 0 for _ in range(OWN_WEIGHT)))
    )
    steps = plan_escalation((Remedy("nothing", 0.0, min(1.0, loss_share)), Remedy("restart", cost_s, 0.0)), law).steps
    return steps[1][0] if len(steps) > 1 else math.inf


def _usual_durations_s() -> list[float]:
    """Published durations of slow links: quantiles of their distribution."""
    shares, minutes = np.array(LINK_MINUTES).T
    return [float(each) for each in 60 * np.exp(np.interp(np.linspace(0.05, 0.95, 10), shares, np.log(minutes)))]


def rank_swap(event: SlowdownEvent, logs: Sequence[CallLog], num_ranks: int) -> PredictedRankSwap | None:
    """Which ranks should swap roles, if that saves a tenth of an iteration."""
    return best_rank_swap(event, traffic_of(logs), num_ranks, LEAST_SAVED)


def ring_passes(num_ranks: int) -> list[list[tuple[int, int]]]:
    """The links of the ring of all ranks, in passes in which each rank occurs at most once."""
    return link_passes(ring_links(range(num_ranks)))


def _report_finding(asked: WatchOptions, session: WatchSession, finding: Finding, say: Say, tell: Say) -> None:
    if asked.as_json:
        tell(json.dumps(finding_values(finding)))
    else:
        say(f"takeup: {finding.sentence()}")
    if asked.out is not None:
        write_finding(asked.out, finding, session)
    if asked.on_unhealthy and finding.event.is_slow:
        try:
            report_unhealthy(asked.on_unhealthy, finding)
        except OSError as error:
            say(f"takeup: {asked.on_unhealthy!r} could not be run: {error.strerror}")


def _summary(session: WatchSession) -> str:
    number, num_bad = session.watcher.num_iterations, session.gather.num_bad
    skipped = f", {num_bad} rows made no sense and were skipped" if num_bad else ""
    if not session.gather.readers:
        return "takeup: no rank made a collective call that could be seen"
    return f"takeup: watched {number} iterations, {len(session.findings)} events, {session.lost_s:.1f} s lost{skipped}"


@contextmanager
def _passing_on_signals(job: subprocess.Popen[bytes]) -> Iterator[None]:
    """Terminate the job when this process is terminated; a keyboard interrupt reaches it anyway."""

    def forward(number: int, _: Any) -> None:
        if job.poll() is None:
            job.send_signal(number)

    before = {number: _set(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            _set(number, handler)


def _set(number: signal.Signals, handler: Any) -> Any:
    """Set a signal handler; does nothing outside the main thread."""
    try:
        return signal.signal(number, handler)
    except ValueError:
        return None


@contextmanager
def _metrics(asked: WatchOptions, session: WatchSession, say: Say) -> Iterator[None]:
    if asked.metrics_port is None:
        yield
        return
    server = serve_metrics(asked.metrics_port, lambda: metrics_of(session))
    say(f"takeup: metrics at http://127.0.0.1:{server.server_address[1]}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _live(asked: WatchOptions, session: WatchSession) -> Iterator[Callable[[], object]]:
    """Update one status line in place, on a terminal only."""
    if asked.quiet or asked.as_json or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console

    with Console(stderr=True).status("waiting for ranks") as status:
        yield lambda: status.update(live_line(session))
