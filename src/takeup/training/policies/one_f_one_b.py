"""1F1B: a few forwards to warm up, then one backward for each forward.

Narayanan et al., SOSP 2019 (PipeDream-Flush). Stage i of S warms up with S - i forwards, just enough to keep all stages
busy when links cost nothing, and holds as many micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass

from takeup.errors import BadInput
from takeup.training.model.pipeline import Profile
from takeup.training.model.plan import PipelinePlan
from takeup.training.model.schedule import Op, OpKind, Schedule
from takeup.training.policies.planned import make_plan


@dataclass(frozen=True, slots=True)
class OneFOneB:
    """The schedule that most frameworks use."""

    name: str = "one_f_one_b"

    def plan(self, profile: Profile) -> PipelinePlan:
        """A fixed order, independent of the times."""
        if not profile.one_stage_per_rank:
            raise BadInput(f"{self.name!r} needs one stage on every rank; use 'interleaved_1f1b' for several")
        warmups = [min(profile.num_microbatches, profile.num_stages - i) for i in range(profile.num_stages)]
        orders = [_one_f_one_b_order(stage, warmup, profile.num_microbatches) for stage, warmup in enumerate(warmups)]
        schedule = Schedule.of_ops(orders, profile.placement, profile.num_microbatches)
        return make_plan(self.name, profile, schedule, (f"warm-ups {tuple(warmups)}: one for each stage to come",))


def _one_f_one_b_order(stage: int, warmup: int, num_microbatches: int) -> list[Op]:
    order = [Op(stage, OpKind.FORWARD, m) for m in range(warmup)]
    for microbatch in range(num_microbatches):
        order.append(Op(stage, OpKind.FULL_BACKWARD, microbatch))
        if microbatch + warmup < num_microbatches:
            order.append(Op(stage, OpKind.FORWARD, microbatch + warmup))
    return order
