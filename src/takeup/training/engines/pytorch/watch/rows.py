"""The reading end of a ring buffer: complete rows, each once, in order."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from takeup.errors import BadTrace
from takeup.training.engines.pytorch.watch.ring import (
    CAPACITY,
    FIRST_GROUP,
    FIRST_ROW,
    MAGIC,
    MOST_GROUPS,
    ROW_WORDS,
    SIZE_BYTES,
    UNSEEN,
    HeaderWord,
)
from takeup.training.model.calls import CALL, Operation

Words = npt.NDArray[np.int64]
COLUMNS = {name: number for number, name in enumerate(CALL.fields or (), start=1)}  # after the number of the row
LAST_OPERATION = int(max(Operation))
MOST_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """Group rank of a rank in a process group, and the group size."""

    place: int
    size: int


@dataclass(slots=True)
class RingReader:
    """Reads the ring of one rank; `num_bad` rows were invalid, `num_lost` were overwritten before they were read."""

    path: Path
    num_bad: int = 0
    num_lost: int = 0
    _words: Words = field(init=False, repr=False)
    _next: int = 0

    def __post_init__(self) -> None:
        self._words = _open(self.path)

    def word(self, place: int) -> int:
        """Read a word of the header."""
        return int(self._words[place])

    def ask(self, place: int, value: int) -> None:
        """Write a word of the header."""
        self._words[place] = value

    @property
    def rank(self) -> int:
        """Rank that writes this ring."""
        return self.word(HeaderWord.RANK)

    @property
    def places(self) -> dict[int, GroupPosition]:
        """Process groups of this rank, by group ID."""
        count = min(max(0, self.word(HeaderWord.NUM_GROUPS)), MOST_GROUPS)
        table = self._words[FIRST_GROUP : FIRST_GROUP + 3 * count].reshape(count, 3).tolist()
        return {group: GroupPosition(place, size) for group, place, size in table if 0 <= place < size}

    def read(self, *, give_up_before_ns: int = 0) -> npt.NDArray[np.void]:
        """Calls since the last read, up to the first unfinished one that began at or after `give_up_before_ns`."""
        head = self._head()
        if head is None:
            return np.zeros(0, CALL)
        first = max(self._next, head - CAPACITY)
        self.num_lost += first - self._next
        numbers = np.arange(first, head)
        rows = self._rows()[numbers % CAPACITY]  # a copy, which the writer cannot overwrite
        passed = max(0, (self._head() or head) - CAPACITY + 1 - first)  # overwritten during the copy
        whole = is_call(rows, numbers)
        waiting = whole & (rows[:, COLUMNS["ended_ns"]] == 0) & (rows[:, COLUMNS["began_ns"]] >= give_up_before_ns)
        stop = int(np.argmax(waiting)) if waiting.any() else len(rows)
        self._next = first + stop
        passed = min(passed, stop)
        self.num_lost += passed
        self.num_bad += int(np.count_nonzero(~whole[passed:stop]))
        return _calls(rows[passed:stop][whole[passed:stop]])

    def _rows(self) -> Words:
        return self._words[FIRST_ROW:].reshape(CAPACITY, ROW_WORDS)

    def _head(self) -> int | None:
        """Number of rows written; None if the value is invalid."""
        head = self.word(HeaderWord.HEAD)
        return head if self._next <= head < 1 << 48 else None


def _open(path: Path) -> Words:
    with path.open("r+b") as file:
        if os.fstat(file.fileno()).st_size != SIZE_BYTES:
            raise BadTrace(path, f"is not a ring of calls; expected {SIZE_BYTES} bytes")
        words = np.frombuffer(mmap.mmap(file.fileno(), SIZE_BYTES), np.int64)
    if words[HeaderWord.MAGIC] != MAGIC:
        raise BadTrace(path, "is not a ring of calls, or of another version")
    return words


def is_call(rows: Words, numbers: Words) -> npt.NDArray[np.bool_]:
    """Mask of valid rows: with the expected number and plausible values."""
    number, operation, peer, _, place, size, began, ended = rows.T
    sane: npt.NDArray[np.bool_] = (
        (number == numbers)
        & (operation >= 1)
        & (operation <= LAST_OPERATION)
        & (peer >= -1)
        & (peer < 1 << 31)
        & (place >= 0)
        & (size >= 0)
        & (size < MOST_BYTES)
        & (began > 0)
        & ((ended == 0) | (ended == UNSEEN) | (ended >= began))
    )
    return sane


def _calls(rows: Words) -> npt.NDArray[np.void]:
    calls = np.zeros(len(rows), CALL)
    for name in COLUMNS:
        calls[name] = rows[:, COLUMNS[name]]
    calls["ended_ns"] = np.maximum(calls["ended_ns"], 0)
    return calls[np.argsort(calls["began_ns"], kind="stable")]  # the start of a receive is the start of its wait
