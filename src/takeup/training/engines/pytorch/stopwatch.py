"""Measurements of one rank in an iteration: operation durations, and when messages were handed over and usable.

Only iterations whose measurements will be read are measured; in all others the stopwatch is a no-op.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Protocol

import numpy as np

from takeup.core.arrays import Ints
from takeup.training.model.schedule import OpKind

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
