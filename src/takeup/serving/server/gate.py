"""The gate: so many jobs run, so many wait in the order in which they came, and the rest are sent away."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from takeup.serving.model import Expired
from takeup.serving.server.errors import BUSY, ApiError

__all__ = ["Gate"]

MEMORY = 0.9
MAX_RETRY_S = 60


class Gate:
    """Used from one event loop. `admit` holds places for all images of a request, `turn` waits for one of them."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self._max_running, self._max_inside = max_running, max_running + max_waiting
        self._turns = asyncio.Semaphore(max_running)
        self._usual_s = 1.0
        self.num_inside = 0
        self.num_running = 0
        self.num_refused = 0

    @property
    def num_waiting(self) -> int:
        """Jobs that were let in and have not started."""
        return self.num_inside - self.num_running

    @contextmanager
    def admit(self, num_jobs: int) -> Iterator[None]:
        """Places for so many jobs, or the advice to come again."""
        if self.num_inside + num_jobs > self._max_inside:
            self.num_refused += 1
            raise self._full(num_jobs)
        self.num_inside += num_jobs
        try:
            yield
        finally:
            self.num_inside -= num_jobs

    @asynccontextmanager
    async def turn(self, until_s: float | None = None) -> AsyncIterator[None]:
        """Wait until it is this job's turn, but not beyond `until_s` of the loop's clock; the oldest goes first."""
        await self._acquire(until_s)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1
            self._turns.release()
            self._usual_s = MEMORY * self._usual_s + (1 - MEMORY) * (loop.time() - began_s)

    async def _acquire(self, until_s: float | None) -> None:
        try:
            async with asyncio.timeout_at(until_s):
                await self._turns.acquire()
        except TimeoutError:
            raise Expired("the deadline passed while the request waited for its turn; allow more time") from None

    def _full(self, num_jobs: int) -> ApiError:
        retry_s = math.ceil(self._usual_s * max(1.0, self.num_waiting / self._max_running))
        message = (
            f"{self.num_inside} images are being made or wait, and {num_jobs} more would be above the limit of "
            f"{self._max_inside}; try again later"
        )
        headers = {"Retry-After": str(min(MAX_RETRY_S, max(1, retry_s)))}
        return ApiError(429, message, kind=BUSY, code="queue_full", headers=headers)
