"""While a thread records, no other is busy; and nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")

from takeup.serving.engines.diffusers.device.quiet import CaptureLock

SOON_S, NEVER_S = 20.0, 0.05


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def inside(quiet: CaptureLock, way: str) -> Callable[[], None]:
    def enter() -> None:
        with getattr(quiet, way)():
            pass

    return enter


def waits(done: Future[None]) -> bool:
    with pytest.raises(TimeoutError):
        done.result(NEVER_S)
    return not done.done()


def test_many_may_be_busy_at_once(others: ThreadPoolExecutor) -> None:
    quiet, all_there = CaptureLock(), threading.Barrier(3)

    def work() -> None:
        with quiet.shared():
            all_there.wait(SOON_S)

    for done in [others.submit(work) for _ in range(3)]:
        done.result(SOON_S)


@pytest.mark.parametrize(("mine", "theirs"), [("alone", "busy"), ("alone", "alone"), ("busy", "alone")])
def test_who_is_alone_and_others_wait_for_each_other(others: ThreadPoolExecutor, mine: str, theirs: str) -> None:
    quiet = CaptureLock()
    with getattr(quiet, mine)():
        done = others.submit(inside(quiet, theirs))
        assert waits(done)

    done.result(SOON_S)


def test_who_comes_later_does_not_hold_up_a_recording(others: ThreadPoolExecutor) -> None:
    quiet = CaptureLock()
    with quiet.shared():
        recording = others.submit(inside(quiet, "alone"))
        assert waits(recording)
        later = others.submit(inside(quiet, "busy"))
        assert waits(later)
        inside(quiet, "busy")()  # this thread is busy already

    recording.result(SOON_S)
    later.result(SOON_S)


def test_a_thread_may_be_both_in_any_order() -> None:
    quiet = CaptureLock()
    with quiet.shared(), quiet.exclusive(), quiet.exclusive(), quiet.shared():
        pass
    with quiet.exclusive(), quiet.shared():
        pass
    inside(quiet, "alone")()


def test_two_that_are_busy_may_both_record(others: ThreadPoolExecutor) -> None:
    quiet, both_there = CaptureLock(), threading.Barrier(2)
    together: list[int] = []

    def work() -> None:
        with quiet.shared():
            both_there.wait(SOON_S)
            with quiet.exclusive():
                together.append(1)
                assert len(together) == 1
                together.pop()

    for done in [others.submit(work) for _ in range(2)]:
        done.result(SOON_S)


def test_a_failure_inside_lets_others_in(others: ThreadPoolExecutor) -> None:
    quiet = CaptureLock()
    for way in ("busy", "alone"):
        with pytest.raises(ZeroDivisionError), getattr(quiet, way)():
            raise ZeroDivisionError
    others.submit(inside(quiet, "alone")).result(SOON_S)
