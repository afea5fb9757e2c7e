"""When calls on a CUDA device began and ended, by events in its streams that are read later; nothing is synchronised.

How it works. An event before the call tells when the device reached it, one after it when it was done. A call that
nobody waits for at once runs on a stream of its own, so the second event is put on a side stream that waits for it. A
thread looks now and then which events have passed. Times of the device become times of the host by adding differences
to the one moment at which both were read, event by event, so that rounding does not grow.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Ends"]

LOOK_EVERY_S = 0.02
MOST_PENDING = 4_096
CUDA: Any = torch.cuda  # whose classes have no types


class Ends:
    """Puts events around calls, and notes them in the rows of `hook` once they have passed."""

    def __init__(self, hook: Any) -> None:
        self._hook = hook
        self._pending: deque[tuple[int, Any, Any]] = deque(maxlen=MOST_PENDING)
        self._sides: dict[int, Any] = {}
        self._last: dict[int, tuple[Any, int]] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> Any:
        """An event before the call; none if nothing can be noted."""
        try:
            return self._event(torch.cuda.current_stream())
        except Exception as error:
            self._hook.give_up(error)
            return None

    def under_way(self, row: int, start: Any, result: Any, is_waited_for: bool) -> None:
        """Put an event after the call."""
        try:
            end = self._event(torch.cuda.current_stream() if is_waited_for else self._after(result))
            self._pending.append((row, start, end))
            self._thread = self._thread or self._begin_to_look()
        except Exception as error:
            self._hook.give_up(error)

    def _event(self, stream: Any) -> Any:
        event = CUDA.Event(enable_timing=True)
        event.record(stream)
        return event

    def _after(self, result: Any) -> Any:
        """A stream in which the call is over."""
        device = torch.cuda.current_device()
        side = self._sides.get(device) or self._sides.setdefault(device, CUDA.Stream(device))
        with torch.cuda.stream(side):
            dist.Work.unbox(result[-1] if type(result) is tuple else result).wait()
        return side

    # Reading ----------------------------------------------------------------------------------------------------------

    def _begin_to_look(self) -> threading.Thread:
        thread = threading.Thread(target=self._look, name="takeup-watch-cuda", daemon=True)
        thread.start()
        return thread

    def _look(self) -> None:
        try:
            while not self._hook.is_off:
                while self._pending and self._pending[0][2].query():
                    self._note(*self._pending.popleft())
                time.sleep(LOOK_EVERY_S)
        except Exception as error:
            self._hook.give_up(error)

    def _note(self, row: int, start: Any, end: Any) -> None:
        began_ns = self._host_ns(start)
        self._hook.note(row, began_ns, began_ns + round(1e6 * start.elapsed_time(end)))

    def _host_ns(self, event: Any) -> int:
        """When the device reached this event, by the clock of the host."""
        if event.device not in self._last:
            self._last[event.device] = _now_on(event.device)
        before, before_ns = self._last[event.device]
        now_ns: int = before_ns + round(1e6 * before.elapsed_time(event))
        self._last[event.device] = event, now_ns
        return now_ns


def _now_on(device: Any) -> tuple[Any, int]:
    """An event, and when it passed; the only time that the host waits, once, for an idle stream."""
    stream = CUDA.Stream(device)
    event = CUDA.Event(enable_timing=True)
    event.record(stream)
    event.synchronize()
    return event, time.monotonic_ns()
