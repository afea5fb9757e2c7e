"""When calls ended that nobody waits for at once: a thread for every group waits for them, one after the other.

Callbacks of their futures would tell, too, but they run in Gloo's own threads. Whoever destroys a process group holds
the interpreter until these threads have ended; a callback needs the interpreter to end; both would wait for ever.

A thread that waits is late when it has to wait for the interpreter as well, or for a core. Meanwhile a rank that has
waited for the same call begins its next one. So with every call that begins, those that are over are noted first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch.distributed as dist

__all__ = ["PLAIN_WAIT", "Waits"]

LOG = logging.getLogger("takeup.training")
PLAIN_WAIT = dist.Work.wait
PATIENCE_S = 1.0
Queue = SimpleQueue[tuple[int, Any] | None]


class Waits:
    """Tells `ended` of every row whose call has ended."""

    def __init__(self, ended: Callable[[int], None]) -> None:
        self._ended = ended
        self._queues: dict[str, tuple[Queue, threading.Thread]] = {}
        self._open: dict[int, Any] = {}

    def add(self, group: str, row: int, work: Any) -> None:
        """Wait for this call, too; calls of one group end in the order in which they began."""
        queue, _ = self._queues.get(group) or self._begin(group)
        self._open[row] = work
        queue.put((row, work))

    def settle(self) -> None:
        """Tell of all calls that are over by now."""
        for row, work in list(self._open.items()):
            if work.is_completed():
                self._end(row)

    def _end(self, row: int) -> None:
        """Tell once, whoever comes first."""
        if self._open.pop(row, None) is not None:
            self._ended(row)

    def close(self) -> None:
        """Wait for what is under way, but not for long: the job wants to end."""
        for queue, _ in self._queues.values():
            queue.put(None)
        for _, thread in self._queues.values():
            thread.join(PATIENCE_S)
        self._queues.clear()

    def _begin(self, group: str) -> tuple[Queue, threading.Thread]:
        queue: Queue = SimpleQueue()
        thread = threading.Thread(target=self._follow, args=(queue,), name="takeup-ends", daemon=True)
        self._queues[group] = queue, thread
        thread.start()
        return queue, thread

    def _follow(self, queue: Queue) -> None:
        while (item := queue.get()) is not None:
            row, work = item
            try:
                PLAIN_WAIT(work)
            except RuntimeError as error:  # whoever made the call is told; it is over all the same
                LOG.debug("takeup: a call failed: %s", error)
            self._end(row)
            del item, work  # its tensors are not ours to keep
