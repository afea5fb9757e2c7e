"""Shutdown of the process groups of a watched rank, without deadlock between Gloo's threads and the interpreter.

Gloo's threads release the tensors of a call shortly after its waiters were notified. Tensors that have passed through
Python need the GIL to be freed, and here all of them have. Two problems are prevented:

- Destroying a group holds the GIL until the group's threads have ended: a deadlock. So groups are kept alive until the
  process ends.
- A finalizing interpreter terminates every thread that requests the GIL, for which C++ aborts the process. So the
  process exits only when these threads are idle, that is, when they hold no tensors any more.
"""

import atexit
import ctypes
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch.distributed as dist

THREADS = b"pt_gloo_runloop"  # thread name in the kernel
TASKS = Path("/proc/self/task")
LOOK_EVERY_S, PATIENCE_S = 0.001, 5.0
ThreadStats = dict[str, bytes]


def keep_group_alive(group: dist.ProcessGroup) -> None:
    """Keep this group alive until process exit, and delay exit until Gloo's threads are idle."""
    delay_exit_until_idle()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


@cache
def delay_exit_until_idle() -> None:
    """Delay process exit until Gloo's threads are idle."""
    atexit.register(wait_for_threads)


def wait_for_threads() -> None:
    """Wait until Gloo's threads stay idle for an interval in which they could have taken the GIL; with a timeout."""
    before: ThreadStats | None = None
    until_s = time.monotonic() + PATIENCE_S
    while TASKS.exists() and time.monotonic() < until_s:
        turns = _stats_if_idle()
        if turns is not None and turns == before:
            return
        before = turns
        time.sleep(LOOK_EVERY_S)


def _stats_if_idle() -> ThreadStats | None:
    """The schedstat of each of Gloo's threads; None if one is running or runnable."""
    turns = {}
    with suppress(FileNotFoundError, ProcessLookupError):  # a thread has just ended
        for task in TASKS.iterdir():
            name, _, state = (task / "stat").read_bytes().partition(b"(")[2].partition(b") ")
            if name == THREADS and not state.startswith(b"S"):
                return None
            if name == THREADS:
                turns[task.name] = (task / "schedstat").read_bytes()
        return turns
    return None
