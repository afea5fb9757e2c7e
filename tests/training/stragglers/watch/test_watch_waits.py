"""Calls that nobody waits for: their ends are noted in order, and destroying their group never hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install 'takeup[torch]'"),
    pytest.mark.xdist_group("pytorch"),
]
BUSY_AT_THE_END = """
import tempfile
from pathlib import Path
import torch, torch.distributed as dist
from takeup.training.stragglers.watch.hook import install
from takeup.training.stragglers.watch.call_ends import CallEndThreads

torch.set_num_threads(1)
folder = Path(tempfile.mkdtemp())
store = dist.FileStore(str(folder / "store"), 1)
for attempt in range(30):
    if attempt == 0:
        hook, ended = install(folder), []
        hook.waits = CallEndThreads(ended.append)
    dist.init_process_group("gloo", store=dist.PrefixStore(str(attempt), store), rank=0, world_size=1)
    works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(20)]
    sum(range(20_000))  # holds the interpreter while Gloo's threads finish
    dist.destroy_process_group()
    hook.new_epoch()
print(len(ended))
"""
OVER_BY_THE_NEXT = """
import sys
from pathlib import Path
import torch, torch.distributed as dist
from takeup.training.stragglers.watch.hook import install
from takeup.training.stragglers.watch.ring_reader import RingReader
from takeup.training.stragglers.watch.call_ends import CallEndThreads

torch.set_num_threads(1)
CallEndThreads._follow = lambda self, calls: None  # threads that never get a core
hook = install(Path(sys.argv[1]))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(50):
    work = dist.all_reduce(torch.ones(10), async_op=True)
    while not work.is_completed():  # as DDP does, without telling anybody in Python
        pass
    dist.all_reduce(torch.ones(20))
hook.waits.close()
calls = RingReader(next(Path(sys.argv[1]).glob("*.ring"))).read()
for asked, other in zip(calls[:-1:2], calls[1::2]):
    print(other["began_ns"] - asked["ended_ns"])
"""


class FakeWork:
    """A call that ends when told, or fails."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.fails = False
        self.knows = True

    def wait(self, moment: timedelta) -> None:
        self.may_end.wait(moment.total_seconds())
        if self.fails or not self.may_end.is_set():
            raise RuntimeError("the other rank is gone")

    def is_completed(self) -> bool:
        return self.knows and self.may_end.is_set()


def test_ends_of_a_group_are_told_in_order_also_of_calls_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    from takeup.training.stragglers.watch import call_ends as waits

    monkeypatch.setattr(waits, "PLAIN_WAIT", FakeWork.wait)
    ended: list[int] = []
    waiting = waits.CallEndThreads(ended.append)
    works = [FakeWork() for _ in range(3)]
    works[1].fails = True
    works[2].knows = False  # that it is over; it can only be waited for

    for row, work in enumerate(works):
        waiting.add(1, row, work)
    for work in reversed(works):
        work.may_end.set()
    waiting.close()

    assert ended == [0, 1, 2]


def test_a_slow_group_does_not_hold_up_another(monkeypatch: pytest.MonkeyPatch) -> None:
    from takeup.training.stragglers.watch import call_ends as waits

    monkeypatch.setattr(waits, "PLAIN_WAIT", FakeWork.wait)
    told = threading.Event()
    waiting = waits.CallEndThreads(lambda row: told.set() if row == 1 else None)
    slow, fast = FakeWork(), FakeWork()

    waiting.add(1, 0, slow)
    waiting.add(2, 1, fast)
    fast.may_end.set()

    assert told.wait(10)
    slow.may_end.set()
    waiting.close()


def test_what_is_over_when_the_next_call_begins_is_told_before_it_and_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from takeup.training.stragglers.watch import call_ends as waits

    may_look = threading.Event()
    monkeypatch.setattr(
        waits, "PLAIN_WAIT", lambda work, moment: may_look.wait(10)
    )  # a thread that does not get the core
    ended: list[int] = []
    waiting = waits.CallEndThreads(ended.append)
    over, under_way = FakeWork(), FakeWork()

    waiting.add(1, 0, over)
    waiting.add(1, 1, under_way)
    over.may_end.set()
    waiting.settle()

    assert ended == [0]
    under_way.may_end.set()
    may_look.set()
    waiting.close()
    assert ended == [0, 1]


def test_no_thread_is_left_for_a_call_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from takeup.training.stragglers.watch import call_ends as waits

    monkeypatch.setattr(waits, "PLAIN_WAIT", FakeWork.wait)
    monkeypatch.setattr(waits, "PATIENCE_S", 0.01)
    ended: list[int] = []
    waiting = waits.CallEndThreads(ended.append)

    waiting.add(1, 0, FakeWork())
    waiting.add(1, 1, FakeWork())
    waiting.close()

    assert ended == []
    assert not any(thread.name == "takeup-ends" for thread in threading.enumerate())


def test_a_real_call_that_is_over_is_told_as_such(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OVER_BY_THE_NEXT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    before_ns = [int(each) for each in done.stdout.split()]
    assert len(before_ns) == 50
    assert min(before_ns) >= 0


def test_groups_can_be_destroyed_while_their_calls_end() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUSY_AT_THE_END],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 30 * 20
