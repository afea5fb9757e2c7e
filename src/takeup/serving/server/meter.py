"""Cost of the step loop: seconds of its iterations by rows, alone and with concurrent work in the same process.

Threads that prepare and finish images share an interpreter, and perhaps a device, with the loop. So its iterations are
classified: *alone* if no such thread computed, else *shared*, with the CPU time of these threads. From these counts the
simulator derives the costs of steps and of the other work, and their mutual contention.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Literal

ALONE_S = 0.0002  # a thread that wakes up and finds nothing to do
WorkStage = Literal["prepare", "finish"]


class StepLoopMeter:
    """Worker threads call `register` once and wrap work in `working`; the loop calls `record` after each iteration."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clocks: dict[int, float] = {}  # and what they said last
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._turned_s, self._beside_s = time.perf_counter(), 0.0

    def register(self) -> None:
        """Register the calling thread as one that works concurrently with the loop."""
        if hasattr(time, "pthread_getcpuclockid"):  # elsewhere all turns count as alone
            with self._lock:
                self._clocks[time.pthread_getcpuclockid(threading.get_ident())] = 0.0

    @contextmanager
    def working(self, stage: WorkStage) -> Iterator[None]:
        """Count the processor time of the calling thread."""
        began_s = time.thread_time()
        yield
        with self._lock:
            self._counts[f"{stage}_calls"] += 1
            self._counts[f"{stage}_seconds"] += time.thread_time() - began_s

    def record(self, num_rows: int) -> None:
        """Record the end of a loop iteration in which `num_rows` rows made a step; 0 if it was idle."""
        now_s, beside_s = time.perf_counter(), self._worked_s()
        took_s, shared_s = now_s - self._turned_s, beside_s - self._beside_s
        self._turned_s, self._beside_s = now_s, beside_s
        if not num_rows:
            return
        company = "alone" if shared_s < ALONE_S else "shared"
        with self._lock:
            self._counts[f"turns/{num_rows}/{company}"] += 1
            self._counts[f"turn_seconds/{num_rows}/{company}"] += took_s
            self._counts["beside_seconds"] += shared_s * (company == "shared")

    def numbers(self) -> Mapping[str, float]:
        """All counts and seconds so far."""
        with self._lock:
            return dict(self._counts)

    def _worked_s(self) -> float:
        for clock in list(self._clocks):
            with suppress(OSError):  # its thread is gone: what it worked stays
                self._clocks[clock] = time.clock_gettime(clock)
        return sum(self._clocks.values())
