"""From the profile that ranks share to the schedule they follow: a pure function, computed by every rank for itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.core.lazy import load
from takeup.training.contract import Planner
from takeup.training.model import Link, Plan, Profile, Schedule, Stage
from takeup.training.timing import timeline_of

__all__ = ["Change", "Control", "profile_of"]

Ints = npt.NDArray[np.int64]
NANO = 1e-9
TRIGGER = "takeup.training.policies.trigger"


@dataclass(frozen=True, slots=True)
class Change:
    """After which iteration the ranks switched to which version, why, and what it should take."""

    iteration: int
    version: int
    reason: str
    expected_s: float


class Control:
    """The schedule in use, its version, and whether a new one is worth a change.

    It knows no policy: planner and rule are given, and what decides is looked up where policies live.
    """

    def __init__(self, start: Schedule, planner: Planner, blank: Profile, rule: Any) -> None:
        self.schedule = start
        self.profile = blank
        self.changes: list[Change] = []
        self._planner = planner
        self._rule = rule
        self._decide = load(f"{TRIGGER}:decide")
        self._now = load(f"{TRIGGER}:Situation")(0, 0.0)  # nothing is expected of a schedule made without measuring

    @property
    def version(self) -> int:
        """How often the schedule was changed."""
        return int(self._now.version)

    def adopt(self, schedule: Schedule) -> None:
        """Follow a schedule that somebody else chose."""
        self._now = replace(self._now, version=self.version + 1, expected_s=0.0, num_better=0)
        self.schedule = schedule

    def consider(self, iteration: int, shared: Ints) -> bool:
        """Whether the schedule is another one now, given what all ranks measured."""
        self.profile = profile_of(shared, self.profile)
        candidate = self._planner.plan(self.profile)
        current_s = timeline_of(self.schedule, self.profile).iteration_s
        decision = self._decide(self._rule, self._now, current_s, candidate.iteration_s)
        self._now = decision.after
        if decision.switch:
            self._switch(iteration, candidate, decision.reason)
        return bool(decision.switch)

    def _switch(self, iteration: int, plan: Plan, reason: str) -> None:
        self.schedule = plan.schedule
        self.changes.append(Change(iteration, self.version, reason, plan.iteration_s))


def profile_of(shared: Ints, blank: Profile) -> Profile:
    """The profile with the times that ranks agreed on, in nanoseconds; memory and all else stay."""
    num_stages = blank.num_stages
    times_s = shared[: 3 * num_stages].reshape(num_stages, 3) * NANO
    delays_s = shared[3 * num_stages :].reshape(num_stages - 1, 2) * NANO
    stages = [
        Stage(forward_s, backward_s, weight_s, stage.activation_bytes, stage.memory_bytes)
        for stage, (forward_s, backward_s, weight_s) in zip(blank.stages, times_s.tolist(), strict=True)
    ]
    links = [Link(latency_s, service_s) for latency_s, service_s in delays_s.tolist()]
    return replace(blank, stages=tuple(stages), links=tuple(links))
