"""When calls ended that nobody waits for at once: a thread for every group waits for them, one after the other.

Callbacks of their futures would tell, too, but they run in Gloo's own threads. Whoever destroys a process group holds
the interpreter until these threads have ended; a callback needs the interpreter to end; both would wait for ever.

A thread that waits is late when it has to wait for the interpreter as well, or for a core. Meanwhile a rank that has
waited for the same call begins its next one. So with every call that begins, those that are over are noted first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch.distributed as dist

__all__ = ["PLAIN_WAIT", "Waits"]

PLAIN_WAIT = dist.Work.wait
PATIENCE_S = 1.0
MOMENT_S = 0.5


@dataclass(slots=True)
class _Calls:
    """Calls of a group in their order, and the thread that waits for them."""

    queue: SimpleQueue[tuple[int, Any] | None] = field(default_factory=SimpleQueue)
    is_given_up: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread = field(default_factory=threading.Thread)


class Waits:
    """Tells `ended` of every row whose call has ended."""

    def __init__(self, ended: Callable[[int], None]) -> None:
        self._ended = ended
        self._groups: dict[int, _Calls] = {}
        self.under_way: dict[int, Any] = {}  # by row

    def add(self, group: int, row: int, work: Any) -> None:
        """Wait for this call, too; calls of one group end in the order in which they began."""
        calls = self._groups.get(group) or self._begin(group)
        self.under_way[row] = work
        calls.queue.put((row, work))

    def settle(self) -> None:
        """Tell of all calls that are over by now."""
        for row, work in list(self.under_way.items()):
            if work.is_completed():
                self._end(row)

    def _end(self, row: int) -> None:
        """Tell once, whoever comes first."""
        if self.under_way.pop(row, None) is not None:
            self._ended(row)

    def close(self) -> None:
        """Wait for what is under way, but not for long: the job wants to end, and no thread may be left then."""
        closing, self._groups = list(self._groups.values()), {}
        for calls in closing:
            calls.queue.put(None)
        for calls in closing:
            calls.thread.join(PATIENCE_S)
            calls.is_given_up.set()
        for calls in closing:
            calls.thread.join()

    def _begin(self, group: int) -> _Calls:
        calls = self._groups[group] = _Calls()
        calls.thread = threading.Thread(target=self._follow, args=(calls,), name="takeup-ends", daemon=True)
        calls.thread.start()
        return calls

    def _follow(self, calls: _Calls) -> None:
        while (item := calls.queue.get()) is not None:
            row, work = item
            while not _is_over(work):
                if calls.is_given_up.is_set():
                    return
            self._end(row)
            del item, work  # its tensors are not ours to keep


def _is_over(work: Any) -> bool:
    """Wait for it, for a moment at most. Some calls do not know that they are over, but can be waited for."""
    if work.is_completed():
        return True
    began_s = time.monotonic()
    try:
        PLAIN_WAIT(work, timedelta(seconds=MOMENT_S))
    except RuntimeError:  # the moment has passed; or the call failed, and whoever made it is told
        return work.is_completed() or time.monotonic() < began_s + MOMENT_S
    return True
