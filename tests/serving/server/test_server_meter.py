"""What the step loop costs, as the server counts it: turns alone and shared, and the work of threads beside them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

from serving.server.clients import ask, eventually, house
from serving.server.painting import Painter
from serving.stock import ENGINE_MARKS
from takeup.errors import BadInput
from takeup.serving.model import Request
from takeup.serving.server.backends import ImageJob
from takeup.serving.server.backends.local import StepLoopMeter
from takeup.serving.simulate.designs import counts_of, measured_design

pytestmark = ENGINE_MARKS
needs_clocks = pytest.mark.skipif(
    not hasattr(time, "pthread_getcpuclockid"), reason="needs clocks of threads, as Linux has them"
)


def compute(seconds: float) -> None:
    """Use so much of a processor."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def beside(meter: StepLoopMeter, act: Callable[[], None]) -> None:
    """In a thread that lives on, as those of a pool do."""
    with ThreadPoolExecutor(1, initializer=meter.register) as thread:
        thread.submit(act).result()
        meter.record(4)


def test_turns_without_steps_are_not_counted() -> None:
    meter = StepLoopMeter()
    meter.record(0)
    meter.record(0)

    assert meter.numbers() == {}


def test_turns_are_counted_by_their_rows_from_the_last_one_on() -> None:
    meter = StepLoopMeter()
    began_s = time.perf_counter()
    meter.record(0)
    for num_rows in (2, 4, 2):
        compute(0.002)
        meter.record(num_rows)
    took_s = time.perf_counter() - began_s
    numbers = meter.numbers()

    assert (numbers["turns/2/alone"], numbers["turns/4/alone"]) == (2, 1)
    assert numbers["turn_seconds/2/alone"] >= 0.004
    assert numbers["turn_seconds/2/alone"] + numbers["turn_seconds/4/alone"] <= took_s


@needs_clocks
def test_a_turn_beside_which_somebody_computes_is_shared() -> None:
    meter = StepLoopMeter()
    beside(meter, lambda: compute(0.01))
    numbers = meter.numbers()

    assert numbers["turns/4/shared"] == 1
    assert numbers["beside_seconds"] >= 0.01
    assert "turns/4/alone" not in numbers


@needs_clocks
def test_a_thread_that_only_waits_is_no_company() -> None:
    meter, begun, may_end = StepLoopMeter(), threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        may_end.wait(60)

    with ThreadPoolExecutor(1, initializer=meter.register) as thread:
        thread.submit(wait)
        begun.wait(60)
        for num_rows in (0, 2, 4):  # it waits from the first of these turns on, or soon after
            time.sleep(0.01)
            meter.record(num_rows)
        may_end.set()

    assert meter.numbers().get("turns/4/alone") == 1


@needs_clocks
def test_threads_that_are_gone_stop_nobody() -> None:
    meter = StepLoopMeter()
    thread = threading.Thread(target=meter.register)
    thread.start()
    thread.join()
    meter.record(2)

    assert sum(value for name, value in meter.numbers().items() if name.startswith("turns/2/")) == 1


def test_work_is_counted_in_processor_time_and_waiting_is_not() -> None:
    meter = StepLoopMeter()
    with meter.working("prepare"):
        time.sleep(0.05)
    with meter.working("finish"):
        compute(0.01)
    numbers = meter.numbers()

    assert (numbers["prepare_calls"], numbers["finish_calls"]) == (1, 1)
    assert numbers["prepare_seconds"] < 0.05
    assert numbers["finish_seconds"] >= 0.01


def test_work_that_fails_is_not_counted() -> None:
    meter = StepLoopMeter()
    with pytest.raises(ValueError, match="no"), meter.working("prepare"):
        raise ValueError("no")

    assert meter.numbers() == {}


def test_a_page_shows_turns_by_rows_and_company() -> None:
    class Measured(Painter):
        def numbers(self) -> dict[str, float]:
            return {"turns/4/alone": 3, "turn_seconds/4/alone": 1.5, "turns/8/shared": 1, "beside_seconds": 0.25}

    with house(Measured()) as client:
        counts = counts_of(client.get("/metrics").text)

    assert counts["turns", "4", "alone"] == 3
    assert counts["turn_seconds", "4", "alone"] == 1.5
    assert counts["turns", "8", "shared"] == 1
    assert counts[("beside_seconds",)] == 0.25


def test_a_real_server_says_what_the_simulator_must_know(real: httpx.Client, backend: Any) -> None:
    before = counts_of(real.get("/metrics").text)
    answer = real.post("/v1/images/generations", json=ask(steps=12))
    counts = counts_of(real.get("/metrics").text)
    counts.subtract(before)

    assert answer.status_code == 200
    assert sum(value for key, value in counts.items() if key[0] == "turns") == 12
    assert counts[("prepare_calls",)] == counts[("finish_calls",)] == 1
    assert measured_design(counts).step.points[0][0] == 2  # guidance: two rows
    assert set(backend.numbers()) >= {"prepare_seconds", "finish_seconds"}


@needs_clocks
def test_a_thread_that_has_ended_keeps_what_it_worked() -> None:
    meter = StepLoopMeter()
    beside(meter, lambda: compute(0.01))
    before = meter.numbers()
    meter.record(4)

    assert before["beside_seconds"] >= 0.01
    assert meter.numbers()["beside_seconds"] == before["beside_seconds"]
    assert meter.numbers()["turns/4/alone"] == before.get("turns/4/alone", 0) + 1


def test_a_stage_that_hangs_makes_the_server_not_ready(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("takeup.serving.server.backends.local.MAX_STALL_S", 0.5)
    enough, begun = threading.Event(), threading.Event()

    def hang(_: Any) -> Any:
        begun.set()
        enough.wait(60)
        raise BadInput("it hung")

    monkeypatch.setattr(backend, "_prepared", hang)
    ready = [backend.is_ready]
    order = backend.start(ImageJob(Request("a cat")), lambda *_: None)
    begun.wait(60)
    eventually(lambda: not backend.is_ready)
    enough.set()
    with pytest.raises(BadInput):
        order.done.result(60)
    eventually(lambda: bool(backend.is_ready))

    assert ready == [True]
