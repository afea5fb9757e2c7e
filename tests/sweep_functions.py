"""Functions for the tests of sweeps, in a module that worker processes can import."""

from __future__ import annotations

import os
import signal
import time

from takeup.errors import BadTrace, UnknownName


def square(point: int) -> int:
    return point * point


def finish_in_reverse(point: int) -> int:
    time.sleep(0.05 * (3 - point))
    return point


def worker_of(point: int) -> int:
    return os.getpid()


def fail_at_two(point: int) -> int:
    if point == 2:
        raise BadTrace("trace.csv", "'x' is not a number", line=7, column="time_s")
    return point


def unknown(point: int) -> int:
    raise UnknownName("policy", "lrcc", ["lru", "lrc"])


def divide_by(point: int) -> float:
    return 1 / point


def die(point: int) -> None:
    if point:
        os.kill(os.getpid(), signal.SIGKILL)
