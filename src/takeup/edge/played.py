"""Measured execution of an allocation: planned and measured times for every device that offloads.

Times are in seconds of the instance, from its beginning, after division by the slowdown of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
class Played:
    """All tasks in the order of devices, and how they were played.

    A second of the instance took `slowdown` seconds of the machine, a bit `bits_factor` bits. A deadline counts as met
    up to `tolerance_s` later, by the clock of the machine: plans have no slack between the end and the deadline.
    """

    tasks: tuple[PlayedTask, ...]
    link: str
    turns: str
    slowdown: float
    bits_factor: float
    tolerance_s: float
    hashes_per_s: tuple[float, ...] = ()

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
