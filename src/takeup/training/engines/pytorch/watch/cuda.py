"""How long calls on a CUDA device lasted, by events in its streams that are read later; nothing is synchronised.

How it works. An event before the call tells when the device reached it, one after it when it was done. A call that
nobody waits for at once runs on a stream of its own, so the second event is put on a side stream that waits for it. A
thread looks now and then which events have passed, and puts them back for the next calls. A call counts from when the
host made it, and lasts as long as the device needed for it from when it was reached: that is, waited and transferred.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Ends"]

LOOK_EVERY_S = 0.05
MOST_PENDING = 4_096
CUDA: Any = torch.cuda  # whose classes have no types
Pair = tuple[Any, Any]


class Ends:
    """Puts events around calls, and notes in the rows of `hook` how long they lasted."""

    def __init__(self, hook: Any) -> None:
        self._hook = hook
        self._pending: deque[tuple[int, Pair]] = deque()
        self._free: list[Pair] = []
        self._sides: dict[int, Any] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> Pair | None:
        """Events for the call that begins now, the first of them in place; none if nothing can be noted."""
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
        """Put the second event after the call."""
        try:
            pair[1].record(None if is_waited_for else self._after(result))
            self._pending.append((row, pair))
            self._thread = self._thread or self._begin_to_look()
        except Exception as error:
            self._hook.give_up(error)

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
                self.collect()
                time.sleep(LOOK_EVERY_S)
        except Exception as error:
            self._hook.give_up(error)

    def collect(self) -> None:
        """Note the calls that are over, from the first on."""
        while self._pending and self._pending[0][1][1].query():
            row, pair = self._pending.popleft()
            self._hook.lasted(row, round(1e6 * pair[0].elapsed_time(pair[1])))
            self._free.append(pair)


def _event() -> Any:
    return CUDA.Event(enable_timing=True)
