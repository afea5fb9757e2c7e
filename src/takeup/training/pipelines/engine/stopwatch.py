"""Measurements of one rank in an iteration, by the clock of the host or by device events.

They are operation durations, and when messages were handed over and usable. Only iterations whose measurements will be
read are measured; in all others the stopwatch is a no-op.
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


class RankStopwatch(Protocol):
    """Recorder of operation and message times; results can be read `lag` iterations later."""

    lag: int

    @property
    def is_on(self) -> bool:
        """Whether this iteration is measured."""

    def begin(self, measure: bool) -> None:
        """An iteration begins, which is measured or not."""

    def timed(self, kind: OpKind, microbatch: int, compute: Callable[[], Any]) -> Any:
        """Call `compute` and return its result; record its duration, and its end as the hand-over time."""

    def prolong_forward(self, compute: Callable[[], Any]) -> Any:
        """Call `compute` (such as the loss) and return its result; add its duration to the last forward."""

    def note_arrival(self, direction: int, microbatch: int, mark: Any = None) -> None:
        """Record that a message is usable from now on, or from the event `mark` on."""

    def measured(self) -> Ints:
        """Medians of F, I and W, then hand-over times, then arrival times, of the iteration `lag` before this one."""


class HostStopwatch:
    """Times in nanoseconds, by the clock of this process.

    `handed[0]` says when the activations of every micro-batch were ready to be sent, `handed[1]` its gradients;
    `usable[0]` when its activations had arrived from the previous stage, `usable[1]` its gradients from the next.
    """

    lag = 0

    def __init__(self, num_microbatches: int) -> None:
        self.handed = np.zeros((2, num_microbatches), np.int64)
        self.usable = np.zeros((2, num_microbatches), np.int64)
        self.is_on = False
        self._lasted: dict[OpKind, list[int]] = {kind: [] for kind in OpKind}

    def begin(self, measure: bool) -> None:
        """An iteration begins, which is measured or not."""
        self.is_on = measure
        for samples in self._lasted.values():
            samples.clear()

    def timed(self, kind: OpKind, microbatch: int, compute: Callable[[], Any]) -> Any:
        """Call `compute` and return its result; record its duration and, except for W, its end as hand-over."""
        if not self.is_on:
            return compute()
        start = time.perf_counter_ns()
        result = compute()
        end = time.perf_counter_ns()
        self._lasted[kind].append(end - start)
        if kind != OpKind.WEIGHT_GRADIENT:
            self.handed[int(kind != OpKind.FORWARD), microbatch] = end
        return result

    def prolong_forward(self, compute: Callable[[], Any]) -> Any:
        """Call `compute`, such as the loss, and return its result; its duration is added to the last forward."""
        if not self.is_on:
            return compute()
        start = time.perf_counter_ns()
        result = compute()
        self._lasted[OpKind.FORWARD][-1] += time.perf_counter_ns() - start
        return result

    def note_arrival(self, direction: int, microbatch: int, mark: Any = None) -> None:
        """Record that a message is usable from now on."""
        self.usable[direction, microbatch] = time.perf_counter_ns()

    def measured(self) -> Ints:
        """Medians of F, I and W, then all hand-over times, then all arrival times, in nanoseconds."""
        return row_of(self._lasted, self.handed, self.usable)


def row_of(lasted: dict[OpKind, list[int]], handed: Ints, usable: Ints) -> Ints:
    """The row a rank sends to rank 0; how a full backward would split into I and W is unknown, so it is halved."""
    typical = {kind: int(median(samples)) if samples else 0 for kind, samples in lasted.items()}
    times = [typical[kind] for kind in (OpKind.FORWARD, OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT)]
    if full := typical[OpKind.FULL_BACKWARD]:
        times[1:] = [full // 2, full - full // 2]
    return np.concatenate([np.array(times, np.int64), handed.ravel(), usable.ravel()])


# Measurements of one rank on an accelerator, by device events, because calls are asynchronous -------------------------
#
# How it works. An event is recorded after each operation on the compute stream, and after each arrival on the copy
# stream, without synchronization. One iteration later they have completed and are read: all on the clock of the device,
# relative to the start of the iteration. The clocks of two devices need not agree, nor those of two hosts.

NANOSECONDS = 1e6  # in a millisecond, the unit of events


class DeviceEvent(Protocol):
    """A timestamp on the clock of a device, such as a CUDA event."""

    def synchronize(self) -> None:
        """Block until the event has completed."""

    def elapsed_time(self, later: Any, /) -> float:
        """Milliseconds from here to a later mark."""


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


class _IterationEvents:
    """The events of one iteration."""

    def __init__(self, base: DeviceEvent) -> None:
        self.base = base
        self.ops: list[tuple[OpKind, int, DeviceEvent, DeviceEvent]] = []
        self.arrivals: dict[tuple[int, int], DeviceEvent] = {}

    def at(self, mark: DeviceEvent) -> int:
        """Nanoseconds from the start of the iteration; the event is normally already complete."""
        self.base.synchronize()
        mark.synchronize()
        return round(self.base.elapsed_time(mark) * NANOSECONDS)

    def timed_ops(self) -> list[TimedOp]:
        """All operations in launch order."""
        return [TimedOp(kind, microbatch, self.at(start), self.at(end)) for kind, microbatch, start, end in self.ops]


class DeviceStopwatch:
    """As `Stopwatch`, for stages on an accelerator; measurements can be read one iteration later."""

    lag = 1

    def __init__(self, num_microbatches: int, mark: Callable[[], DeviceEvent] = record_event) -> None:
        self._shape = (2, num_microbatches)
        self._mark = mark
        self._now: _IterationEvents | None = None
        self._past: _IterationEvents | None = None

    @property
    def is_on(self) -> bool:
        """Whether this iteration is measured."""
        return self._now is not None

    def begin(self, measure: bool) -> None:
        """Start an iteration, measured or not; the previous one can then be read."""
        if self._now is not None:
            self._past = self._now
        self._now = _IterationEvents(self._mark()) if measure else None

    def timed(self, kind: OpKind, microbatch: int, compute: Callable[[], Any]) -> Any:
        """Call `compute` and return its result, with an event before and after the work it enqueues."""
        if self._now is None:
            return compute()
        start = self._mark()
        result = compute()
        self._now.ops.append((kind, microbatch, start, self._mark()))
        return result

    def prolong_forward(self, compute: Callable[[], Any]) -> Any:
        """Call `compute` and return its result; extend the last forward to its end."""
        result = compute()
        if self._now is not None:
            kind, microbatch, start, _ = self._now.ops[-1]
            self._now.ops[-1] = kind, microbatch, start, self._mark()
        return result

    def note_arrival(self, direction: int, microbatch: int, mark: Any = None) -> None:
        """Record that a message is usable once the event `mark` has completed."""
        if self._now is not None and mark is not None:
            self._now.arrivals[direction, microbatch] = mark

    def timed_ops(self) -> list[TimedOp]:
        """Operations of the last completed measured iteration."""
        return [] if self._past is None else self._past.timed_ops()

    def measured(self) -> Ints:
        """Medians of F, I and W, then all hand-over times, then all arrival times, of the previous iteration."""
        assert self._past is not None
        lasted: dict[OpKind, list[int]] = {kind: [] for kind in OpKind}
        handed, usable = np.zeros(self._shape, np.int64), np.zeros(self._shape, np.int64)
        for kind, microbatch, start, end in self._past.timed_ops():
            lasted[kind].append(end - start)
            if kind != OpKind.WEIGHT_GRADIENT:
                handed[int(kind != OpKind.FORWARD), microbatch] = end
        for place, mark in self._past.arrivals.items():
            usable[place] = self._past.at(mark)
        return row_of(lasted, handed, usable)
