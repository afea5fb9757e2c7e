"""How fast the machine is while something runs: that of a shared host changes by tens of percent within a minute.

A process on each core times a fixed piece of work twenty times a second, in CPU time of its own. Passes take more CPU
time when this does: half of how much they differ, and more, is nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from statistics import fmean
from types import TracebackType

EVERY_S = 0.05
TABLE = {number: number for number in range(20_000)}


class Pace:
    """Watches all cores from `with` to its end."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []

    def __enter__(self) -> Pace:
        self._processes = [self._started(core) for core in sorted(os.sched_getaffinity(0))]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def mean_us(self, begin_s: float, end_s: float) -> float:
        """Of the piece of work, on all cores between these times of the monotonic clock."""
        return fmean(took_us for at_s, took_us in list(self._seen) if begin_s <= at_s <= end_s)

    def _started(self, core: int) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, __file__, str(core)], stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._note, args=(process,), daemon=True).start()
        return process

    def _note(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            at_s, took_us = map(float, line.split())
            self._seen.append((at_s, took_us))


def watch(core: int) -> None:
    """Say when a piece of work was done, and the microseconds it took, until killed."""
    os.sched_setaffinity(0, {core})
    while True:
        begin_ns = time.thread_time_ns()
        work()
        print(time.monotonic(), (time.thread_time_ns() - begin_ns) / 1e3, flush=True)
        time.sleep(EVERY_S)


def work() -> int:
    """About two milliseconds: look things up here and there, and sort them."""
    found = [TABLE[(number * 7919) % 20_000] for number in range(0, 20_000, 3)]
    return sorted(found)[0]


if __name__ == "__main__":
    watch(int(sys.argv[1]))
