"""Admission control: bounds running and waiting jobs, and refuses those that would miss their deadline.

The admission rule and the queue order are injected. Their inputs are measured here: the admitted jobs, their
remaining steps, and a moving average of the step time.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from takeup.serving.contract import Admit
from takeup.serving.model import Expired
from takeup.serving.scheduling.queue import FairQueue, ReorderingQueue, expected_s, reserved_places
from takeup.serving.server.errors import BUSY, DO_NOT_RETRY, ApiError

MEMORY = 0.9
MAX_RETRY_S = 60
LOOK_AHEAD = 64
Waiter = asyncio.Future[None]
"""Completed when the job gets a run slot."""


@dataclass(slots=True, eq=False)
class Reservation:
    """Reservation of an admitted request, with its remaining steps."""

    steps_left: int

    def record_step(self) -> None:
        """One of its images made a step."""
        self.steps_left = max(0, self.steps_left - 1)


class AdmissionQueue:
    """Used from one event loop. `reserve` reserves capacity for all images of a request, `slot` waits for a run slot.

    `known` returns the LoRAs that are in memory. Run slots go round robin over the tenants, each of which can always
    have `places_each` jobs admitted, whatever the others send. With several tenants none of them can hold all slots, so
    that the next one starts at once.
    """

    def __init__(
        self,
        max_running: int,
        admit: Admit,
        make_queue: Callable[[], ReorderingQueue[Waiter]] = ReorderingQueue,
        known: Callable[[], Collection[Hashable]] = frozenset,
        tenants: Collection[str] = (),
        places_each: int = 0,
    ) -> None:
        self._max_running, self._admits, self._known = max_running, admit, known
        self._queue = FairQueue[Waiter](make_queue)
        self._tenants, self._places_each = tenants, places_each
        self._slots_each = max_running - min(max(0, len(tenants) - 1), max_running // 4)
        self._reservations: set[Reservation] = set()
        self._inside: Counter[str] = Counter()
        self._step_s = 0.0
        self.num_refused = 0

    @property
    def num_inside(self) -> int:
        """Jobs that were admitted and are not over."""
        return self._inside.total()

    @property
    def num_running(self) -> int:
        """Jobs that hold a run slot."""
        return self._queue.running.total()

    @property
    def num_waiting(self) -> int:
        """Jobs that were admitted and have not started."""
        return self.num_inside - self.num_running

    @property
    def ahead(self) -> tuple[tuple[Hashable, ...], ...]:
        """The LoRAs of the first `LOOK_AHEAD` waiting jobs, in order of arrival."""
        return tuple(self._queue.adapters[:LOOK_AHEAD])

    @contextmanager
    def reserve(
        self, num_jobs: int, num_steps: int = 1, left_s: float = math.inf, tenant: str = ""
    ) -> Iterator[Reservation]:
        """Reserve capacity for `num_jobs` jobs of `num_steps` steps due within `left_s`, or raise ApiError 429."""
        self._check(num_jobs, num_steps, left_s, tenant)
        reservation = Reservation(num_jobs * num_steps)
        self._reservations.add(reservation)
        self._inside[tenant] += num_jobs
        try:
            yield reservation
        finally:
            self._inside.subtract({tenant: num_jobs})
            self._reservations.remove(reservation)

    @asynccontextmanager
    async def slot(
        self, loras: tuple[Hashable, ...] = (), num_steps: int = 1, until_s: float | None = None, tenant: str = ""
    ) -> AsyncIterator[None]:
        """Wait for a run slot, at most until `until_s` of the loop's clock, and hold it in the block."""
        await self._wait(loras, until_s, tenant)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            yield
            self._learn((loop.time() - began_s) / num_steps)
        finally:
            self._queue.running[tenant] -= 1
            self._call_next()

    @property
    def _steps_inside(self) -> int:
        return sum(one.steps_left for one in self._reservations)

    def _learn(self, step_s: float) -> None:
        self._step_s = MEMORY * self._step_s + (1 - MEMORY) * step_s if self._step_s else step_s

    async def _wait(self, loras: tuple[Hashable, ...], until_s: float | None, tenant: str) -> None:
        waiting: Waiter = asyncio.get_running_loop().create_future()
        self._queue.add(waiting, loras, tenant)
        self._call_next()
        try:
            async with asyncio.timeout_at(until_s):
                await waiting
        except TimeoutError:
            self._leave(waiting, tenant)
            raise Expired("the deadline passed while the request waited for its turn; allow more time") from None
        except asyncio.CancelledError:
            self._leave(waiting, tenant)
            raise

    def _leave(self, waiting: Waiter, tenant: str) -> None:
        """Remove a cancelled or expired waiter from the queue, or release its slot if it was just granted."""
        if not self._queue.remove(waiting, tenant) and not waiting.cancelled():
            self._queue.running[tenant] -= 1
            self._call_next()

    def _call_next(self) -> None:
        while self._queue and self.num_running < self._max_running and self._queue.fewest_running < self._slots_each:
            waiting, tenant = self._queue.pop(self._known())
            if not waiting.done():
                self._queue.running[tenant] += 1
                waiting.set_result(None)

    # Refusal --------------------------------------------------------------------------------------------------------

    def _check(self, num_jobs: int, num_steps: int, left_s: float, tenant: str) -> None:
        reserved = reserved_places(self._inside, tenant, self._tenants, self._places_each)
        num_waiting = self.num_inside + reserved + num_jobs - 1 - self._max_running
        steps_ahead = self._steps_inside + (num_jobs - 1) * num_steps
        num_inside = self.num_inside + num_jobs - 1
        takes_s = expected_s(
            num_steps, self._step_s, steps_ahead=steps_ahead, num_inside=num_inside, max_running=self._max_running
        )
        if self._admits(num_waiting, takes_s, left_s):
            return
        self.num_refused += 1
        is_full = not self._admits(num_waiting, 0.0, math.inf)
        raise self._full(num_jobs) if is_full else self._too_late(takes_s, left_s)

    def _full(self, num_jobs: int) -> ApiError:
        message = (
            f"{self.num_inside} images are being made or wait, and the queue has no place for {num_jobs} more; try "
            "again later"
        )
        return ApiError(429, message, kind=BUSY, code="queue_full", headers=self._later())

    def _too_late(self, takes_s: float, left_s: float) -> ApiError:
        message = (
            f"the image would take about {takes_s:.3g} s, and its deadline is in {left_s:.3g} s; allow more time, or "
            "come when fewer wait"
        )
        headers = self._later() | DO_NOT_RETRY
        return ApiError(429, message, kind=BUSY, param="deadline_s", code="deadline_too_near", headers=headers)

    def _later(self) -> dict[str, str]:
        retry_s = math.ceil(self._step_s * self._steps_inside / self._max_running)
        return {"Retry-After": str(min(MAX_RETRY_S, max(1, retry_s)))}
