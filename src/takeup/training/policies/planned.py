"""From a schedule to a plan: run it on the profile it is for, and set the result beside the bound."""

from __future__ import annotations

from takeup.training.model import Plan, Profile, Schedule
from takeup.training.timing import least_iteration_s, timeline_of

__all__ = ["planned"]


def planned(
    planner: str,
    profile: Profile,
    schedule: Schedule,
    reasons: tuple[str, ...] = (),
    num_evaluations: int = 1,
    bound_s: float | None = None,
) -> Plan:
    """The plan that consists of this schedule; refuses a profile whose memory holds no micro-batch at all.

    The bound is computed if it is not known.
    """
    profile.live_limits()
    timeline = timeline_of(schedule, profile)
    return Plan(
        planner,
        profile,
        schedule,
        timeline.iteration_s,
        least_iteration_s(profile) if bound_s is None else bound_s,
        timeline.peak_live,
        reasons,
        num_evaluations,
    )
