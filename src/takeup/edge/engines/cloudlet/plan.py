"""The plan in seconds and bytes of this machine, and the queue from which free cores take jobs."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

import numpy as np

from takeup.edge.model import Allocation, Instance
from takeup.errors import BadInput

# What is sent and computed when, by the clock of this machine: an allocation, scaled so that a machine can play it

MOST_DEVICES = 128  # each is a process with a connection
MOST_BPS = 400e6  # what one Python process takes in without falling behind
MOST_BYTES = 256 * 2**20
MOST_S = 600.0
ENOUGH_BYTES = 10_000  # for the shape of an upload to show: several packets
LARGEST_FACTOR = 10_000


@dataclass(frozen=True, slots=True)
class CloudletJob:
    """A device that offloads: its bytes, and its times in seconds of this machine from the beginning."""

    device: int
    num_bytes: int
    begin_s: float
    upload_s: float
    start_s: float
    run_s: float
    due_s: float

    @property
    def rate_bps(self) -> float:
        """At which it uploads."""
        return 8 * self.num_bytes / (self.upload_s - self.begin_s)


@dataclass(frozen=True, slots=True)
class CloudletPlan:
    """All jobs, in the order of devices, and how the instance was scaled."""

    jobs: tuple[CloudletJob, ...]
    num_cores: int
    slowdown: float
    bits_factor: float

    @property
    def expected_s(self) -> float:
        """When the last job should be done."""
        return max((job.start_s + job.run_s for job in self.jobs), default=0.0)

    @property
    def limit_s(self) -> float:
        """When to stop waiting: all jobs after the last deadline on one core, twice over."""
        return 30.0 + max((job.due_s for job in self.jobs), default=0.0) + 2 * sum(job.run_s for job in self.jobs)

    def __str__(self) -> str:
        num_bytes = sum(job.num_bytes for job in self.jobs)
        return (
            f"{len(self.jobs)} devices upload {num_bytes:,} bytes to {self.num_cores} cores in {self.expected_s:.2f} s "
            f"(a second takes {self.slowdown:g} s, a bit {self.bits_factor:g} bits)"
        )


def make_plan(
    instance: Instance, allocation: Allocation, slowdown: float, bits_factor: float | None = None
) -> CloudletPlan:
    """The jobs of an allocation. Without `bits_factor`, uploads get large enough for their shape to show."""
    devices = _offloaders(instance, allocation)
    if bits_factor is None:
        bits_factor = _fitting_factor(instance, allocation, devices, slowdown)
    jobs = tuple(_job(instance, allocation, device, slowdown, bits_factor) for device in devices)
    plan = CloudletPlan(jobs, instance.num_cores, slowdown, bits_factor)
    _check(plan)
    return plan


def _offloaders(instance: Instance, allocation: Allocation) -> list[int]:
    if len(allocation.offloads) != instance.num_devices:
        found = f"the allocation is for {len(allocation.offloads)} devices, the instance has {instance.num_devices}"
        raise BadInput(f"{found}; give an allocation of this instance")
    devices = [int(device) for device in np.flatnonzero(allocation.offloads)]
    for device in devices:
        release_s, upload_s = float(instance.releases_s[device]), float(allocation.upload_s[device])
        if not (release_s < upload_s < math.inf and 0 <= allocation.start_s[device] < math.inf):
            raise BadInput(
                f"device {device} would upload from {release_s:g} s until {upload_s:g} s and run at "
                f"{allocation.start_s[device]:g} s; give an allocation that passes first_violation"
            )
    return devices


def _fitting_factor(instance: Instance, allocation: Allocation, devices: list[int], slowdown: float) -> float:
    """The smallest power of ten with enough bytes in each upload, if the machine can take them in."""
    if not devices:
        return 1.0
    bits, times_s = instance.bits[devices], (allocation.upload_s - instance.releases_s)[devices]
    wanted = 8 * ENOUGH_BYTES / float(bits.min())
    possible = min(MOST_BPS / float((bits / (times_s * slowdown)).sum()), 4 * MOST_BYTES / float(bits.sum()))
    exponent = min(math.ceil(math.log10(wanted)), math.floor(math.log10(possible)), math.log10(LARGEST_FACTOR))
    return float(10 ** max(0, exponent))


def _job(instance: Instance, allocation: Allocation, device: int, slowdown: float, bits_factor: float) -> CloudletJob:
    return CloudletJob(
        device,
        max(1, math.ceil(float(instance.bits[device]) * bits_factor / 8)),
        float(instance.releases_s[device]) * slowdown,
        float(allocation.upload_s[device]) * slowdown,
        float(allocation.start_s[device]) * slowdown,
        float(instance.run_s[device]) * slowdown,
        float(instance.deadlines_s[device]) * slowdown,
    )


def _check(plan: CloudletPlan) -> None:
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    rate_mbps = sum(job.rate_bps for job in plan.jobs) / 1e6
    num_bytes = sum(job.num_bytes for job in plan.jobs)
    for what, found, most, advice in (
        ("devices that offload", len(plan.jobs), MOST_DEVICES, "play a smaller instance"),
        ("cores on this machine", plan.num_cores, num_cores, "give the site fewer"),
        ("Mbit/s of all uploads", rate_mbps, MOST_BPS / 1e6, "raise the slowdown"),
        ("bytes of all uploads", num_bytes, MOST_BYTES, "lower the bits factor"),
        ("seconds it might take", plan.limit_s, MOST_S, "lower the slowdown"),
    ):
        if found > most:
            raise BadInput(f"found {found:,.0f} {what}, this engine can have {most:,.0f}; {advice}")


class UploadOrder(TypedDict):
    """The order to a device. With a `priority` the kernel keeps the rate; the link breaks after `num_sent` bytes."""

    address: tuple[str, int]
    token: str
    num_bytes: int
    num_sent: int
    begin_s: float
    end_s: float
    priority: int


# Dispatch rules of a core. A task runs without preemption, and only after its upload is complete ----------------------
#
# planned     each at its planned start; the earliest start first, where several are due
# early       in the order of planned starts, as soon as it is complete and all before it have begun; at its
#             planned start it does not wait for those any longer
# edf         earliest deadline first among the complete tasks, at once

DispatchRule = Literal["planned", "early", "edf"]
DISPATCH_RULES: tuple[str, ...] = get_args(DispatchRule)


class DispatchQueue:
    """Jobs that have not been given to a core, from the first in line to the last, and which of them are complete."""

    def __init__(self, jobs: Iterable[CloudletJob], rule: DispatchRule) -> None:
        self._rule = rule
        self._waiting = sorted(jobs, key=self._place)
        self._complete: set[int] = set()

    def _place(self, job: CloudletJob) -> tuple[float, float, int]:
        return (job.due_s if self._rule == "edf" else job.start_s, job.due_s, job.device)

    def complete(self, job: CloudletJob) -> None:
        """Mark the upload of a job as complete."""
        self._complete.add(job.device)

    def drop(self, job: CloudletJob) -> None:
        """Remove a job that will never run."""
        self._waiting = [other for other in self._waiting if other is not job]

    def put_back(self, job: CloudletJob) -> None:
        """Return a job that was taken but could not run."""
        self._waiting = sorted([*self._waiting, job], key=self._place)

    def not_before_s(self, job: CloudletJob) -> float:
        """When a job may begin at the earliest, once it is complete."""
        return job.start_s if self._rule == "planned" else 0.0

    def take_ahead(self) -> CloudletJob | None:
        """Take the job that is next whatever is uploaded until then; None if that is undecided."""
        is_sure = bool(self._waiting) and self._waiting[0].device in self._complete
        return self._waiting.pop(0) if is_sure else None

    def take(self, now_s: float) -> CloudletJob | None:
        """Take the job that a free core begins now, if there is one."""
        complete = [job for job in self._waiting if job.device in self._complete]
        job = next((job for job in complete if self._rule == "edf" or job.start_s <= now_s), None)
        if job is not None:
            self.drop(job)
        return job

    def wake_s(self) -> float | None:
        """When the next job may begin without further uploads; None if an upload must complete first."""
        return min((job.start_s for job in self._waiting if job.device in self._complete), default=None)
