"""Nobody waits for the whole device while a call is recorded: that would break the recording.

How it works. Threads beside the step loop encode and decode images, and cuDNN tries out convolutions of a size that a
thread has not met: it waits for all that runs on the device. Who may do so is `busy` meanwhile. Who records is `alone`:
it waits until nobody is busy, and whoever comes then waits for it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["QUIET", "Quiet"]


class Quiet:
    """A thread may be both, in any order, and more than once."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy: Counter[int] = Counter()
        self._alone: Counter[int] = Counter()
        self._num_waiting = 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Inside, nobody else is alone."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._may_enter(me))
            self._busy[me] += 1
        try:
            yield
        finally:
            self._leave(self._busy, me)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, nobody else is busy or alone. Who is busy itself is not, until it is alone."""
        me = threading.get_ident()
        with self._changed:
            was_busy = self._busy.pop(me, 0)
            self._num_waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._busy and self._alone.keys() <= {me})
            self._num_waiting -= 1
            self._alone[me] += 1
        try:
            yield
        finally:
            if was_busy:
                self._busy[me] = was_busy
            self._leave(self._alone, me)

    def _may_enter(self, me: int) -> bool:
        """Who records goes first, but does not wait for those that wait for it."""
        is_inside = me in self._alone or me in self._busy
        return is_inside or not (self._alone or self._num_waiting)

    def _leave(self, threads: Counter[int], me: int) -> None:
        with self._changed:
            threads[me] -= 1
            if not threads[me]:
                del threads[me]
            self._changed.notify_all()


QUIET = Quiet()
"""That of this process, as its devices are."""
