"""The engine: starts devices, links and cores, receives uploads, dispatches jobs, and stops everything at the end."""

import json
import math
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from takeup.edge.engines.cloudlet.links import LINKS, ChildProcess, DeviceLinks, open_links
from takeup.edge.engines.cloudlet.plan import (
    DISPATCH_RULES,
    CloudletJob,
    CloudletPlan,
    DispatchQueue,
    DispatchRule,
    UploadOrder,
    make_plan,
)
from takeup.edge.model import Allocation, Instance
from takeup.edge.results import Played, PlayedTask
from takeup.errors import BadInput, MissingEngine, UnknownName

# Optional real-time priorities: the site before devices, devices before cores, all before other processes -------------
#
# The kernel leaves other processes a twentieth of every second by default, so tasks of nearly a second and more
# without a pause are interrupted all the same.

CORE, DEVICE, SITE = 1, 2, 3


@contextmanager
def in_real_time(wanted: bool) -> Iterator[None]:
    """Run this thread at the priority of the site inside the block."""
    if not wanted:
        yield
        return
    if not hasattr(os, "sched_setscheduler"):
        raise MissingEngine("this system has no real-time priorities; leave out real_time")
    before, settings = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(SITE))
    except PermissionError as error:
        raise MissingEngine("this user may not use real-time priorities; leave out real_time, or be root") from error
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, settings)


# The site: receives the bytes of all devices, dispatches jobs to its cores, and records what happened when ------------
#
# One loop waits for connections, bytes, finished cores, and the next planned start. A connection must first send the
# secret token of its device; it may then send exactly the bytes of that device, and no more are read. A core receives
# its next job while it still runs another, as soon as that job is certain: so no time is lost between the two.

TOKEN_BYTES = 32
MOST_AT_A_CORE = 2  # a job that runs, and one that is next
READ_BYTES = 64 * 1024
LONGEST_WAIT_S = 0.05  # polling interval for processes that have exited
MOST_STRANGERS = 64  # connections that have not sent their token


@dataclass(slots=True, eq=False)
class JobRecord:
    """What has happened to a job so far; moments of the monotonic clock."""

    job: CloudletJob
    connected: bool = False
    num_received: int = 0
    uploaded_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    core: int | None = None
    failure: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.ended_s is not None or bool(self.failure)


@dataclass(slots=True, eq=False)
class CoreProcess:
    """A process with its running and its next job, and when it should have finished them."""

    number: int
    process: ChildProcess
    records: list[JobRecord] = field(default_factory=list)
    free_s: float = 0.0


