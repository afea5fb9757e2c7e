"""The end of a rank: it comes when Gloo's threads rest, and none of them brings the process down."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("torch", reason="needs the package torch")

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("pytorch")]
SET_NAME = 15  # of prctl
REAL_THREADS = """
import torch, torch.distributed as dist
from takeup.training.stragglers.watch import gloo_shutdown

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
gloo_shutdown.wait_for_threads()
print(len(gloo_shutdown._stats_if_idle()))
"""
# A thread that computes needs the interpreter after every operation, as one that frees tensors does.
BUSY_THREAD = """
import ctypes, threading, time
import torch, torch.distributed as dist
from takeup.training.stragglers.watch.gloo_shutdown import keep_group_alive

def compute():
    ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop")
    is_busy.set()
    while time.thread_time() < 0.3:
        torch.ones(10) + torch.ones(10)
    print("rests", flush=True)
    threading.Event().wait()

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
keep_group_alive(dist.group.WORLD)
is_busy = threading.Event()
threading.Thread(target=compute, daemon=True).start()
is_busy.wait()
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_thread_of_that_name_is_waited_for_until_it_rests() -> None:
    from takeup.training.stragglers.watch.gloo_shutdown import wait_for_threads

    begun, may_go, counted = threading.Event(), threading.Event(), []

    def count() -> None:
        ctypes.CDLL(None).prctl(SET_NAME, b"pt_gloo_runloop")
        begun.set()
        while time.thread_time() < 0.1:
            pass
        counted.append(True)
        may_go.wait()

    thread = threading.Thread(target=count)
    thread.start()
    begun.wait()
    wait_for_threads()

    assert counted
    may_go.set()
    thread.join()


def test_threads_of_gloo_have_the_name_that_is_looked_for() -> None:
    done = run(REAL_THREADS)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1


def test_a_process_does_not_end_in_the_middle_of_what_these_threads_do() -> None:
    done = run(BUSY_THREAD)

    assert (done.returncode, done.stdout) == (0, "rests\n"), done.stderr
