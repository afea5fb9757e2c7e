"""Process groups of a watched rank at its end: Gloo's threads and the interpreter must not need each other then.

Gloo's threads let go of the tensors of a call a moment after whoever waited for it was told. Tensors that have passed
through Python need the interpreter to be freed, and here all of them have. Two things go wrong without us:

- Whoever destroys a group holds the interpreter until the group's threads have ended: both wait for ever. So groups
  are kept, and close with the process.
- An interpreter that ends stops every thread that asks for it, for which C++ aborts the process. So the process ends
  only when these threads rest, that is, when they hold nothing any more.
"""

from __future__ import annotations

import atexit
import ctypes
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch.distributed as dist

__all__ = ["keep_for_ever", "rest_before_the_end", "wait_for_threads"]

THREADS = b"pt_gloo_runloop"  # as the kernel calls them
TASKS = Path("/proc/self/task")
LOOK_EVERY_S, PATIENCE_S = 0.001, 5.0
Turns = dict[str, bytes]


def keep_for_ever(group: dist.ProcessGroup) -> None:
    """Let this group end with the process, and the process when the threads of its groups rest."""
    rest_before_the_end()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


@cache
def rest_before_the_end() -> None:
    """Let the process end when the threads of its groups rest."""
    atexit.register(wait_for_threads)


def wait_for_threads() -> None:
    """Wait until Gloo's threads rest, for a moment in which they could have had the interpreter; but not for long."""
    before: Turns | None = None
    until_s = time.monotonic() + PATIENCE_S
    while TASKS.exists() and time.monotonic() < until_s:
        turns = _turns_if_all_rest()
        if turns is not None and turns == before:
            return
        before = turns
        time.sleep(LOOK_EVERY_S)


def _turns_if_all_rest() -> Turns | None:
    """How often and for how long each of Gloo's threads has run; None if one runs now, or waits for a core."""
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
