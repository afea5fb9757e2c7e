"""GPipe: all forwards, then all backwards.

Huang et al., NeurIPS 2019. Simple, and every rank holds all micro-batches at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from takeup.training.model.pipeline import Profile
from takeup.training.model.plan import PipelinePlan
from takeup.training.model.schedule import Op, OpKind, Schedule
from takeup.training.policies.planned import make_plan


@dataclass(frozen=True, slots=True)
class GPipe:
    """Forwards of all stages of a rank from the first on, backwards from the last on."""

    name: str = "gpipe"

    def plan(self, profile: Profile) -> PipelinePlan:
        """A fixed order, independent of the times."""
        count = range(profile.num_microbatches)
        orders = [
            [Op(stage, OpKind.FORWARD, m) for stage in stages for m in count]
            + [Op(stage, OpKind.FULL_BACKWARD, m) for stage in reversed(stages) for m in count]
            for stages in profile.chunks
        ]
        schedule = Schedule.of_ops(orders, profile.placement, profile.num_microbatches)
        return make_plan(self.name, profile, schedule, ("all forwards come before the first backward",))
