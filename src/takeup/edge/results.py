"""Results: the measured execution of an allocation, and the simulation of tasks that arrive over time."""

from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.core.report import Reported
from takeup.core.stats import time_weighted_mean
from takeup.errors import BadInput

# Measured execution of an allocation: planned and measured times for every device that offloads -----------------------
#
# Times are in seconds of the instance, from its beginning, after division by the slowdown of the machine.


@dataclass(frozen=True, slots=True)
class PlayedTask:
    """One device that offloads. What did not happen is None; `failure` says why, and is empty if all went well."""

    device: int
    num_bytes: int
    release_s: float
    planned_upload_s: float
    planned_start_s: float
    planned_end_s: float
    deadline_s: float
    upload_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    core: int | None = None
    failure: str = ""

    @property
    def over_plan_s(self) -> float | None:
        """How much later than planned it was done; below zero if earlier."""
        return None if self.end_s is None else self.end_s - self.planned_end_s


@dataclass(frozen=True, slots=True)
class Played(Reported):
    """All tasks in the order of devices, and how they were played.

    A second of the instance took `slowdown` seconds of the machine, a bit `bits_factor` bits. A deadline counts as met
    up to `tolerance_s` later, by the clock of the machine: plans have no slack between the end and the deadline.
    """

    tasks: tuple[PlayedTask, ...]
    link: str
    dispatch: str
    slowdown: float
    bits_factor: float
    tolerance_s: float

    def met(self, task: PlayedTask) -> bool:
        """Whether the task was done by its deadline."""
        return task.end_s is not None and task.end_s <= task.deadline_s + self.tolerance_s / self.slowdown

    @property
    def num_met(self) -> int:
        """How many tasks met their deadline."""
        return sum(self.met(task) for task in self.tasks)

    @property
    def num_failed(self) -> int:
        """How many were never done, because a device or a core failed."""
        return sum(bool(task.failure) for task in self.tasks)

    @property
    def num_late(self) -> int:
        """How many were done, but too late."""
        return len(self.tasks) - self.num_met - self.num_failed

    def slack_used_s(self, share: float) -> float | None:
        """By how much this share of the tasks was over the plan at most, by the clock of the machine; None for none."""
        over_s = [task.over_plan_s * self.slowdown for task in self.tasks if task.over_plan_s is not None]
        return float(np.quantile(over_s, share)) if over_s else None


# Results of a simulation of arriving tasks: every task, and the utilisation of the site over time ---------------------


@dataclass(frozen=True, slots=True)
class SimulatedTask:
    """One task. Times of what did not happen are nan; `energy_j` is what its device spent in the end.

    `promised_s` is the start that was planned when it was accepted, `late` that it was not done by its deadline, at the
    site or on its device.
    """

    device: int
    arrival_s: float
    deadline_s: float
    decided_s: float
    accepted: bool
    num_subcarriers: int
    promised_s: float
    upload_s: float
    start_s: float
    end_s: float
    late: bool
    energy_j: float
    local_j: float


@dataclass(frozen=True, slots=True, eq=False)
class ResourceUsage:
    """How many subcarriers and cores were in use, each from its time on, until `until_s`."""

    times_s: Floats
    subcarriers: Ints
    cores: Ints
    until_s: float


@dataclass(frozen=True, slots=True)
class ServiceWindow:
    """A part of the time: of the tasks that arrived in it, and of what was in use. Shares of nothing are nan."""

    begin_s: float
    end_s: float
    num_arrived: int
    accept_share: float
    miss_share: float
    energy_per_task_j: float
    radio_share: float
    cpu_share: float


@dataclass(frozen=True, slots=True, eq=False)
class SimulationResult(Reported):
    """A run of the site: the tasks in the order of the instance, and what was in use.

    `num_plans` counts how often the policy was asked, `num_kept` how often its answer would have dropped a task that
    was accepted before: then the old plan was kept, and no newcomer accepted.
    """

    policy: str
    tasks: tuple[SimulatedTask, ...]
    busy: ResourceUsage
    num_subcarriers: int
    num_cores: int
    num_plans: int
    num_kept: int

    @property
    def whole(self) -> ServiceWindow:
        """All of the time as one window."""
        return self.over_time(1)[0]

    @property
    def saving_j(self) -> float:
        """What the tasks cost less than if each device had run its own."""
        return float(sum(task.local_j - task.energy_j for task in self.tasks))

    def over_time(self, num_windows: int) -> tuple[ServiceWindow, ...]:
        """The run in windows of equal length."""
        if num_windows < 1:
            raise BadInput(f"{num_windows} windows show nothing; give at least one")
        begin_s = float(self.busy.times_s[0])
        bounds_s = np.linspace(begin_s, self.busy.until_s, num_windows + 1).tolist()
        places = np.clip(np.searchsorted(bounds_s, [task.arrival_s for task in self.tasks], "right") - 1, 0, None)
        inside: list[list[SimulatedTask]] = [[] for _ in range(num_windows)]
        for place, task in zip(places.tolist(), self.tasks, strict=True):
            inside[min(place, num_windows - 1)].append(task)
        return tuple(self._window(bounds_s[place], bounds_s[place + 1], inside[place]) for place in range(num_windows))

    def _window(self, begin_s: float, end_s: float, tasks: list[SimulatedTask]) -> ServiceWindow:
        accepted = [task for task in tasks if task.accepted]
        return ServiceWindow(
            begin_s=begin_s,
            end_s=end_s,
            num_arrived=len(tasks),
            accept_share=_mean([task.accepted for task in tasks]),
            miss_share=_mean([task.late for task in accepted]),
            energy_per_task_j=_mean([task.energy_j for task in tasks]),
            radio_share=self._mean_in_use(self.busy.subcarriers, begin_s, end_s) / self.num_subcarriers,
            cpu_share=self._mean_in_use(self.busy.cores, begin_s, end_s) / self.num_cores,
        )

    def _mean_in_use(self, levels: Ints, begin_s: float, end_s: float) -> float:
        if end_s <= begin_s:
            return 0.0
        first = int(np.searchsorted(self.busy.times_s, begin_s, side="right")) - 1
        times_s = np.maximum(self.busy.times_s[first:], begin_s)
        return time_weighted_mean(times_s, levels[first:], end_s)


def _mean(values: list[float] | list[bool]) -> float:
    return float(np.mean(values)) if values else float("nan")
