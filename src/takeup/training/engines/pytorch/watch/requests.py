"""What a watcher beside the job asks of a pipeline that can adapt: to measure now, and to plan its schedule anew.

All ranks must do so in the same iteration, and a word in shared memory reaches them at different times. So before every
iteration they agree on the newest request that all have seen. Nobody watching, nothing is exchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from takeup.training.engines.pytorch.watch.ring import Ring, Word

__all__ = ["Requests"]

FOLDER = "TAKEUP_WATCH_FOLDER"


class Requests:
    """The requests to one rank; `least` says the least of the numbers that all ranks of the pipeline give."""

    def __init__(self, least: Callable[[int], int]) -> None:
        self._least = least
        self._is_watched = bool(os.environ.get(FOLDER))
        self._followed = 0

    def is_new(self) -> bool:
        """Whether there is a request that all ranks know of and none has followed; call it on all ranks."""
        if not self._is_watched:
            return False
        ring = _ring()
        number = self._least(0 if ring is None else ring.words[Word.ADAPT])
        is_new = number > self._followed
        self._followed = max(number, self._followed)
        return is_new

    def tell(self, num_changes: int) -> None:
        """Say that the last request was followed, and how often the schedule has changed so far."""
        ring = _ring()
        if ring is not None:
            ring.words[Word.SCHEDULE] = num_changes
            ring.words[Word.ADAPTED] = self._followed


def _ring() -> Ring | None:
    """The shared memory of this rank, if it is watched and has made a call."""
    from takeup.training.engines.pytorch.watch.hook import current

    hook = current()
    return None if hook is None else hook.ring
