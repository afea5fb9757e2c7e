"""Durations of calls on a CUDA device, by stream events that are read later, without synchronization.

How it works. An event before the call records when the device reached it, one after it when it was done. An
asynchronous call runs on a separate stream, so its second event is recorded on a side stream that waits for it. A
thread polls for completed events and recycles them. A call starts when the host made it, and its duration is the device
time from when the device reached it: waiting plus transfer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import torch
import torch.distributed as dist

LOOK_EVERY_S = 0.05
MOST_PENDING = 4_096
CUDA: Any = torch.cuda  # its classes have no types
Pair = tuple[Any, Any]


class CudaCallEnds:
    """Records events around calls, and stores their durations in the rows of `hook`."""

    def __init__(self, hook: Any) -> None:
        self._hook = hook
        self._pending: deque[tuple[int, Pair]] = deque()
        self._free: list[Pair] = []
        self._sides: dict[int, Any] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> Pair | None:
        """Event pair for a call that starts now, with the first one recorded; None if that is not possible."""
        if len(self._pending) >= MOST_PENDING:
            return None
        try:
            pair = self._free.pop() if self._free else (_event(), _event())
            pair[0].record()
        except Exception as error:
            self._hook.give_up(error)
            return None
        return pair

    def under_way(self, row: int, pair: Pair, result: Any, is_waited_for: bool) -> None:
        """Record the second event after the call."""
        try:
            pair[1].record(None if is_waited_for else self._after(result))
            self._pending.append((row, pair))
            self._thread = self._thread or self._begin_to_look()
        except Exception as error:
            self._hook.give_up(error)

    def _after(self, result: Any) -> Any:
        """A side stream that waits for the call."""
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
                self.collect()
                time.sleep(LOOK_EVERY_S)
        except Exception as error:
            self._hook.give_up(error)

    def collect(self) -> None:
        """Store the durations of completed calls, in order."""
        while self._pending and self._pending[0][1][1].query():
            row, pair = self._pending.popleft()
            self._hook.lasted(row, round(1e6 * pair[0].elapsed_time(pair[1])))
            self._free.append(pair)


def _event() -> Any:
    return CUDA.Event(enable_timing=True)
