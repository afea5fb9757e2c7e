"""A worker does one thing after the other, hands on results and errors, keeps nothing, and ends."""

from __future__ import annotations

import gc
import weakref
from threading import Event, current_thread
from threading import enumerate as all_threads

import pytest

from takeup.training.pipelines.engine.messages import WorkerThread

PATIENCE_S = 20.0


class Load:
    """Something that is held while it is needed."""


def test_calls_are_made_in_order_by_another_thread() -> None:
    worker, seen = WorkerThread("test"), []
    futures = [worker.submit(lambda number=number: seen.append(number)) for number in range(50)]  # type: ignore[misc]
    thread = worker.submit(current_thread).result(PATIENCE_S)
    for future in futures:
        future.result(PATIENCE_S)

    assert seen == list(range(50))
    assert thread is not current_thread()
    assert thread.daemon


def test_an_error_is_handed_on_and_the_next_call_is_made() -> None:
    worker = WorkerThread("test")
    broken, whole = worker.submit(lambda: 1 / 0), worker.submit(lambda: 7)

    with pytest.raises(ZeroDivisionError):
        broken.result(PATIENCE_S)
    assert whole.result(PATIENCE_S) == 7


def test_a_call_waits_for_the_one_before_it() -> None:
    worker, go, done = WorkerThread("test"), Event(), Event()
    worker.submit(lambda: go.wait(PATIENCE_S))
    second = worker.submit(done.set)
    early = done.is_set()

    go.set()
    second.result(PATIENCE_S)

    assert not early
    assert done.is_set()


def test_what_a_call_holds_is_free_when_it_is_done() -> None:
    worker, load = WorkerThread("test"), Load()
    gone = weakref.ref(load)
    done = worker.submit(lambda load=load: None)  # type: ignore[misc]
    del load
    done.result(PATIENCE_S)
    worker.submit(lambda: None).result(PATIENCE_S)  # so that the thread has let go of the call before
    gc.collect()

    assert gone() is None


def test_the_thread_ends_with_its_worker() -> None:
    before = set(all_threads())
    worker = WorkerThread("test")
    started = set(all_threads()) - before

    del worker
    gc.collect()
    for thread in started:
        thread.join(PATIENCE_S)

    assert started
    assert not any(thread.is_alive() for thread in started)
