"""Calls received from one rank so far: the latest ones, split into iterations by the call that marks them (anchor)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Ints
from takeup.training.model.calls import CALL, CallLog
from takeup.training.policies.stragglers.matched import Anchor, tokens_of

Rows = npt.NDArray[np.void]
MOST_ROWS = 200_000
LOST_AFTER = 6  # the anchor is lost after this many iterations' worth of calls without it


@dataclass(slots=True)
class RankCalls:
    """Calls of a rank; `marks` are indices of the anchor in `rows`; the first `num_dropped` iterations were dropped."""

    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)
    rows: Rows = field(default_factory=lambda: np.zeros(0, CALL))
    anchor: Anchor | None = None
    marks: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    num_dropped: int = 0

    def append(self, log: CallLog) -> None:
        """Append more calls."""
        self.groups.update(log.groups)
        self.rows = np.concatenate([self.rows, log.calls])[-MOST_ROWS:]
        if self.anchor is not None:
            self.marks = np.flatnonzero(self._is(self.anchor))

    def follow(self, anchor: Anchor, since: int) -> None:
        """Count iterations from the first call of this sort that has at least this number."""
        self.anchor = anchor
        places = np.flatnonzero(self._is(anchor))
        self.rows = self.rows[places[self.rows["number"][places] >= since][0] :]
        self.marks = np.flatnonzero(self._is(anchor))

    def first_number(self, anchor: Anchor) -> int:
        """Sequence number of the first call of this sort."""
        return int(self.rows["number"][self._is(anchor)][0])

    def count(self, anchor: Anchor) -> int:
        """Number of buffered calls of this sort."""
        return int(self._is(anchor).sum())

    def _is(self, anchor: Anchor) -> npt.NDArray[np.bool_]:
        same: npt.NDArray[np.bool_] = (tokens_of(self.rows) == anchor).all(axis=1)
        return same

    @property
    def is_lost(self) -> bool:
        """Whether the anchor has been absent for too many calls, so the job must be in another phase."""
        if self.anchor is None or len(self.marks) < 2:
            return False
        usual = float(np.median(np.diff(self.marks)))
        return bool(len(self.rows) - self.marks[-1] > LOST_AFTER * usual + LOST_AFTER)

    @property
    def num_iterations(self) -> int:
        """Number of complete iterations since the anchor was known."""
        return self.num_dropped + max(0, len(self.marks) - 1)

    def iteration_s(self, number: int) -> float:
        """Duration of an iteration that is still buffered."""
        place = number - self.num_dropped
        began_ns = self.rows["began_ns"][self.marks[place : place + 2]]
        return float(began_ns[1] - began_ns[0]) / 1e9

    def calls(self, first: int, end: int) -> Rows:
        """Calls of these iterations, and the call that ends them."""
        places = np.clip(np.array([first, end]) - self.num_dropped, 0, len(self.marks) - 1)
        start, stop = self.marks[places] if len(self.marks) else (0, -1)
        return self.rows[start : stop + 1]

    def log(self, rank: int, first: int, end: int) -> CallLog:
        """The same as a `CallLog`."""
        return CallLog(rank, self.calls(first, end), self.groups)

    def forget(self, before: int) -> None:
        """Drop the calls of iterations before this one."""
        drop = min(before - self.num_dropped, len(self.marks) - 1)
        if drop > 0:
            start = int(self.marks[drop])
            self.rows, self.marks = self.rows[start:], self.marks[drop:] - start
            self.num_dropped += drop

    def start_over(self) -> None:
        """Reset the anchor and the counts; find another anchor in later calls."""
        self.rows = self.rows[:0]
        self.anchor, self.marks, self.num_dropped = None, self.marks[:0], 0
