"""From the shared profile to the schedule in use: a deterministic function that every rank computes by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple
from zlib import crc32

from takeup.core.arrays import Ints
from takeup.training.contract import Planner
from takeup.training.model.pipeline import Link, Profile, Stage
from takeup.training.model.plan import PipelinePlan
from takeup.training.model.schedule import Schedule
from takeup.training.policies.trigger import SwitchRule, SwitchState, decide_switch, slow_links
from takeup.training.timing.runs import timeline_of

NANO = 1e-9
LOG = logging.getLogger("takeup.training")


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """A schedule switch: after which iteration, to which version, why, and the predicted iteration time."""

    iteration: int
    version: int
    reason: str
    expected_s: float


class PlanProposal(NamedTuple):
    """What a rank proposes: the profile, the links that need delegates, and a new plan or None."""

    profile: Profile
    slow: frozenset[int]
    after: SwitchState
    plan: PipelinePlan | None = None
    reason: str = ""

    @property
    def number(self) -> int:
        """Checksum of the proposal, above zero, to compare it across ranks."""
        orders = () if self.plan is None else [order.tobytes() for order in self.plan.schedule.codes]
        return 1 + crc32(b"".join(orders), crc32(bytes(sorted(self.slow)), self.after.version))


class ScheduleControl:
    """The schedule in use, its version, and whether a new one is worth a change.

    It contains no policy: planner and rule are arguments, and the decision functions are loaded from the policies.
    """

    def __init__(self, start: Schedule, planner: Planner, blank: Profile, rule: SwitchRule) -> None:
        self.schedule = start
        self.profile = blank
        self.slow: frozenset[int] = frozenset()
        self.changes: list[ScheduleChange] = []
        self._planner = planner
        self._rule = rule
        self._now = SwitchState(0, 0.0)  # no expected time for a schedule planned without measurements

    @property
    def version(self) -> int:
        """Number of schedule changes so far."""
        return int(self._now.version)

    def adopt(self, schedule: Schedule) -> None:
        """Switch to a schedule chosen by the caller."""
        self._now = replace(self._now, version=self.version + 1, expected_s=0.0, num_better=0)
        self.schedule = schedule

    def consider(self, iteration: int, shared: Ints, same: Callable[[int], bool] = bool) -> bool:
        """Replan from the measurements of all ranks; True if the schedule changed.

        `same` tells whether all ranks pass the same number; if their proposals differ, all keep the current schedule.
        """
        proposal = self._propose(shared)
        if not same(proposal.number):
            LOG.warning("after iteration %d ranks planned differently; all keep the schedule they have", iteration)
            return False
        self.profile, self.slow, self._now = proposal.profile, proposal.slow, proposal.after
        if proposal.plan is not None:
            self.schedule = proposal.plan.schedule
            self.changes.append(ScheduleChange(iteration, self.version, proposal.reason, proposal.plan.iteration_s))
        return proposal.plan is not None

    def _propose(self, shared: Ints) -> PlanProposal:
        """Proposal of this rank; no change if planning fails."""
        try:
            profile = profile_of(shared, self.profile)
            candidate = self._planner.plan(profile)
            current_s = timeline_of(self.schedule, profile).iteration_s
            decision = decide_switch(self._rule, self._now, current_s, candidate.iteration_s)
            slow = slow_links(self._rule, profile, self.slow)
        except Exception:
            LOG.exception("planning failed; the schedule stays as it is")
            return PlanProposal(self.profile, self.slow, self._now)
        plan = candidate if decision.switch else None
        return PlanProposal(profile, slow, decision.after, plan, decision.reason)


def profile_of(shared: Ints, blank: Profile) -> Profile:
    """Profile with the agreed times (`shared` is in nanoseconds); memory and everything else are taken from `blank`."""
    num_stages = blank.num_stages
    times_s = shared[: 3 * num_stages].reshape(num_stages, 3) * NANO
    delays_s = shared[3 * num_stages :].reshape(num_stages - 1, 2) * NANO
    stages = [
        Stage(forward_s, backward_s, weight_s, stage.activation_bytes, stage.memory_bytes)
        for stage, (forward_s, backward_s, weight_s) in zip(blank.stages, times_s.tolist(), strict=True)
    ]
    links = [Link(latency_s, service_s) for latency_s, service_s in delays_s.tolist()]
    return replace(blank, stages=tuple(stages), links=tuple(links))
