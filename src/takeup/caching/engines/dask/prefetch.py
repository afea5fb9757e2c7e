"""Prefetch: while a task computes, read the spilled inputs of the next one, off the event loop and where they fit.

One value at a time, and only below the target: nothing is evicted for it. The thread only reads the file; the value
enters the buffer on the event loop, if it is still wanted there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any, Protocol

from distributed.spill import SpillBuffer
from distributed.utils import offload

from takeup.caching.engines.dask.counts import DaskCounts


class ReadyTasks(Protocol):
    """The worker's heap of runnable tasks."""

    def __len__(self) -> int: ...

    def peek(self) -> Any:
        """The task that runs next."""


class Prefetcher:
    """Reads back one value at a time."""

    def __init__(self, ready: ReadyTasks, data: SpillBuffer, counts: DaskCounts) -> None:
        self._ready, self._data, self._counts = ready, data, counts
        self._task: asyncio.Task[None] | None = None

    def consider(self) -> None:
        """Start to read if the disk is idle and there is something to read."""
        key = self._wanted() if self._task is None or self._task.done() else None
        if key is not None:
            self._task = asyncio.create_task(self._bring_back(key), name="takeup-prefetch")

    def _wanted(self) -> Hashable | None:
        inputs = self._ready.peek().dependencies if len(self._ready) else ()
        return next((task.key for task in inputs if task.key in self._data.slow and self._fits(task.key)), None)

    def _fits(self, key: Any) -> bool:
        size_bytes = self._data._slow_uncached.weight_by_key[key].memory
        return self._data.fast.total_weight + self._data.fast.offset + size_bytes <= self._data.fast.n

    async def _bring_back(self, key: Any) -> None:
        slow = self._data._slow_uncached
        try:
            pickled, value = await offload(_read, slow, key)
        except (KeyError, OSError):
            return  # deleted meanwhile
        if key in self._data.slow and key not in self._data.fast and self._fits(key):
            self._data.fast.set_noevict(key, value)
            del self._data.slow[key]
            self._data.fast.evict_until_below_target()
            self._counts.num_misses -= 1  # no task waited for it
            self._counts.num_prefetches += 1
            self._counts.prefetched_bytes += len(pickled)
        self._data.cumulative_metrics["disk-read", "bytes"] += len(pickled)
        self._task = None
        self.consider()


def _read(slow: Any, key: Hashable) -> tuple[bytes, object]:
    pickled = slow.d[key]
    return pickled, slow.load(pickled)
