"""The engine: starts devices, links, cores and the site, executes one allocation, and stops them all."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from takeup.edge.engines.cloudlet.device import UploadOrder
from takeup.edge.engines.cloudlet.links import LINKS, DeviceLinks, open_links
from takeup.edge.engines.cloudlet.plan import CloudletJob, CloudletPlan, make_plan
from takeup.edge.engines.cloudlet.priorities import CORE, DEVICE, in_real_time
from takeup.edge.engines.cloudlet.processes import ChildProcess
from takeup.edge.engines.cloudlet.site import TOKEN_BYTES, CloudletSite, JobRecord
from takeup.edge.engines.cloudlet.turns import DISPATCH_RULES, DispatchRule
from takeup.edge.model import Allocation, Instance
from takeup.edge.played import Played, PlayedTask
from takeup.errors import BadInput, MissingEngine, UnknownName

WORK = ("cpu-time", "hashes")
CONNECT_LIMIT_S = 30.0
LEAD_S = 0.05  # between the start command and the start, so that every process has received it


class CloudletEngine:
    """Real uploads and real computing on this machine.

    `slowdown` makes everything longer by that factor, `bits_factor` every upload larger (None: as large as shows).
    `turns` is the rule by which a free core picks its job (see `turns`), `work` what a task is (see `core`): its CPU
    time, or a number of hashes, which shows how steady this machine is. `real_time` requests real-time priority. Plans
    have no slack between the end of a task and its deadline, so a deadline met up to `tolerance_s` late counts as met.
    """

    def __init__(
        self,
        slowdown: float = 1.0,
        link: str = "auto",
        turns: DispatchRule = "planned",
        bits_factor: float | None = None,
        tolerance_s: float = 0.002,
        work: str = "cpu-time",
        real_time: bool = False,
    ) -> None:
        numbers = {"slowdown": slowdown, "bits_factor": bits_factor, "tolerance_s": tolerance_s}
        for name, number in numbers.items():
            if number is not None and not 0 < number < math.inf:
                raise BadInput(f"{name} is {number}; give a finite number above 0")
        if link not in LINKS:
            raise UnknownName("link", link, LINKS)
        if turns not in DISPATCH_RULES:
            raise UnknownName("rule for turns", turns, DISPATCH_RULES)
        if work not in WORK:
            raise UnknownName("kind of work", work, WORK)
        self.slowdown, self.link, self.turns, self.bits_factor = slowdown, link, turns, bits_factor
        self.tolerance_s, self.work, self.real_time = tolerance_s, work, real_time

    def plan(self, instance: Instance, allocation: Allocation) -> CloudletPlan:
        """The plan that `play` would execute."""
        return make_plan(instance, allocation, self.slowdown, self.bits_factor)

    def dry_run(self, instance: Instance, allocation: Allocation, show: Callable[[str], None] = print) -> CloudletPlan:
        """Show the plan; no socket is opened and no process started."""
        plan = self.plan(instance, allocation)
        show(str(plan))
        return plan

    def play(self, instance: Instance, allocation: Allocation, breaks: Mapping[int, float] | None = None) -> Played:
        """Execute the allocation. Its tasks may overlap on the cores; some of them will then be late.

        `breaks` are devices whose link breaks, each after this share of its bytes.
        """
        plan = self.plan(instance, allocation)
        with ExitStack() as stack:
            links = stack.enter_context(open_links(self.link, plan))
            stack.enter_context(in_real_time(self.real_time))
            cores, speeds = self._start_cores(plan.num_cores if plan.jobs else 0, stack)
            zero_s, records = self._happen(plan, links, cores, dict(breaks or {}), stack)
        tasks = tuple(self._task(record, zero_s) for record in records)
        return Played(tasks, links.name, self.turns, plan.slowdown, plan.bits_factor, self.tolerance_s, speeds)

    def _start_cores(self, num_cores: int, stack: ExitStack) -> tuple[list[ChildProcess], tuple[float, ...]]:
        """Start the cores, which measure their speed concurrently; the processes and their speeds."""
        cores = [_closing(stack, ChildProcess("core.py", self.work, *self._at(CORE))) for _ in range(num_cores)]
        words = [core.hear() for core in cores]
        if not all(words):
            raise MissingEngine("a core of the site ended before it was measured; look at the memory, and run it again")
        return cores, tuple(float(word[0]) for word in words)

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
        site = CloudletSite(listener, plan.jobs, tokens, self.turns)
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
