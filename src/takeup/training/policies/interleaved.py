"""Interleaved 1F1B: every rank has several chunks of the model, so bubbles shrink and the number of messages grows.

Narayanan et al., SC 2021. Micro-batches go through the chunks of a rank in rounds; rank r of P warms up with
2 (P - r - 1) forwards more than what the first chunks of a round need.
"""

from __future__ import annotations

from dataclasses import dataclass

from takeup.errors import BadInput
from takeup.training.model.pipeline import Profile
from takeup.training.model.plan import PipelinePlan
from takeup.training.model.schedule import Op, OpKind, Schedule
from takeup.training.policies.chunks import round_robin_chunks
from takeup.training.policies.planned import make_plan


@dataclass(frozen=True, slots=True)
class Interleaved:
    """Cuts stages into `num_chunks` of equal work, unless the profile is already laid out in rounds."""

    name: str = "interleaved_1f1b"
    num_chunks: int = 2

    def plan(self, profile: Profile) -> PipelinePlan:
        """A fixed order, independent of the times."""
        cut = round_robin_chunks(profile, self.num_chunks)
        per_round = self._per_round(cut)
        orders = [_interleaved_order(cut, rank, per_round) for rank in range(cut.num_ranks)]
        schedule = Schedule.of_ops(orders, cut.placement, cut.num_microbatches)
        reason = f"{len(cut.chunks[0])} chunks on every rank, {per_round} micro-batches in a round"
        return make_plan(self.name, cut, schedule, (reason,))

    def _per_round(self, profile: Profile) -> int:
        count = profile.num_microbatches
        num_rounds = max(1, count // profile.num_ranks)
        if count % num_rounds:
            raise BadInput(
                f"{self.name!r} cannot share {count} micro-batches among {num_rounds} rounds; "
                "give a multiple of the number of ranks"
            )
        return count // num_rounds


def _interleaved_order(profile: Profile, rank: int, per_round: int) -> list[Op]:
    stages, count = profile.chunks[rank], profile.num_microbatches
    num_chunks, total = len(stages), len(stages) * count

    def place(number: int) -> tuple[int, int]:
        """The chunk and the micro-batch of the n-th forward."""
        in_round = number % (per_round * num_chunks)
        return in_round // per_round, number // (per_round * num_chunks) * per_round + in_round % per_round

    forwards = [Op(stages[chunk], OpKind.FORWARD, m) for chunk, m in map(place, range(total))]
    backwards = [Op(stages[-1 - chunk], OpKind.FULL_BACKWARD, m) for chunk, m in map(place, range(total))]
    warmup = min(total, (num_chunks - 1) * per_round + 2 * (profile.num_ranks - 1 - rank))
    if warmup == total:
        return forwards + backwards
    steady = [op for pair in zip(forwards[warmup:], backwards, strict=False) for op in pair]
    return forwards[:warmup] + steady + backwards[total - warmup :]
