"""End times of asynchronous calls: one thread per process group waits for them in order.

Callbacks of their futures are no alternative, as they run in Gloo's own threads. Destroying a process group holds the
GIL until these threads have ended, and a callback needs the GIL to finish: a deadlock.

The waiting thread is late when it must also wait for the GIL or for a core. Meanwhile a rank that has waited for the
same call starts its next one. So at the start of every call, completed calls are recorded first.
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

PLAIN_WAIT = dist.Work.wait
PATIENCE_S = 1.0
MOMENT_S = 0.5


@dataclass(slots=True)
class _GroupQueue:
    """FIFO queue of a group's calls, and the thread that waits for them."""

    queue: SimpleQueue[tuple[int, Any] | None] = field(default_factory=SimpleQueue)
    is_given_up: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread = field(default_factory=threading.Thread)


class CallEndThreads:
    """Calls `ended` with every row whose call has ended."""

    def __init__(self, ended: Callable[[int], None]) -> None:
        self._ended = ended
        self._groups: dict[int, _GroupQueue] = {}
        self.under_way: dict[int, Any] = {}  # by row

    def add(self, group: int, row: int, work: Any) -> None:
        """Enqueue a call to wait for; calls of one group end in the order in which they began."""
        calls = self._groups.get(group) or self._begin(group)
        self.under_way[row] = work
        calls.queue.put((row, work))

    def settle(self) -> None:
        """Report all calls that have completed by now."""
        for row, work in list(self.under_way.items()):
            if work.is_completed():
                self._end(row)

    def _end(self, row: int) -> None:
        """Report a row exactly once, from whichever thread is first."""
        if self.under_way.pop(row, None) is not None:
            self._ended(row)

    def close(self) -> None:
        """Wait for pending calls, with a timeout, and join all threads, as the job is about to exit."""
        closing, self._groups = list(self._groups.values()), {}
        for calls in closing:
            calls.queue.put(None)
        for calls in closing:
            calls.thread.join(PATIENCE_S)
            calls.is_given_up.set()
        for calls in closing:
            calls.thread.join()

    def _begin(self, group: int) -> _GroupQueue:
        calls = self._groups[group] = _GroupQueue()
        calls.thread = threading.Thread(target=self._follow, args=(calls,), name="takeup-ends", daemon=True)
        calls.thread.start()
        return calls

    def _follow(self, calls: _GroupQueue) -> None:
        while (item := calls.queue.get()) is not None:
            row, work = item
            while not _is_over(work):
                if calls.is_given_up.is_set():
                    return
            self._end(row)
            del item, work  # do not keep its tensors alive


def _is_over(work: Any) -> bool:
    """Wait at most `MOMENT_S`. Some calls never report completion, but can be waited for."""
    if work.is_completed():
        return True
    began_s = time.monotonic()
    try:
        PLAIN_WAIT(work, timedelta(seconds=MOMENT_S))
    except RuntimeError:  # timeout; or the call failed, which its caller sees
        return work.is_completed() or time.monotonic() < began_s + MOMENT_S
    return True
