"""The stopwatch: medians of operations, and the moments of messages, as integers."""

from __future__ import annotations

from functools import partial

import pytest

from takeup.training.pipelines.engine import stopwatch
from takeup.training.pipelines.engine.stopwatch import RankStopwatch
from takeup.training.pipelines.schedule import OpKind


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000

    def perf_counter_ns(self) -> int:
        return self.now

    def compute(self, length: int) -> str:
        self.now += length
        return "done"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stopwatch, "time", made)
    return made


def started(num_microbatches: int) -> RankStopwatch:
    """A stopwatch in an iteration that is measured."""
    made = RankStopwatch(num_microbatches)
    made.begin(measure=True)
    return made


def test_the_result_of_an_operation_is_handed_through(clock: Clock) -> None:
    assert started(1).timed(OpKind.FORWARD, 0, lambda: clock.compute(5)) == "done"


def test_operations_count_with_the_median_of_what_they_took(clock: Clock) -> None:
    watch = started(3)
    for microbatch, length in enumerate((10, 500, 20)):
        watch.timed(OpKind.FORWARD, microbatch, partial(clock.compute, length))
        watch.timed(OpKind.INPUT_GRADIENT, microbatch, partial(clock.compute, 2 * length))
        watch.timed(OpKind.WEIGHT_GRADIENT, microbatch, partial(clock.compute, 3 * length))

    assert watch.measured()[:3].tolist() == [20, 40, 60]


def test_the_loss_belongs_to_the_forward(clock: Clock) -> None:
    watch = started(1)
    watch.timed(OpKind.FORWARD, 0, lambda: clock.compute(10))

    watch.prolong_forward(lambda: clock.compute(7))

    assert watch.measured()[0] == 17


def test_a_whole_backward_counts_as_two_halves(clock: Clock) -> None:
    watch = started(1)
    watch.timed(OpKind.FULL_BACKWARD, 0, lambda: clock.compute(9))

    assert watch.measured()[1:3].tolist() == [4, 5]


def test_hand_overs_are_the_ends_of_forwards_and_of_gradients_that_are_sent(clock: Clock) -> None:
    watch = started(2)
    for microbatch in range(2):
        watch.timed(OpKind.FORWARD, microbatch, lambda: clock.compute(10))
    watch.timed(OpKind.INPUT_GRADIENT, 0, lambda: clock.compute(10))
    watch.timed(OpKind.WEIGHT_GRADIENT, 0, lambda: clock.compute(10))
    watch.timed(OpKind.FULL_BACKWARD, 1, lambda: clock.compute(10))

    assert watch.measured()[3:7].tolist() == [10, 20, 30, 50]


def test_arrivals_are_kept_by_direction_and_micro_batch(clock: Clock) -> None:
    watch = started(2)
    clock.compute(3)
    watch.note_arrival(0, 1)
    clock.compute(5)
    watch.note_arrival(1, 0)

    assert watch.measured()[7:].tolist() == [0, 3, 8, 0]


def test_a_new_iteration_forgets_how_long_operations_took(clock: Clock) -> None:
    watch = started(1)
    watch.timed(OpKind.FORWARD, 0, lambda: clock.compute(100))
    watch.begin(measure=True)
    watch.timed(OpKind.FORWARD, 0, lambda: clock.compute(3))

    assert watch.measured()[:3].tolist() == [3, 0, 0]


def test_an_iteration_that_is_not_measured_does_not_even_look_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "time", None)
    watch = RankStopwatch(1)
    watch.begin(measure=False)

    results = watch.timed(OpKind.FORWARD, 0, lambda: "output"), watch.prolong_forward(lambda: "loss")

    assert results == ("output", "loss")
    assert not watch.is_on
