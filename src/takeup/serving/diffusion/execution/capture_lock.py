"""Reader-writer lock around CUDA-graph capture: a device-wide synchronization would break the capture.

How it works. Threads other than the step loop encode and decode images, and cuDNN benchmarks convolutions of a size
that is new to a thread, which synchronizes the whole device. Code that may do so holds the shared side (`shared`).
Graph capture holds the exclusive side (`exclusive`): it waits until no other thread is busy, and blocks new ones.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class CaptureLock:
    """Reentrant; a thread can hold both sides, acquired in any order."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy: Counter[int] = Counter()
        self._alone: Counter[int] = Counter()
        self._num_waiting = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Shared section: no other thread is in an exclusive section."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._may_enter(me))
            self._busy[me] += 1
        try:
            yield
        finally:
            self._leave(self._busy, me)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Exclusive section. A holder of the shared side releases it while waiting, to avoid a self-deadlock."""
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
        """Writer preference: waiting writers block new readers, but not threads that already hold the lock."""
        is_inside = me in self._alone or me in self._busy
        return is_inside or not (self._alone or self._num_waiting)

    def _leave(self, threads: Counter[int], me: int) -> None:
        with self._changed:
            threads[me] -= 1
            if not threads[me]:
                del threads[me]
            self._changed.notify_all()


CAPTURE_LOCK = CaptureLock()
"""That of this process, as its devices are."""
