"""ZB-V: two chunks on every rank, laid out as a V, and a split backward: no bubbles with the memory of 1F1B.

Qi et al., "Pipeline Parallelism with Controllable Memory", 2024, in the fixed order that PyTorch's runtime uses too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from takeup.training.model.pipeline import Profile
from takeup.training.model.plan import PipelinePlan
from takeup.training.model.schedule import Op, OpKind, Schedule
from takeup.training.policies.chunks import v_shaped_chunks
from takeup.training.policies.planned import make_plan

DOWN, UP = 0, 1  # the two chunks of a rank: down and up the V


@dataclass(frozen=True, slots=True)
class ZeroBubbleV:
    """Cuts stages into two chunks of equal work, unless the profile is already laid out in a V."""

    name: str = "zbv"

    def plan(self, profile: Profile) -> PipelinePlan:
        """A fixed order, independent of the times."""
        cut = v_shaped_chunks(profile)
        orders = [_zbv_order(cut, rank) for rank in range(cut.num_ranks)]
        schedule = Schedule.of_ops(orders, cut.placement, cut.num_microbatches)
        return make_plan(
            self.name, cut, schedule, ("rank r has the stages r and 2 P - 1 - r, so that rank 0 has both ends",)
        )


def _zbv_order(profile: Profile, rank: int) -> list[Op]:
    """Expand the pattern for at least 2 P - 1 micro-batches, then truncate it."""
    stages, done = profile.chunks[rank], dict[tuple[int, OpKind], int]()
    count = max(2 * profile.num_ranks - 1, profile.num_microbatches)
    order = []
    for chunk, kind in _zbv_pattern(profile.num_ranks, rank, count):
        microbatch = done.get((chunk, kind), 0)
        done[chunk, kind] = microbatch + 1
        if microbatch < profile.num_microbatches:
            order.append(Op(stages[chunk], kind, microbatch))
    return order


def _zbv_pattern(num_ranks: int, rank: int, count: int) -> Iterator[tuple[int, OpKind]]:
    forward, backward, weight = OpKind.FORWARD, OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT
    later = num_ranks - rank
    yield from [(DOWN, forward)] * (2 * later - 1)
    yield from [(UP, forward), (DOWN, forward)] * rank
    yield from [(UP, forward), (UP, backward), (UP, weight)] * later
    num_down = 2 * later - 1 + rank
    for step in range(count - num_ranks):
        if num_down + step < count:
            yield DOWN, forward
        yield from [(DOWN, backward), (DOWN, weight), (UP, forward), (UP, backward), (UP, weight)]
    yield from [(DOWN, backward), (UP, backward)] * rank
    yield from [(DOWN, backward), (DOWN, weight)] * later
    yield from [(UP, weight)] * rank
    yield from [(DOWN, weight)] * rank
