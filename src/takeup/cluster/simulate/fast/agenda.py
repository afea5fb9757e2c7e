"""Numba kernels: event queue of a replay, a binary heap by time; ties are broken by insertion order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Ints
from takeup.core.compiled import inner

Records = npt.NDArray[np.void]

ENTRY = np.dtype(
    [("when_s", np.float64), ("number", np.int64), ("what", np.int64), ("job", np.int64), ("run", np.int64)]
)


class EventQueue(NamedTuple):
    """Entries in heap order; `counts` holds the current number and the total ever inserted."""

    entries: Records
    counts: Ints


def empty_queue(most: int) -> EventQueue:
    """An event queue with capacity for `most` entries."""
    return EventQueue(np.zeros(most, ENTRY), np.zeros(2, np.int64))


@inner
def next_s(agenda: EventQueue) -> float:
    """Time of the next event; infinite if there is none."""
    return float(agenda.entries[0].when_s) if agenda.counts[0] > 0 else np.inf


@inner
def _is_before(one: np.void, other: np.void) -> bool:
    return bool(one.when_s < other.when_s or (one.when_s == other.when_s and one.number < other.number))  # type: ignore[attr-defined]


@inner
def push(agenda: EventQueue, when_s: float, what: int, job: int, run: int) -> None:
    """Schedule an event for this run of a job."""
    agenda.counts[1] += 1
    push_again(agenda, when_s, agenda.counts[1], what, job, run)


@inner
def push_again(agenda: EventQueue, when_s: float, number: int, what: int, job: int, run: int) -> None:
    """Insert an event under the sequence number that it had before."""
    place, entries = agenda.counts[0], agenda.entries
    agenda.counts[0] += 1
    while place > 0:
        above = entries[(place - 1) // 2]
        if above.when_s < when_s or (above.when_s == when_s and above.number < number):
            break
        entries[place] = above
        place = (place - 1) // 2
    it = entries[place]
    it.when_s, it.number, it.what, it.job, it.run = when_s, number, what, job, run


@inner
def pop(agenda: EventQueue) -> tuple[int, int, int]:
    """Remove the first entry; returns the event type, the job and the number of its run."""
    entries = agenda.entries
    answer = (entries[0].what, entries[0].job, entries[0].run)
    agenda.counts[0] -= 1
    size = agenda.counts[0]
    place, child = 0, 1
    while child < size:
        if child + 1 < size and _is_before(entries[child + 1], entries[child]):
            child += 1
        if not _is_before(entries[child], entries[size]):
            break
        entries[place] = entries[child]
        place, child = child, 2 * child + 1
    entries[place] = entries[size]
    return answer
