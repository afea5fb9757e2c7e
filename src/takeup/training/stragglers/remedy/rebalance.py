"""Give slow groups fewer micro-batches, so that all finish at the same time: the exact minimum of the maximum."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.errors import BadInput
from takeup.training.stragglers.contract import JobState, SetShares

# The published program minimizes the variance of the groups' times, which is not the same: of three groups that need
# 1, 1 and 3 seconds for a micro-batch, it assigns eleven micro-batches as 4, 5 and 2, which takes 6 seconds, where
# 5, 5 and 1 take 5. Assigning one micro-batch after the other, each to the group that would finish it first, is
# optimal for any times that grow with the number; here all of these steps but the last few are taken at once.

NUM_HALVINGS = 60  # more bisection steps than a double has bits


@dataclass(frozen=True, slots=True)
class MicrobatchShares:
    """Number of micro-batches of every group, and when the last one is done.

    Gradients stay those of the whole batch if every micro-batch has the same weight: each group adds up the gradients
    of its micro-batches, groups are summed, and the sum is divided by the number of all micro-batches. The mean of the
    groups' means would be wrong.
    """

    counts: tuple[int, ...]
    iteration_s: float


def rebalance(microbatches_s: Sequence[float], num_microbatches: int) -> MicrobatchShares:
    """Shares with the least time of the slowest group, given the time of a micro-batch in each; all get at least one.

    First all micro-batches that are done by the latest feasible time, found by bisection; then one by one.
    """
    step_s = np.array(microbatches_s, np.float64)
    if not (np.isfinite(step_s) & (step_s > 0)).all():
        raise BadInput("the time of a micro-batch must be finite and above zero in every group")
    if not 1 <= len(step_s) <= num_microbatches:
        raise BadInput(f"{num_microbatches} micro-batches for {len(step_s)} groups; every group needs at least one")
    counts = _done_by(_moment_s(step_s, num_microbatches), step_s)
    ends = [(float(end_s), index) for index, end_s in enumerate((counts + 1) * step_s)]
    heapq.heapify(ends)
    for _ in range(num_microbatches - int(counts.sum())):
        end_s, index = ends[0]
        counts[index] += 1
        heapq.heapreplace(ends, (end_s + float(step_s[index]), index))
    return MicrobatchShares(tuple(counts.tolist()), float(np.max(counts * step_s)))


def _moment_s(step_s: Floats, num_microbatches: int) -> float:
    """The latest time by which the number of micro-batches done does not exceed the total."""
    low_s, high_s = 0.0, float(np.min(step_s) * num_microbatches)
    for _ in range(NUM_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if _done_by(middle_s, step_s).sum() <= num_microbatches:
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s


def _done_by(moment_s: float, step_s: Floats) -> Ints:
    """Number of micro-batches every group has done by then, but at least one."""
    return np.maximum(1, np.floor(moment_s / step_s)).astype(np.int64)


# The shares of a running job ------------------------------------------------------------------------------------------

ALIKE = 1.12  # slowest rank / median up to which no rank counts as slow
WORTH = 1.05  # current / best possible time above which rebalancing is worth it


@dataclass(slots=True)
class BatchShares:
    """Number of micro-batches of every rank as last requested; empty until the first change."""

    counts: tuple[int, ...] = ()
    version: int = 0

    def can_change(self, job: JobState) -> bool:
        """Whether batches can be shared differently, and all ranks have applied the last change."""
        return job.num_microbatches > 0 and job.shares_in_use == {self.version}

    @property
    def are_uneven(self) -> bool:
        return len(set(self.counts)) > 1

    def could_be_better(self, job: JobState) -> bool:
        """Whether new shares would be clearly better, given the current micro-batch times."""
        best = _shares(job.microbatch_s, job.num_microbatches)
        return _slowest_s(self.counts, job.microbatch_s) > WORTH * _slowest_s(best, job.microbatch_s)

    def rebalanced(self, job: JobState) -> SetShares | None:
        """Other shares for the current micro-batch times; even ones if no rank is slow, None if they do not change."""
        if min(job.microbatch_s) <= 0:
            return None
        even = self._even(job)
        counts = even if are_alike(job) else _shares(job.microbatch_s, job.num_microbatches)
        return None if counts == (self.counts or even) else self._set(counts)

    def before_restart(self, job: JobState) -> SetShares:
        """The same shares, with the request to save and exit."""
        return self._set(self.counts or self._even(job), restart=True)

    def _set(self, counts: tuple[int, ...], *, restart: bool = False) -> SetShares:
        self.counts, self.version = counts, self.version + 1
        return SetShares(self.version, counts, restart)

    def _even(self, job: JobState) -> tuple[int, ...]:
        return (job.num_microbatches // job.num_ranks,) * job.num_ranks


def are_alike(job: JobState) -> bool:
    """Whether no rank is slow, by the time of a micro-batch."""
    return max(job.microbatch_s) <= ALIKE * median(job.microbatch_s)


def _shares(paces_s: Sequence[float], num_microbatches: int) -> tuple[int, ...]:
    return rebalance(paces_s, num_microbatches).counts


def _slowest_s(counts: Sequence[int], paces_s: Sequence[float]) -> float:
    """Time of the slowest rank with these shares, in seconds."""
    return max(count * pace_s for count, pace_s in zip(counts, paces_s, strict=True))
