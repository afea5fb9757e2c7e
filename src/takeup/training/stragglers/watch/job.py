"""Run a PyTorch job and watch it until it ends, with the outputs that the user asked for."""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from takeup.core.pages import PageServer
from takeup.training.stragglers.contract import Finding
from takeup.training.stragglers.remedy.remediation import WatchSettings
from takeup.training.stragglers.watch import launch, reports
from takeup.training.stragglers.watch.agent import Agent, Listener, address_of, host_name
from takeup.training.stragglers.watch.channel import Tls
from takeup.training.stragglers.watch.ring import HeaderWord
from takeup.training.stragglers.watch.ring_reader import RingCollector
from takeup.training.stragglers.watch.session import WatchSession

LOOK_EVERY_S = 0.2
DRAIN_S = 10.0  # wait for final reports of other machines after the local part of the job ends
Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options given by the user."""

    as_json: bool = False
    out: Path | None = None
    quiet: bool = False
    metrics_port: int | None = None
    metrics_host: str = reports.LOOPBACK
    on_unhealthy: str | None = None
    act: bool = False
    shim: Path | None = None
    listen: str | None = None
    report_to: str | None = None
    token: str = ""
    tls: Path | None = None
    settings: WatchSettings = field(default_factory=WatchSettings)


def watch(command: Sequence[str], asked: WatchOptions, say: Say, tell: Say) -> int:
    """Run the job, watch it, and return its exit code. `say` receives human-readable lines, `tell` JSON."""
    with tempfile.TemporaryDirectory(prefix="takeup-watch-") as name:
        if asked.report_to is not None:
            return _send(command, asked, Path(name))
        with _listening(asked, say) as listener:
            session = WatchSession(Path(name), asked.settings, {} if listener is None else listener.ranks)
            unhealthy = reports.UnhealthyHosts(asked.on_unhealthy or "", host_name(), asked.act)
            with (
                _metrics(asked, session, say),  # a refused address must not leave a job behind
                _passing_on_signals(_start(command, asked, Path(name))) as job,
                _live(asked, session) as refresh,
            ):
                try:
                    for _ in _polls(job, listener):
                        for finding in session.poll():
                            _report_finding(asked, session, finding, say, tell)
                        for line in unhealthy.poll(session) if asked.on_unhealthy else ():
                            say(f"takeup: {line}")
                        refresh()
                except Exception as error:  # an error in the watcher must never end the job
                    say(f"takeup no longer watches, the job goes on: {type(error).__name__}: {error}")
                    job.wait()
        if not asked.quiet:
            say(_summary(session))
            for line in reports.standing_lines(session, session.watcher.standings()):
                say(f"takeup: {line}")
        return job.returncode


def _start(command: Sequence[str], asked: WatchOptions, folder: Path) -> subprocess.Popen[bytes]:
    stdout = sys.stderr if asked.as_json else None
    return launch.start(command, folder, stdout, asked.shim, in_python=asked.settings.confirm)


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
    tls = None if asked.tls is None else Tls(asked.tls, is_listener=False)
    agent = Agent(RingCollector(folder), address_of(asked.report_to), asked.token, tls)
    with _passing_on_signals(_start(command, asked, folder)) as job:
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
    tls = None if asked.tls is None else Tls(asked.tls, is_listener=True)
    listener = Listener(address_of(asked.listen), asked.token, tls)
    say(f"takeup: listening at {listener.address[0]}:{listener.address[1]}")
    try:
        yield listener
    finally:
        listener.close()


def _report_finding(asked: WatchOptions, session: WatchSession, finding: Finding, say: Say, tell: Say) -> None:
    if asked.as_json:
        tell(json.dumps(reports.finding_values(finding)))
    else:
        say(f"takeup: {finding.sentence()}{reports.places_of(session, finding.event)}")
    if asked.out is not None:
        reports.write_finding(asked.out, finding, session)


def _summary(session: WatchSession) -> str:
    number, num_bad = session.watcher.num_iterations, session.gather.num_bad
    num_events, lost_s = len(session.findings), session.remedies.lost_s
    skipped = f", {num_bad} rows made no sense and were skipped" if num_bad else ""
    captured = sum(reader.word(HeaderWord.NUM_CAPTURED) for reader in session.gather.readers.values())
    graphs = f", {captured} calls went into CUDA graphs, whose replays are not seen" if captured else ""
    if number == 0:
        return f"takeup: not watched, because {_why_not(session)}{graphs}"
    return f"takeup: watched {number} iterations, {num_events} events, {lost_s:.1f} s lost{skipped}{graphs}"


def _why_not(session: WatchSession) -> str:
    gather = session.gather
    if not gather.readers:
        return "no rank made a collective call or sent a message that could be seen"
    if not gather.is_complete:
        return f"only {len(gather.readers)} of {gather.num_ranks} ranks made a call; the others were not seen"
    return f"nothing in the {gather.num_calls} calls of {gather.num_ranks} ranks repeats once per iteration"


@contextmanager
def _passing_on_signals(job: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Terminate the job when this process is terminated; a keyboard interrupt reaches it anyway."""

    def forward(number: int, _: Any) -> None:
        if job.poll() is None:
            job.send_signal(number)

    before = {number: _set(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield job
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
    pages = {"/metrics": lambda: (True, reports.metrics_of(session))}
    server = PageServer(f"{asked.metrics_host}:{asked.metrics_port}", pages)
    say(f"takeup: metrics at http://{asked.metrics_host}:{server.server_address[1]}/metrics")
    try:
        yield
    finally:
        server.close()


@contextmanager
def _live(asked: WatchOptions, session: WatchSession) -> Iterator[Callable[[], object]]:
    """Update one status line in place, on a terminal only."""
    if asked.quiet or asked.as_json or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console

    with Console(stderr=True).status("waiting for ranks") as status:
        yield lambda: status.update(reports.live_view(session))
