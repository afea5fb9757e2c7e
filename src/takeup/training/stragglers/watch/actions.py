"""Remedies for a slow job: rebalancing every batch, another pipeline schedule, a restart.

A slow rank gets a smaller share of every batch, if the script supports it, and an equal share once it has recovered. An
adaptive pipeline is requested to measure a slow link and to replan.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from takeup.training.stragglers.watch.ring import HeaderWord
from takeup.training.stragglers.watch.ring_reader import RingReader

DivideMicrobatches = Callable[[Sequence[float], int], Sequence[int]]
ALIKE = 1.12  # slowest rank / median up to which no rank counts as slow
WORTH = 1.05  # current / best possible time above which rebalancing is worth it


@dataclass(slots=True)
class BatchShares:
    """Batch shares of the ranks; `divide` computes them from the micro-batch time of each rank."""

    divide: DivideMicrobatches
    counts: tuple[int, ...] = ()
    _version: int = 0

    def num_microbatches(self, readers: Mapping[int, RingReader]) -> int:
        """Number of micro-batches in a batch; 0 if its shares cannot be changed."""
        numbers = {reader.word(HeaderWord.NUM_MICROBATCHES) for reader in readers.values()}
        return numbers.pop() if len(numbers) == 1 else 0

    def can_change(self, readers: Mapping[int, RingReader]) -> bool:
        """Whether all ranks share batches, and have applied the last change."""
        in_use = {reader.word(HeaderWord.PLAN_IN_USE) for reader in readers.values()}
        return self.num_microbatches(readers) > 0 and in_use == {self._version}

    def paces_s(self, readers: Mapping[int, RingReader]) -> list[float]:
        """Recent time of a micro-batch on every rank, in seconds."""
        return [1e-9 * readers[rank].word(HeaderWord.MICROBATCH_NS) for rank in sorted(readers)]

    def are_alike(self, readers: Mapping[int, RingReader]) -> bool:
        """Whether no rank is slow."""
        paces_s = self.paces_s(readers)
        return max(paces_s) <= ALIKE * median(paces_s)

    def are_uneven(self) -> bool:
        """Whether ranks have different shares."""
        return len(set(self.counts)) > 1

    def could_be_better(self, readers: Mapping[int, RingReader]) -> bool:
        """Whether new shares would be clearly better, given the current micro-batch times."""
        paces_s = self.paces_s(readers)
        best = self.divide(paces_s, self.num_microbatches(readers))
        return _slowest_s(self.counts, paces_s) > WORTH * _slowest_s(best, paces_s)

    def rebalance(self, readers: Mapping[int, RingReader]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Recompute and publish the shares; return them before and after, or None if they do not change."""
        total = self.num_microbatches(readers)
        before = self.counts or (total // len(readers),) * len(readers)
        paces_s = self.paces_s(readers)
        if min(paces_s) <= 0:
            return None
        is_even = self.are_alike(readers)
        after = (total // len(readers),) * len(readers) if is_even else tuple(self.divide(paces_s, total))
        if after == before:
            return None
        self._publish(readers, after)
        return before, after

    def can_restart(self, readers: Mapping[int, RingReader]) -> bool:
        """Whether all ranks have applied the last change, and can checkpoint and be restarted."""
        return self.can_change(readers) and self.could_restart(readers)

    def could_restart(self, readers: Mapping[int, RingReader]) -> bool:
        """Whether all ranks can write a checkpoint and exit, and their launcher would restart them."""
        return all(reader.word(HeaderWord.CAN_RESTART) for reader in readers.values())

    def restart(self, readers: Mapping[int, RingReader]) -> None:
        """Request all ranks to write a checkpoint and exit."""
        total = self.num_microbatches(readers)
        self._publish(readers, self.counts or (total // len(readers),) * len(readers), restart=True)

    def _publish(self, readers: Mapping[int, RingReader], counts: tuple[int, ...], *, restart: bool = False) -> None:
        self._version += 1
        firsts = accumulate(counts, initial=0)
        for rank, count, first in zip(sorted(readers), counts, firsts, strict=False):
            readers[rank].ask(HeaderWord.PLAN_FIRST, first)
            readers[rank].ask(HeaderWord.PLAN_COUNT, count)
            readers[rank].ask(HeaderWord.PLAN_RESTART, int(restart))
            readers[rank].ask(HeaderWord.PLAN, self._version)
        self.counts = counts


def _slowest_s(counts: Sequence[int], paces_s: Sequence[float]) -> float:
    """Time of the slowest rank with these shares, in seconds."""
    return max(count * pace_s for count, pace_s in zip(counts, paces_s, strict=True))


@dataclass(slots=True)
class ScheduleRequests:
    """Requests to a pipeline to adapt its schedule."""

    _number: int = 0
    _before: int = 0
    _is_pending: bool = False

    def can_adapt(self, readers: Mapping[int, RingReader]) -> bool:
        """Whether the job has an adaptive pipeline."""
        return any(reader.word(HeaderWord.IS_ADAPTIVE) for reader in readers.values())

    def ask(self, readers: Mapping[int, RingReader]) -> None:
        """Request all ranks to measure now and replan; they agree among themselves on the iteration."""
        self._number += 1
        self._before = self._num_changes(readers)
        self._is_pending = True
        for reader in readers.values():
            reader.ask(HeaderWord.ADAPT, self._number)

    def outcome(self, readers: Mapping[int, RingReader]) -> bool | None:
        """Whether the schedule was changed, once, when all ranks have handled the request; otherwise None."""
        if not self._is_pending or any(
            reader.word(HeaderWord.ADAPTED) != self._number for reader in self._asked(readers)
        ):
            return None
        self._is_pending = False
        return self._num_changes(readers) > self._before

    def _asked(self, readers: Mapping[int, RingReader]) -> list[RingReader]:
        return [reader for reader in readers.values() if reader.word(HeaderWord.IS_ADAPTIVE)]

    def _num_changes(self, readers: Mapping[int, RingReader]) -> int:
        return max(reader.word(HeaderWord.SCHEDULE) for reader in readers.values())
