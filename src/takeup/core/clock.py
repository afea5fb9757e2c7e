"""Clocks that run scheduled actions: `VirtualClock` without waiting, `WallClock` in real time.

Both count seconds from zero and hand an action the same `now`, so model code cannot tell them apart. Actions due at the
same time run in the order they were scheduled, which makes a run repeatable.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf

from takeup.errors import BadInput

Action = Callable[[], None]


@dataclass(slots=True)
class Timer:
    """One scheduled action, which can be cancelled."""

    when_s: float
    action: Action
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Make sure that the action does not run (again)."""
        self.is_cancelled = True


class VirtualClock:
    """Time that jumps from one action to the next."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._queue: list[tuple[float, int, Timer]] = []
        self._serials = count()

    @property
    def now(self) -> float:
        """Seconds since the clock was made."""
        return self._now_s

    def at(self, when_s: float, action: Action) -> Timer:
        """Run `action` at `when_s`, after what is already scheduled for that time."""
        self._require_future(when_s)
        timer = Timer(when_s, action)
        heappush(self._queue, (when_s, next(self._serials), timer))
        return timer

    def after(self, delay_s: float, action: Action) -> Timer:
        """Run `action` in `delay_s` seconds."""
        return self.at(self._now_s + delay_s, action)

    def run(self, until_s: float | None = None) -> None:
        """Run everything due up to and including `until_s`, then leave `now` there; without it, run until idle."""
        if until_s is not None:
            self._require_future(until_s)
        last_s = inf if until_s is None else until_s
        self._begin()
        while (when_s := self._next_s()) is not None and when_s <= last_s:
            self._wait_until(when_s)  # before the pop, so that an interrupted wait loses no action
            self._now_s, _, timer = heappop(self._queue)
            timer.action()
        if until_s is not None:
            self._wait_until(until_s)
            self._now_s = until_s

    def _next_s(self) -> float | None:
        while self._queue and self._queue[0][2].is_cancelled:
            heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def _require_future(self, when_s: float) -> None:
        if not self._now_s <= when_s < inf:
            raise BadInput(f"time {when_s} s cannot be scheduled: it is {self._now_s} s now; give a time from now on")

    def _begin(self) -> None:
        """Real time has no meaning here."""

    def _wait_until(self, when_s: float) -> None:
        """Virtual time does not wait."""


Clock = VirtualClock  # what models and control loops are given: virtual time, or real time behind the same methods


class WallClock(VirtualClock):
    """Real time while `run` runs; an action that runs late still sees the time it was due."""

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._sleep = sleep
        self._zero_s = 0.0

    def _begin(self) -> None:
        self._zero_s = self._monotonic() - self._now_s

    def _wait_until(self, when_s: float) -> None:
        # A sleep may end early, so ask the real clock again.
        while (wait_s := self._zero_s + when_s - self._monotonic()) > 0:
            self._sleep(wait_s)
