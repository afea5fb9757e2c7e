"""Measurements of one rank in an iteration, by the clock of the host or by events of a device.

They are operation durations, and when messages were handed over and usable. Only iterations whose measurements will be
read are measured; in all others the stopwatch is a no-op.

How it works. A mark is made before and after each operation and at each arrival: on the host the time, on a device an
event on the compute or copy stream, without synchronization. Events have completed one iteration later and are read
then. All times are relative to the start of the iteration; the clocks of two devices or hosts need not agree.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from takeup.core.arrays import Ints
from takeup.training.pipelines.schedule import OpKind

NUM_TIMES = 3  # F, I and W
NANOSECONDS = 1e6  # in a millisecond, the unit of events


class TimeMark(Protocol):
    """A moment on the clock of the host or of a device, such as a CUDA event."""

    def synchronize(self) -> None:
        """Block until it has passed."""

    def elapsed_time(self, later: Any, /) -> float:
        """Milliseconds from here to a later mark."""


class HostMark:
    """The current time of the host."""

    def __init__(self) -> None:
        self._at_ns = time.perf_counter_ns()

    def synchronize(self) -> None:
        """Do nothing: it has passed."""

    def elapsed_time(self, later: "HostMark", /) -> float:
        """Milliseconds from here to a later mark."""
        return (later._at_ns - self._at_ns) / NANOSECONDS


def record_event() -> Any:
    """Record a timing event after all work enqueued on the current stream so far."""
    mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    mark.record()
    return mark


class TimedOp(NamedTuple):
    """An operation and when it began and ended, in nanoseconds from the start of the iteration."""

    kind: OpKind
    microbatch: int
    start: int
    end: int


class _IterationMarks:
    """The marks of one iteration."""

    def __init__(self, base: TimeMark) -> None:
        self.base = base
        self.ops: list[tuple[OpKind, int, TimeMark, TimeMark]] = []
        self.arrivals: dict[tuple[int, int], TimeMark] = {}

    def at(self, mark: TimeMark) -> int:
        """Nanoseconds from the start of the iteration; the mark has normally passed already."""
        self.base.synchronize()
        mark.synchronize()
        return round(self.base.elapsed_time(mark) * NANOSECONDS)


class RankStopwatch:
    """Recorder of operation and message times; results can be read `lag` iterations later: 1 for events of a device."""

    def __init__(self, num_microbatches: int, mark: Callable[[], TimeMark] = HostMark, lag: int = 0) -> None:
        self.lag = lag
        self._shape = (2, num_microbatches)
        self._mark = mark
        self._now: _IterationMarks | None = None
        self._past: _IterationMarks | None = None

    @property
    def is_on(self) -> bool:
        """Whether this iteration is measured."""
        return self._now is not None

    @property
    def _readable(self) -> _IterationMarks | None:
        return self._past if self.lag else self._now

    def begin(self, measure: bool) -> None:
        """Start an iteration, measured or not; the previous measured one can then be read."""
        if self._now is not None:
            self._past = self._now
        self._now = _IterationMarks(self._mark()) if measure else None

    def timed(self, kind: OpKind, microbatch: int, compute: Callable[[], Any]) -> Any:
        """Call `compute` and return its result; record its duration, and its end as the hand-over time."""
        if self._now is None:
            return compute()
        start = self._mark()
        result = compute()
        self._now.ops.append((kind, microbatch, start, self._mark()))
        return result

    def prolong_forward(self, compute: Callable[[], Any]) -> Any:
        """Call `compute`, such as the loss, and return its result; extend the last forward to its end."""
        result = compute()
        if self._now is not None:
            kind, microbatch, start, _ = self._now.ops[-1]
            self._now.ops[-1] = kind, microbatch, start, self._mark()
        return result

    def note_arrival(self, direction: int, microbatch: int, mark: Any = None) -> None:
        """Record that a message is usable once `mark` has passed; on the host, from now on."""
        if mark is None and self.lag == 0:
            mark = self._mark()
        if self._now is not None and mark is not None:
            self._now.arrivals[direction, microbatch] = mark

    def timed_ops(self) -> list[TimedOp]:
        """Operations of the iteration that can be read, in launch order."""
        marks = self._readable
        if marks is None:
            return []
        return [TimedOp(kind, microbatch, marks.at(start), marks.at(end)) for kind, microbatch, start, end in marks.ops]

    def measured(self) -> Ints:
        """Medians of F, I and W, then hand-over times, then arrival times: activations first, then gradients."""
        marks = self._readable
        assert marks is not None
        lasted: dict[OpKind, list[int]] = {kind: [] for kind in OpKind}
        handed, usable = np.zeros(self._shape, np.int64), np.zeros(self._shape, np.int64)
        for kind, microbatch, start, end in self.timed_ops():
            lasted[kind].append(end - start)
            if kind != OpKind.WEIGHT_GRADIENT:
                handed[int(kind != OpKind.FORWARD), microbatch] = end
        for place, mark in marks.arrivals.items():
            usable[place] = marks.at(mark)
        return np.concatenate([_times(lasted), handed.ravel(), usable.ravel()])


def _times(lasted: dict[OpKind, list[int]]) -> Ints:
    """Medians of F, I and W; how a full backward would split into I and W is unknown, so it is halved."""
    typical = {kind: int(median(samples)) if samples else 0 for kind, samples in lasted.items()}
    times = [typical[kind] for kind in (OpKind.FORWARD, OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT)]
    if full := typical[OpKind.FULL_BACKWARD]:
        times[1:] = [full // 2, full - full // 2]
    return np.array(times, np.int64)
