"""The site at work, from one event to the next: tasks arrive, upload, wait, run, and are done or late.

A task is decided when it arrives (or a little later, with patience): it is accepted for good, and begins to upload over
its subcarriers at once, or its device runs it. When an upload ends its subcarriers are free. Accepted tasks keep their
subcarriers and powers; when others join, the plan may move their slots on the CPU, but never past their deadlines. A
core that is free takes the next task in the order of planned starts as soon as it is uploaded. If that one is not, the
core waits for it, until the planned start of another task that is ready. With certain cycles and channels nothing is
ever later than planned. A task that is not done by its deadline is given up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Literal

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.core.clock import Timer, VirtualClock
from takeup.core.seeds import Streams
from takeup.edge.contract import Policy
from takeup.edge.model import Allocation, Answer, Instance
from takeup.edge.results import ResourceUsage, SimulatedTask, SimulationResult
from takeup.edge.simulate.policy_view import (
    CERTAIN,
    LATER,
    Commitment,
    PolicyView,
    Uncertainty,
    grain_of,
    policy_view,
)
from takeup.edge.validate import TOLERANCE, violation_of_answer
from takeup.errors import BadInput

# Records kept while the simulated site runs ---------------------------------------------------------------------------


class SimulationRecord:
    """One array for each field of the tasks, and how much was in use from when on."""

    def __init__(self, instance: Instance) -> None:
        def unknown() -> Floats:
            return np.full(instance.num_devices, np.nan)

        self.decided_s, self.promised_s = unknown(), unknown()
        self.upload_s, self.start_s, self.end_s = unknown(), unknown(), unknown()
        self.accepted = np.zeros(instance.num_devices, np.bool_)
        self.late = np.zeros(instance.num_devices, np.bool_)
        self.energy_j = np.zeros(instance.num_devices)
        self.num_subcarriers = np.zeros(instance.num_devices, np.int64)
        self.num_plans = self.num_kept = 0
        self._busy: list[tuple[float, int, int]] = [(float(instance.releases_s.min()), 0, 0)]

    def in_use(self, now_s: float, num_subcarriers: int, num_cores: int) -> None:
        """Note how many subcarriers and cores are in use from now on."""
        if self._busy[-1][0] == now_s:
            self._busy.pop()
        self._busy.append((now_s, num_subcarriers, num_cores))

    def result(self, policy: str, instance: Instance) -> SimulationResult:
        """The whole run."""
        columns = {field.name: getattr(self, field.name, None) for field in fields(SimulatedTask)}
        columns |= {
            "device": np.arange(instance.num_devices),
            "arrival_s": instance.releases_s,
            "deadline_s": instance.deadlines_s,
            "local_j": instance.local_j,
        }
        rows = zip(*(column.tolist() for column in columns.values() if column is not None), strict=True)
        times_s, subcarriers, cores = (np.array(column) for column in zip(*self._busy, strict=True))
        until_s = max(float(np.nanmax(self.end_s)), float(times_s[-1]))
        return SimulationResult(
            policy=policy,
            tasks=tuple(SimulatedTask(*row) for row in rows),
            busy=ResourceUsage(times_s, subcarriers, cores, until_s),
            num_subcarriers=instance.num_subcarriers,
            num_cores=instance.num_cores,
            num_plans=self.num_plans,
            num_kept=self.num_kept,
        )


LATE_GRAINS = 4  # how much later than its deadline a task still counts as done in time


def simulate(
    policy: Policy,
    instance: Instance,
    *,
    uncertainty: Uncertainty = CERTAIN,
    patience_s: float = 0.0,
    seed: int = 0,
) -> SimulationResult:
    """Play the tasks of the instance, each arriving at its release. Cycles and gains are means; the truth is drawn.

    A task that is not accepted asks again at every event, until `patience_s` after its arrival; then its device runs
    it, at a clock for what is left of the time.
    """
    if policy.ignores_cpu:
        raise BadInput(f"policy {policy.name!r} ignores the CPU, so its plans cannot be kept; choose another")
    if not (math.isfinite(patience_s) and patience_s >= 0):
        raise BadInput(f"patience_s is {patience_s:g}; give a finite number of zero or more")
    if instance.num_devices == 0:
        raise BadInput("the instance has no tasks, so there is nothing to simulate; give at least one")
    site = _SimulatedSite(policy, instance, uncertainty, patience_s, Streams(seed).child("edge online"))
    site.clock.run()
    return site.record.result(policy.name, instance)


@dataclass(slots=True)
class _AcceptedTask:
    """A task that was accepted and is not done. Its `end` is that of its upload, later that of its run."""

    device: int
    group: Ints
    power_w: float
    start_s: float  # as planned now
    ready_s: float  # when its upload ended, or is planned to end
    begun_s: float  # when it was accepted, later when it began to run
    stage: Literal["uploads", "waits", "runs"] = "uploads"
    end: Timer | None = None
    due: Timer | None = None


class _SimulatedSite:
    """The state of the site, and what happens at every event."""

    def __init__(
        self, policy: Policy, instance: Instance, uncertainty: Uncertainty, patience_s: float, streams: Streams
    ) -> None:
        self.clock = VirtualClock()
        self.record = SimulationRecord(instance)
        self._policy, self._uncertainty, self._patience_s = policy, uncertainty, patience_s
        self._mean, self._planned = instance, uncertainty.planned(instance)
        self._truth = uncertainty.truth(instance, streams)
        self._mean_run_s, self._planned_run_s = instance.run_s, self._planned.run_s
        self._grain_s = grain_of(instance)
        self._late_s = LATE_GRAINS * self._grain_s
        self._is_free = np.ones(instance.num_subcarriers, np.bool_)
        self._num_idle = instance.num_cores
        self._pending: list[int] = []
        self._jobs: list[_AcceptedTask] = []
        for time_s in np.unique(instance.releases_s).tolist():
            self._at(time_s, self._arrive, np.flatnonzero(instance.releases_s == time_s).tolist())

    def _at(self, time_s: float, action: Callable[..., None], *subject: object) -> Timer:
        return self.clock.at(max(time_s, self.clock.now), partial(action, *subject))

    def _note(self) -> None:
        num_used = len(self._is_free) - int(self._is_free.sum())
        self.record.in_use(self.clock.now, num_used, self._mean.num_cores - self._num_idle)

    # Decisions ----------------------------------------------------------------------------------------------------

    def _arrive(self, devices: list[int]) -> None:
        self._pending += devices
        self._decide()
        if self._patience_s == 0:
            self._run_locally(devices)
        elif waiting := [device for device in devices if device in self._pending]:
            self._at(self.clock.now + self._patience_s, self._run_locally, waiting)

    def _decide(self) -> None:
        """Run the policy, and accept the devices it accepts, unless it would break a promise."""
        free = np.flatnonzero(self._is_free)
        self._pending = [device for device in self._pending if self._planned.deadlines_s[device] > self.clock.now]
        if not self._pending or len(free) == 0:
            return
        view = policy_view(
            self._planned, self.clock.now, np.array(self._pending), self._promises(), free, self._grain_s
        )
        answer = self._policy.allocate(view.instance)
        self._check(view, answer)
        self.record.num_plans += 1
        if not answer.allocation.offloads[len(view.newcomers) :].all():
            self.record.num_kept += 1
            return
        self._move_slots(view, answer.allocation)
        for place in range(len(view.newcomers)):
            if answer.allocation.offloads[place]:
                self._accept(view, place, answer.allocation)
        self._note()

    def _check(self, view: PolicyView, answer: Answer) -> None:
        found = violation_of_answer(view.instance, answer)
        if found is not None:
            problem = f"{found.constraint}: {found.detail}"
            raise BadInput(
                f"policy {self._policy.name!r} broke a constraint at {self.clock.now:g} s, {problem}; mend it"
            )

    def _promises(self) -> list[Commitment]:
        return [self._promise(job) for job in self._jobs]

    def _promise(self, job: _AcceptedTask) -> Commitment:
        due_s, run_s = float(self._mean.deadlines_s[job.device]), float(self._planned_run_s[job.device])
        if job.stage != "runs":
            return Commitment(job.device, job.ready_s, run_s, due_s)
        done_s = self.clock.now - job.begun_s
        if done_s >= run_s:
            mean_s = float(self._mean_run_s[job.device])
            run_s = mean_s * self._uncertainty.cycles_factor(done_s / mean_s)
        return Commitment(job.device, self.clock.now, max(run_s - done_s, self._grain_s), due_s, is_running=True)

    def _move_slots(self, view: PolicyView, allocation: Allocation) -> None:
        starts_s = allocation.start_s[len(view.newcomers) :].tolist()
        planned = {each.device: start_s for each, start_s in zip(view.promises, starts_s, strict=True)}
        for job in self._jobs:
            if job.device in planned and job.stage != "runs":
                job.start_s = self.clock.now + planned[job.device] - LATER * self._grain_s
                self._at(job.start_s, self._dispatch)

    def _accept(self, view: PolicyView, place: int, allocation: Allocation) -> None:
        device, now_s = int(view.newcomers[place]), self.clock.now
        group = view.group(place, allocation.owners)
        if group is None:
            return
        powers_w = allocation.powers_w[allocation.owners == place]
        start_s = now_s + float(allocation.start_s[place])
        job = _AcceptedTask(
            device, group, float(powers_w.sum()), start_s, now_s + float(allocation.upload_s[place]), now_s
        )
        due_s = float(self._mean.deadlines_s[device]) + self._late_s
        rate_bps = _rate_bps(self._truth, device, group, powers_w)
        if rate_bps * (due_s - now_s) > self._truth.bits[device]:
            job.end = self._at(now_s + float(self._truth.bits[device]) / rate_bps, self._uploaded, job)
        job.due = self._at(due_s, self._give_up, job)
        self._pending.remove(device)
        self._jobs.append(job)
        self._is_free[group] = False
        record = self.record
        record.accepted[device], record.decided_s[device], record.promised_s[device] = True, now_s, start_s
        record.num_subcarriers[device] = len(group)
        self._at(start_s, self._dispatch)

    def _run_locally(self, devices: list[int]) -> None:
        """Those of the devices that were not accepted run their tasks, at the slowest clock that should do."""
        planned, now_s = self._planned, self.clock.now
        self._pending = [device for device in self._pending if device not in devices]
        for device in devices:
            if not math.isnan(self.record.decided_s[device]):
                continue
            left_s = float(planned.deadlines_s[device]) - now_s
            clock_hz = planned.local_hz
            if left_s > 0:
                clock_hz = min(float(planned.cycles[device]) / left_s, planned.local_hz)
            cycles = float(self._truth.cycles[device])
            late = cycles / clock_hz > left_s * (1 + TOLERANCE)
            penalty_j = planned.miss_penalty_j if late else 0.0
            self.record.decided_s[device], self.record.late[device] = now_s, late
            self.record.end_s[device] = now_s + cycles / clock_hz
            self.record.energy_j[device] = planned.chip_constant * cycles * clock_hz**2 + penalty_j

    # Events of accepted tasks -------------------------------------------------------------------------------------

    def _uploaded(self, job: _AcceptedTask) -> None:
        self._end_upload(job)
        self.record.upload_s[job.device] = job.ready_s = self.clock.now
        job.stage = "waits"
        self._dispatch()
        self._decide()

    def _end_upload(self, job: _AcceptedTask) -> None:
        radio = self._mean.radio
        self._is_free[job.group] = True
        self.record.energy_j[job.device] = (radio.circuit_power_w + job.power_w) * (self.clock.now - job.begun_s)
        self._note()

    def _dispatch(self) -> None:
        """Start what can be started, in the order of planned starts; see above."""
        is_head_missing = False
        waiting = [job for job in self._jobs if job.stage != "runs"]
        for job in sorted(waiting, key=lambda job: (job.start_s, job.device)):
            if self._num_idle == 0:
                break
            if job.stage == "waits" and (not is_head_missing or self.clock.now >= job.start_s):
                self._start(job)
            else:
                is_head_missing = True
        self._note()

    def _start(self, job: _AcceptedTask) -> None:
        job.stage, job.begun_s = "runs", self.clock.now
        self._num_idle -= 1
        self.record.start_s[job.device] = self.clock.now
        job.end = self._at(
            self.clock.now + float(self._truth.cycles[job.device]) / self._truth.edge_hz, self._finish, job
        )

    def _finish(self, job: _AcceptedTask) -> None:
        assert job.due is not None, "every job has a deadline"
        job.due.cancel()
        self._leave(job)

    def _give_up(self, job: _AcceptedTask) -> None:
        """The deadline has passed."""
        if job.end is not None:
            job.end.cancel()
        self.record.late[job.device] = True
        if job.stage == "uploads":
            self._end_upload(job)
        self._leave(job)

    def _leave(self, job: _AcceptedTask) -> None:
        self._jobs.remove(job)
        self._num_idle += job.stage == "runs"
        self.record.end_s[job.device] = self.clock.now
        self._dispatch()
        self._decide()


def _rate_bps(truth: Instance, device: int, group: Ints, powers_w: Floats) -> float:
    """What these powers carry over the channel as it is; modulation follows the worst subcarrier in use."""
    radio = truth.radio
    ratios = powers_w * truth.gains[device, group] / (radio.noise_w_per_hz * radio.bandwidth_hz)
    if not radio.modulations:
        return float(radio.bandwidth_hz * np.log2(1 + ratios).sum())
    used = ratios[powers_w > 0]
    fits = [each.bits_per_hz_s for each in radio.modulations if each.least_ratio <= used.min() * (1 + TOLERANCE)]
    return radio.bandwidth_hz * len(used) * max(fits, default=0.0)
