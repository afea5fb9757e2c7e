"""The interface of pipelines: a planner takes the profile of a pipeline and returns a plan. Open this first.

A planner is pure: the same profile gives the same plan, bit for bit, so every rank may compute it independently. Plans
need not be trusted: a `Schedule` is validated on construction, and `simulate` or an engine measures its actual time.
"""

from typing import Protocol

from takeup.training.pipelines.profile import Profile
from takeup.training.pipelines.schedule import PipelinePlan


class Planner(Protocol):
    """Decides which operations every rank computes, and in which order."""

    @property
    def name(self) -> str:
        """Name used in reports."""

    def plan(self, profile: Profile) -> PipelinePlan:
        """The schedule for this pipeline, with its predicted iteration time and the reason."""
