"""While a thread records, no other is busy; and nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")

from takeup.serving.diffusion.execution.cuda_graph import CaptureLock

SOON_S, NEVER_S = 20.0, 0.05


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def inside(lock: CaptureLock, way: str) -> Callable[[], None]:
    def enter() -> None:
        with getattr(lock, way)():
            pass

    return enter


def waits(done: Future[None]) -> bool:
    with pytest.raises(TimeoutError):
        done.result(NEVER_S)
    return not done.done()


def test_many_may_be_busy_at_once(others: ThreadPoolExecutor) -> None:
    lock, all_there = CaptureLock(), threading.Barrier(3)

    def work() -> None:
        with lock.shared():
            all_there.wait(SOON_S)

    for done in [others.submit(work) for _ in range(3)]:
        done.result(SOON_S)


@pytest.mark.parametrize(
    ("mine", "theirs"), [("exclusive", "shared"), ("exclusive", "exclusive"), ("shared", "exclusive")]
)
def test_who_is_alone_and_others_wait_for_each_other(others: ThreadPoolExecutor, mine: str, theirs: str) -> None:
    lock = CaptureLock()
    with getattr(lock, mine)():
        done = others.submit(inside(lock, theirs))
        assert waits(done)

    done.result(SOON_S)


def test_who_comes_later_does_not_hold_up_a_recording(others: ThreadPoolExecutor) -> None:
    lock = CaptureLock()
    with lock.shared():
        recording = others.submit(inside(lock, "exclusive"))
        assert waits(recording)
        later = others.submit(inside(lock, "shared"))
        assert waits(later)
        inside(lock, "shared")()  # this thread is busy already

    recording.result(SOON_S)
    later.result(SOON_S)


def test_a_thread_may_be_both_in_any_order() -> None:
    lock = CaptureLock()
    with lock.shared(), lock.exclusive(), lock.exclusive(), lock.shared():
        pass
    with lock.exclusive(), lock.shared():
        pass
    inside(lock, "exclusive")()


def test_two_that_are_busy_may_both_record(others: ThreadPoolExecutor) -> None:
    lock, both_there = CaptureLock(), threading.Barrier(2)
    together: list[int] = []

    def work() -> None:
        with lock.shared():
            both_there.wait(SOON_S)
            with lock.exclusive():
                together.append(1)
                assert len(together) == 1
                together.pop()

    for done in [others.submit(work) for _ in range(2)]:
        done.result(SOON_S)


def test_a_failure_inside_lets_others_in(others: ThreadPoolExecutor) -> None:
    lock = CaptureLock()
    for way in ("shared", "exclusive"):
        with pytest.raises(ZeroDivisionError), getattr(lock, way)():
            raise ZeroDivisionError
    others.submit(inside(lock, "exclusive")).result(SOON_S)
