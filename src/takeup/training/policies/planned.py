"""From a schedule to a plan: simulate it on its profile, and compare the result with the lower bound."""

from __future__ import annotations

from takeup.training.model.pipeline import Profile
from takeup.training.model.plan import PipelinePlan
from takeup.training.model.schedule import Schedule
from takeup.training.timing.bounds import least_iteration_s
from takeup.training.timing.runs import timeline_of


def make_plan(
    planner: str,
    profile: Profile,
    schedule: Schedule,
    reasons: tuple[str, ...] = (),
    num_evaluations: int = 1,
    bound_s: float | None = None,
) -> PipelinePlan:
    """The plan for this schedule; rejects a profile whose memory cannot hold a single micro-batch.

    The bound is computed if it is not given.
    """
    profile.live_limits()
    timeline = timeline_of(schedule, profile)
    return PipelinePlan(
        planner,
        profile,
        schedule,
        timeline.iteration_s,
        least_iteration_s(profile) if bound_s is None else bound_s,
        timeline.peak_live,
        reasons,
        num_evaluations,
    )
