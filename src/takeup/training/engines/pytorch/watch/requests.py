"""Requests of a watcher process to an adaptive pipeline: measure now, and replan the schedule.

All ranks must do so in the same iteration, and a word in shared memory reaches them at different times. So before every
iteration they agree on the newest request that all have seen. Without a watcher nothing is exchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from takeup.training.engines.pytorch.watch.ring import HeaderWord, RingBuffer

FOLDER = "TAKEUP_WATCH_FOLDER"


class ReplanRequests:
    """Requests to one rank; `least` returns the minimum of the numbers passed by all ranks of the pipeline."""

    def __init__(self, least: Callable[[int], int]) -> None:
        self._least = least
        self._is_watched = bool(os.environ.get(FOLDER))
        self._followed = 0

    def is_new(self) -> bool:
        """Whether there is an unhandled request that all ranks have seen; a collective, call it on all ranks."""
        if not self._is_watched:
            return False
        ring = _ring()
        number = self._least(0 if ring is None else ring.words[HeaderWord.ADAPT])
        is_new = number > self._followed
        self._followed = max(number, self._followed)
        return is_new

    def tell(self, num_changes: int) -> None:
        """Report that the last request was handled, and the number of schedule changes so far."""
        ring = _ring()
        if ring is not None:
            ring.words[HeaderWord.SCHEDULE] = num_changes
            ring.words[HeaderWord.ADAPTED] = self._followed


def _ring() -> RingBuffer | None:
    """The shared memory of this rank, if it is watched and has made a call."""
    from takeup.training.engines.pytorch.watch.hook import current

    hook = current()
    return None if hook is None else hook.ring
