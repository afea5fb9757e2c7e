"""Optional real-time priorities: the site before devices, devices before cores, all before other processes.

The kernel leaves other processes a twentieth of every second by default, so tasks of nearly a second and more without a
pause are interrupted all the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from takeup.errors import MissingEngine

CORE, DEVICE, SITE = 1, 2, 3


@contextmanager
def in_real_time(wanted: bool) -> Iterator[None]:
    """Run this thread at the priority of the site inside the block."""
    if not wanted:
        yield
        return
    if not hasattr(os, "sched_setscheduler"):
        raise MissingEngine("this system has no real-time priorities; leave out real_time")
    before, settings = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(SITE))
    except PermissionError as error:
        raise MissingEngine("this user may not use real-time priorities; leave out real_time, or be root") from error
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, settings)
