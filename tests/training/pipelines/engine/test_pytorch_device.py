"""The stopwatch of accelerators: marks on streams, read one iteration later, without anybody waiting for them."""

from __future__ import annotations

from functools import partial

import pytest

from takeup.training.pipelines.schedule import OpKind

pytest.importorskip("torch")
from takeup.training.pipelines.engine.stopwatch import RankStopwatch


class Stream:
    """A device that is behind: what it was given takes time later, and marks happen when it gets there."""

    def __init__(self) -> None:
        self.at_ms = 100.0
        self.reads_allowed = False

    def compute(self, length_ms: float) -> str:
        self.at_ms += length_ms
        return "done"

    def mark(self) -> Event:
        return Event(self, self.at_ms)


class Event:
    """A mark, which may not be looked at while its iteration runs."""

    def __init__(self, stream: Stream, at_ms: float) -> None:
        self._stream = stream
        self._at_ms = at_ms

    def synchronize(self) -> None:
        assert self._stream.reads_allowed, "somebody waits for the device"

    def elapsed_time(self, later: Event) -> float:
        assert self._stream.reads_allowed
        return later._at_ms - self._at_ms


@pytest.fixture
def stream() -> Stream:
    return Stream()


def run_iteration(watch: RankStopwatch, stream: Stream, op_ms: float, *, measure: bool = True) -> None:
    """Two micro-batches with F, I and W, on a stage in the middle."""
    watch.begin(measure=measure)
    for microbatch in range(2):
        watch.timed(OpKind.FORWARD, microbatch, partial(stream.compute, op_ms))
    for microbatch in range(2):
        watch.timed(OpKind.INPUT_GRADIENT, microbatch, partial(stream.compute, 2 * op_ms))
        watch.timed(OpKind.WEIGHT_GRADIENT, microbatch, partial(stream.compute, 3 * op_ms))


def read(watch: RankStopwatch, stream: Stream) -> list[int]:
    """What was measured, once the device has got there."""
    stream.reads_allowed = True
    return [int(number) for number in watch.measured()]


def test_operations_are_timed_on_the_device_and_read_one_iteration_later(stream: Stream) -> None:
    watch = RankStopwatch(2, stream.mark, lag=1)
    run_iteration(watch, stream, 1.5)
    run_iteration(watch, stream, 70.0, measure=False)

    assert read(watch, stream)[:3] == [1_500_000, 3_000_000, 4_500_000]


def test_hand_overs_are_counted_from_the_start_of_their_iteration(stream: Stream) -> None:
    watch = RankStopwatch(2, stream.mark, lag=1)
    run_iteration(watch, stream, 1.0)
    watch.begin(measure=False)

    assert read(watch, stream)[3:7] == [1_000_000, 2_000_000, 4_000_000, 9_000_000]


def test_arrivals_are_where_their_marks_are_and_zero_without(stream: Stream) -> None:
    watch = RankStopwatch(2, stream.mark, lag=1)
    watch.begin(measure=True)
    stream.compute(4.0)
    copied = stream.mark()
    stream.compute(9.0)
    watch.note_arrival(0, 1, copied)
    watch.note_arrival(1, 0, None)
    watch.begin(measure=False)

    assert read(watch, stream)[7:] == [0, 4_000_000, 0, 0]


def test_if_every_iteration_is_measured_the_one_before_is_read(stream: Stream) -> None:
    watch = RankStopwatch(2, stream.mark, lag=1)
    run_iteration(watch, stream, 1.0)
    run_iteration(watch, stream, 5.0)

    assert read(watch, stream)[0] == 1_000_000
    assert watch.is_on


def test_the_loss_belongs_to_the_forward(stream: Stream) -> None:
    watch = RankStopwatch(1, stream.mark, lag=1)
    watch.begin(measure=True)
    watch.timed(OpKind.FORWARD, 0, partial(stream.compute, 2.0))

    loss = watch.prolong_forward(partial(stream.compute, 0.5))
    watch.begin(measure=False)

    assert loss == "done"
    assert read(watch, stream)[0] == 2_500_000


def test_a_whole_backward_counts_as_two_halves(stream: Stream) -> None:
    watch = RankStopwatch(1, stream.mark, lag=1)
    watch.begin(measure=True)
    watch.timed(OpKind.FULL_BACKWARD, 0, partial(stream.compute, 6.0))
    watch.begin(measure=False)

    assert read(watch, stream)[1:3] == [3_000_000, 3_000_000]


def test_an_iteration_that_is_not_measured_has_no_marks(stream: Stream) -> None:
    def never() -> Event:
        raise AssertionError("a mark was made")

    watch = RankStopwatch(1, never, lag=1)
    watch.begin(measure=False)
    results = watch.timed(OpKind.FORWARD, 0, lambda: "output"), watch.prolong_forward(lambda: "loss")
    watch.note_arrival(0, 0, stream.mark())

    assert results == ("output", "loss")
    assert (watch.is_on, watch.timed_ops()) == (False, [])


def test_operations_can_be_drawn_in_the_order_in_which_they_ran(stream: Stream) -> None:
    watch = RankStopwatch(2, stream.mark, lag=1)
    run_iteration(watch, stream, 1.0)
    watch.begin(measure=False)
    stream.reads_allowed = True

    ops = watch.timed_ops()

    assert [(op.kind.letter, op.microbatch, op.start, op.end) for op in ops[:3]] == [
        ("F", 0, 0, 1_000_000),
        ("F", 1, 1_000_000, 2_000_000),
        ("I", 0, 2_000_000, 4_000_000),
    ]