class CloudletSite:
    """The cloudlet: accepts uploads of jobs from devices with valid tokens, and runs them on cores."""

    def __init__(
        self, listener: socket.socket, jobs: Sequence[CloudletJob], tokens: Sequence[str], rule: DispatchRule
    ) -> None:
        self.records = [JobRecord(job) for job in jobs]
        self._by_token = {token.encode(): record for token, record in zip(tokens, self.records, strict=True)}
        self._queue = DispatchQueue(jobs, rule)
        self._cores: list[CoreProcess] = []
        self._zero_s = float("inf")
        self._strangers: set[socket.socket] = set()
        self._selector = selectors.SelectSelector()  # others wake up to a millisecond late
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))

    def gather(self, devices: Sequence[ChildProcess], limit_s: float) -> None:
        """Wait until every device has connected or exited, at most `limit_s`; unconnected devices have failed."""
        until_s = time.monotonic() + limit_s
        self._loop(lambda: all(self._here_or_gone(*pair) for pair in zip(self.records, devices, strict=True)), until_s)
        for record in self.records:
            if not record.connected:
                self._fail(record, "its device did not connect")

    def _here_or_gone(self, record: JobRecord, device: ChildProcess) -> bool:
        return record.connected or record.is_over or device.is_gone()

    def run(self, cores: Sequence[ChildProcess], zero_s: float, limit_s: float) -> None:
        """Run all jobs, starting at the moment `zero_s`, for at most `limit_s` seconds."""
        self._zero_s = zero_s
        self._cores = [CoreProcess(number, process) for number, process in enumerate(cores)]
        for core in self._cores:
            self._selector.register(core.process, selectors.EVENT_READ, partial(self._hear, core))
        self._loop(lambda: all(record.is_over for record in self.records), zero_s + limit_s)
        for record in self.records:
            self._fail(record, f"it was not done after {limit_s:.1f} s")

    def close(self) -> None:
        """Close all connections and the listening socket; the cores are owned by the caller."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()

    def _loop(self, is_done: Callable[[], bool], until_s: float) -> None:
        while not is_done() and (now_s := time.monotonic()) < until_s:
            wait_s = min(LONGEST_WAIT_S, until_s - now_s, self._dispatch_jobs(now_s))
            for key, _ in self._selector.select(wait_s):
                key.data()

    # Cores ------------------------------------------------------------------------------------------------------------

    def _dispatch_jobs(self, now_s: float) -> float:
        """Dispatch all jobs that can be dispatched; the longest time to wait before the next dispatch."""
        while (taken := self._next_turn(now_s)) is not None:
            self._give(*taken, now_s)
        wake_s = None if all(core.records for core in self._cores) else self._queue.wake_s()
        return LONGEST_WAIT_S if wake_s is None else max(0.0, self._zero_s + wake_s - time.monotonic())

    def _next_turn(self, now_s: float) -> tuple[CoreProcess, CloudletJob] | None:
        """A job that can be dispatched now, and the core that is, or will be, free first."""
        core = min(self._cores, key=lambda core: core.free_s if core.records else 0.0, default=None)
        if core is None or len(core.records) == MOST_AT_A_CORE:
            return None
        job = self._queue.take_ahead()
        if job is None and not core.records:
            job = self._queue.take(now_s - self._zero_s)
        return None if job is None else (core, job)

    def _give(self, core: CoreProcess, job: CloudletJob, now_s: float) -> None:
        record = next(record for record in self.records if record.job is job)
        record.core = core.number
        core.records.append(record)
        not_before_s = self._zero_s + self._queue.not_before_s(job)
        core.free_s = max(now_s, core.free_s, not_before_s) + job.run_s
        core.process.tell(f"{not_before_s!r} {job.run_s!r}")

    def _hear(self, core: CoreProcess) -> None:
        words = core.process.hear()
        if not words or len(words) > 2 * len(core.records):
            self._lose(core)
            return
        for begin_s, end_s in zip(words[::2], words[1::2], strict=True):
            record = core.records.pop(0)
            record.started_s, record.ended_s = float(begin_s), float(end_s)

    def _lose(self, core: CoreProcess) -> None:
        """Handle a stopped core: its running job is lost, its next job may run on another core."""
        self._cores.remove(core)
        self._selector.unregister(core.process)
        for record in core.records[1:]:
            self._queue.put_back(record.job)
        for record in core.records[:1] if self._cores else self.records:
            self._fail(record, f"core {core.number} stopped")

    # Connections ------------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        if len(self._strangers) >= MOST_STRANGERS:
            connection.close()
            return
        connection.setblocking(False)
        self._strangers.add(connection)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._greet, connection, b""))

    def _greet(self, connection: socket.socket, said: bytes) -> None:
        said += _read(connection, TOKEN_BYTES - len(said)) or b"\n"  # no token has a line break
        if len(said) < TOKEN_BYTES and not said.endswith(b"\n"):
            self._selector.modify(connection, selectors.EVENT_READ, partial(self._greet, connection, said))
            return
        self._strangers.discard(connection)
        record = self._by_token.pop(said, None)
        if record is None or record.is_over:
            self._hang_up(connection)
            return
        record.connected = True
        self._selector.modify(connection, selectors.EVENT_READ, partial(self._receive, connection, record))

    def _receive(self, connection: socket.socket, record: JobRecord) -> None:
        received = _read(connection, min(READ_BYTES, record.job.num_bytes - record.num_received))
        record.num_received += len(received)
        if not received:
            self._hang_up(connection)
            self._fail(record, f"its link broke after {record.num_received} of {record.job.num_bytes} bytes")
        elif record.num_received == record.job.num_bytes:
            record.uploaded_s = time.monotonic()
            self._hang_up(connection)
            self._queue.complete(record.job)

    def _hang_up(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()

    def _fail(self, record: JobRecord, failure: str) -> None:
        if not record.is_over:
            record.failure = failure
            self._queue.drop(record.job)


def _read(connection: socket.socket, num_bytes: int) -> bytes:
    """Read the available bytes; empty if the peer has disconnected for any reason."""
    try:
        return connection.recv(num_bytes)
    except OSError:
        return b""


# The engine: starts devices, links, cores and the site, executes one allocation, and stops them all -------------------

CONNECT_LIMIT_S = 30.0
LEAD_S = 0.05  # between the start command and the start, so that every process has received it


class CloudletEngine:
    """Real uploads and real computing on this machine.

    `slowdown` makes everything longer by that factor, `bits_factor` every upload larger (None: as large as shows).
    `dispatch` is the rule by which a free core picks its job (see `plan`). `real_time` is for real-time priority. Plans
    have no slack between the end of a task and its deadline, so a deadline met up to `tolerance_s` late counts as met.
    """

    def __init__(
        self,
        slowdown: float = 1.0,
        link: str = "auto",
        dispatch: DispatchRule = "planned",
        bits_factor: float | None = None,
        tolerance_s: float = 0.002,
        real_time: bool = False,
    ) -> None:
        numbers = {"slowdown": slowdown, "bits_factor": bits_factor, "tolerance_s": tolerance_s}
        for name, number in numbers.items():
            if number is not None and not 0 < number < math.inf:
                raise BadInput(f"{name} is {number}; give a finite number above 0")
        if link not in LINKS:
            raise UnknownName("link", link, LINKS)
        if dispatch not in DISPATCH_RULES:
            raise UnknownName("dispatch rule", dispatch, DISPATCH_RULES)
        self.slowdown, self.link, self.dispatch, self.bits_factor = slowdown, link, dispatch, bits_factor
        self.tolerance_s, self.real_time = tolerance_s, real_time

    def plan(self, instance: Instance, allocation: Allocation) -> CloudletPlan:
        """The plan that `play` would execute."""
        return make_plan(instance, allocation, self.slowdown, self.bits_factor)

    def play(self, instance: Instance, allocation: Allocation, breaks: Mapping[int, float] | None = None) -> Played:
        """Execute the allocation. Its tasks may overlap on the cores; some of them will then be late.

        `breaks` are devices whose link breaks, each after this share of its bytes.
        """
        plan = self.plan(instance, allocation)
        with ExitStack() as stack:
            links = stack.enter_context(open_links(self.link, plan))
            stack.enter_context(in_real_time(self.real_time))
            cores = self._start_cores(plan.num_cores if plan.jobs else 0, stack)
            zero_s, records = self._happen(plan, links, cores, dict(breaks or {}), stack)
        tasks = tuple(self._task(record, zero_s) for record in records)
        return Played(tasks, links.name, self.dispatch, plan.slowdown, plan.bits_factor, self.tolerance_s)

    def _start_cores(self, num_cores: int, stack: ExitStack) -> list[ChildProcess]:
        """Start the cores, and wait until each has measured its speed."""
        cores = [_closing(stack, ChildProcess("core.py", *self._at(CORE))) for _ in range(num_cores)]
        if not all(core.hear() for core in cores):
            raise MissingEngine("a core of the site ended before it was measured; look at the memory, and run it again")
        return cores

    def _at(self, priority: int) -> list[str]:
        return [str(priority)] if self.real_time else []

    def _happen(
        self,
        plan: CloudletPlan,
        links: DeviceLinks,
        cores: Sequence[ChildProcess],
        breaks: Mapping[int, float],
        stack: ExitStack,
    ) -> tuple[float, list[JobRecord]]:
        """Execute the plan from the first connection on; the start by the monotonic clock, and the records."""
        listener = stack.enter_context(links.listener(len(plan.jobs) + 8))
        tokens = [secrets.token_hex(TOKEN_BYTES // 2) for _ in plan.jobs]
        site = CloudletSite(listener, plan.jobs, tokens, self.dispatch)
        stack.callback(site.close)
        devices = [_closing(stack, links.device(*self._at(DEVICE))) for _ in plan.jobs]
        for number, (job, device) in enumerate(zip(plan.jobs, devices, strict=True)):
            share = breaks.get(job.device, 1.0)
            order = _order(job, listener.getsockname(), tokens[number], share, links.priority(number))
            device.tell(json.dumps(order))
        site.gather(devices, CONNECT_LIMIT_S)
        zero_s = time.monotonic() + LEAD_S
        for device in devices:
            device.tell(repr(zero_s))
        site.run(cores, zero_s, plan.limit_s)
        return zero_s, site.records

    def _task(self, record: JobRecord, zero_s: float) -> PlayedTask:
        def scaled(moment_s: float | None) -> float | None:
            return None if moment_s is None else (moment_s - zero_s) / self.slowdown

        job = record.job
        return PlayedTask(
            device=job.device,
            num_bytes=record.num_received,
            release_s=job.begin_s / self.slowdown,
            planned_upload_s=job.upload_s / self.slowdown,
            planned_start_s=job.start_s / self.slowdown,
            planned_end_s=(job.start_s + job.run_s) / self.slowdown,
            deadline_s=job.due_s / self.slowdown,
            upload_s=scaled(record.uploaded_s),
            start_s=scaled(record.started_s),
            end_s=scaled(record.ended_s),
            core=record.core,
            failure=record.failure,
        )


def _closing(stack: ExitStack, process: ChildProcess) -> ChildProcess:
    stack.callback(process.close)
    return process


def _order(job: CloudletJob, address: tuple[str, int], token: str, share: float, priority: int) -> UploadOrder:
    return {
        "address": address,
        "token": token,
        "num_bytes": job.num_bytes,
        "num_sent": min(job.num_bytes, max(0, int(job.num_bytes * share))),
        "begin_s": job.begin_s,
        "end_s": job.upload_s,
        "priority": priority,
    }
