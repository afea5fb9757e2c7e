"""What one rank measures on an accelerator: by events of the device, because calls return before their work is done.

How it works. An event is put behind each operation on the stream that computes, and behind each arrival on the stream
that copies; nobody waits for them. One iteration later they have long happened, and are read: all on the one clock of
the device, counted from the start of the iteration. The clocks of two devices need not agree, as those of two hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from takeup.training.engines.pytorch.stopwatch import row_of
from takeup.training.model import Kind

__all__ = ["DeviceStopwatch", "Mark", "TimedOp", "new_mark"]

Ints = npt.NDArray[np.int64]
NANOSECONDS = 1e6  # in a millisecond, the unit of events


class Mark(Protocol):
    """A moment on the clock of a device, as an event of CUDA."""

    def synchronize(self) -> None:
        """Return when it has happened."""

    def elapsed_time(self, later: Any, /) -> float:
        """Milliseconds from here to a later mark."""


def new_mark() -> Any:
    """An event behind all that the current stream was given so far, which will tell when it happened."""
    mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    mark.record()
    return mark


class TimedOp(NamedTuple):
    """An operation and when it began and ended, in nanoseconds from the start of the iteration."""

    kind: Kind
    microbatch: int
    start: int
    end: int


class _Iteration:
    """The marks of one iteration."""

    def __init__(self, base: Mark) -> None:
        self.base = base
        self.ops: list[tuple[Kind, int, Mark, Mark]] = []
        self.arrivals: dict[tuple[int, int], Mark] = {}

    def at(self, mark: Mark) -> int:
        """Nanoseconds from the start of the iteration; the mark was made long ago."""
        self.base.synchronize()
        mark.synchronize()
        return round(self.base.elapsed_time(mark) * NANOSECONDS)

    def timed_ops(self) -> list[TimedOp]:
        """All operations in the order in which they were begun."""
        return [TimedOp(kind, microbatch, self.at(start), self.at(end)) for kind, microbatch, start, end in self.ops]


class DeviceStopwatch:
    """As `Stopwatch`, for stages on an accelerator; what was measured can be read one iteration later."""

    lag = 1

    def __init__(self, num_microbatches: int, mark: Callable[[], Mark] = new_mark) -> None:
        self._shape = (2, num_microbatches)
        self._mark = mark
        self._now: _Iteration | None = None
        self._past: _Iteration | None = None

    @property
    def is_on(self) -> bool:
        """Whether this iteration is measured."""
        return self._now is not None

    def begin(self, measure: bool) -> None:
        """An iteration begins, which is measured or not; the one before can be read."""
        if self._now is not None:
            self._past = self._now
        self._now = _Iteration(self._mark()) if measure else None

    def timed(self, kind: Kind, microbatch: int, compute: Callable[[], Any]) -> Any:
        """What `compute` returns, with a mark before and one behind what it puts on the stream."""
        if self._now is None:
            return compute()
        start = self._mark()
        result = compute()
        self._now.ops.append((kind, microbatch, start, self._mark()))
        return result

    def prolong_forward(self, compute: Callable[[], Any]) -> Any:
        """What `compute` returns; the last forward ends behind it."""
        result = compute()
        if self._now is not None:
            kind, microbatch, start, _ = self._now.ops[-1]
            self._now.ops[-1] = kind, microbatch, start, self._mark()
        return result

    def note_arrival(self, direction: int, microbatch: int, mark: Any = None) -> None:
        """A message can be used from the mark on."""
        if self._now is not None and mark is not None:
            self._now.arrivals[direction, microbatch] = mark

    def timed_ops(self) -> list[TimedOp]:
        """The operations of the last iteration that was measured and is over."""
        return [] if self._past is None else self._past.timed_ops()

    def measured(self) -> Ints:
        """Medians of F, I and W, then all hand-overs, then all arrivals, of the iteration before this one."""
        assert self._past is not None
        lasted: dict[Kind, list[int]] = {kind: [] for kind in Kind}
        handed, usable = np.zeros(self._shape, np.int64), np.zeros(self._shape, np.int64)
        for kind, microbatch, start, end in self._past.timed_ops():
            lasted[kind].append(end - start)
            if kind != Kind.WEIGHT_GRADIENT:
                handed[int(kind != Kind.FORWARD), microbatch] = end
        for place, mark in self._past.arrivals.items():
            usable[place] = self._past.at(mark)
        return row_of(lasted, handed, usable)
