"""What can be done about a slow job: other shares of every batch, another schedule of a pipeline, a restart.

A slow rank gets less of every batch, where the script lets us, and as much as the others once it has recovered. A
pipeline that can adapt is told of a slow link, measures it, and plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from takeup.training.engines.pytorch.watch.ring import Word
from takeup.training.engines.pytorch.watch.rows import Reader

__all__ = ["Divide", "Schedules", "Shares"]

Divide = Callable[[Sequence[float], int], Sequence[int]]
ALIKE = 1.12  # the slowest rank takes at most so many times as long as the median: nobody is slow
WORTH = 1.05  # times as long as need be: other shares are worth it


@dataclass(slots=True)
class Shares:
    """The shares of the ranks in a batch; `divide` says what they should be, from the time of a micro-batch on each."""

    divide: Divide
    counts: tuple[int, ...] = ()
    _version: int = 0

    def num_microbatches(self, readers: Mapping[int, Reader]) -> int:
        """How many micro-batches a batch has; 0 if its shares cannot be changed."""
        numbers = {reader.word(Word.NUM_MICROBATCHES) for reader in readers.values()}
        return numbers.pop() if len(numbers) == 1 else 0

    def can_change(self, readers: Mapping[int, Reader]) -> bool:
        """Whether all ranks share batches, and follow the last change."""
        in_use = {reader.word(Word.PLAN_IN_USE) for reader in readers.values()}
        return self.num_microbatches(readers) > 0 and in_use == {self._version}

    def paces_s(self, readers: Mapping[int, Reader]) -> list[float]:
        """How long a micro-batch takes on every rank, lately."""
        return [1e-9 * readers[rank].word(Word.MICROBATCH_NS) for rank in sorted(readers)]

    def are_alike(self, readers: Mapping[int, Reader]) -> bool:
        """Whether no rank is slow."""
        paces_s = self.paces_s(readers)
        return max(paces_s) <= ALIKE * median(paces_s)

    def are_uneven(self) -> bool:
        """Whether ranks do not have the same shares."""
        return len(set(self.counts)) > 1

    def could_be_better(self, readers: Mapping[int, Reader]) -> bool:
        """Whether shares were chosen when less was known of the ranks, and others would be clearly better now."""
        paces_s = self.paces_s(readers)
        best = self.divide(paces_s, self.num_microbatches(readers))
        return _slowest_s(self.counts, paces_s) > WORTH * _slowest_s(best, paces_s)

    def rebalance(self, readers: Mapping[int, Reader]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Change the shares to what suits the ranks now: before and after; none if they suit them already."""
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

    def can_restart(self, readers: Mapping[int, Reader]) -> bool:
        """Whether all ranks follow the last change, and can save and end to be started anew."""
        return self.can_change(readers) and self.could_restart(readers)

    def could_restart(self, readers: Mapping[int, Reader]) -> bool:
        """Whether all ranks can save and end, so that whoever started them starts them anew."""
        return all(reader.word(Word.CAN_RESTART) for reader in readers.values())

    def restart(self, readers: Mapping[int, Reader]) -> None:
        """Ask all ranks to save and to end."""
        total = self.num_microbatches(readers)
        self._publish(readers, self.counts or (total // len(readers),) * len(readers), restart=True)

    def _publish(self, readers: Mapping[int, Reader], counts: tuple[int, ...], *, restart: bool = False) -> None:
        self._version += 1
        firsts = accumulate(counts, initial=0)
        for rank, count, first in zip(sorted(readers), counts, firsts, strict=False):
            readers[rank].ask(Word.PLAN_FIRST, first)
            readers[rank].ask(Word.PLAN_COUNT, count)
            readers[rank].ask(Word.PLAN_RESTART, int(restart))
            readers[rank].ask(Word.PLAN, self._version)
        self.counts = counts


def _slowest_s(counts: Sequence[int], paces_s: Sequence[float]) -> float:
    """How long the slowest rank takes with these shares."""
    return max(count * pace_s for count, pace_s in zip(counts, paces_s, strict=True))


@dataclass(slots=True)
class Schedules:
    """Requests to a pipeline to adapt its schedule."""

    _number: int = 0
    _before: int = 0
    _is_pending: bool = False

    def can_adapt(self, readers: Mapping[int, Reader]) -> bool:
        """Whether the job has a pipeline that adapts."""
        return any(reader.word(Word.IS_ADAPTIVE) for reader in readers.values())

    def ask(self, readers: Mapping[int, Reader]) -> None:
        """Ask all ranks to measure now and to plan anew; they agree among themselves on the iteration."""
        self._number += 1
        self._before = self._num_changes(readers)
        self._is_pending = True
        for reader in readers.values():
            reader.ask(Word.ADAPT, self._number)

    def outcome(self, readers: Mapping[int, Reader]) -> bool | None:
        """Once: whether the schedule was changed, as soon as all ranks have followed; else none."""
        if not self._is_pending or any(reader.word(Word.ADAPTED) != self._number for reader in self._asked(readers)):
            return None
        self._is_pending = False
        return self._num_changes(readers) > self._before

    def _asked(self, readers: Mapping[int, Reader]) -> list[Reader]:
        return [reader for reader in readers.values() if reader.word(Word.IS_ADAPTIVE)]

    def _num_changes(self, readers: Mapping[int, Reader]) -> int:
        return max(reader.word(Word.SCHEDULE) for reader in readers.values())
