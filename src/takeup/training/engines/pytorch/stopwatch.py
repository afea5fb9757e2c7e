"""What one rank measures in an iteration: how long operations took, and when messages were handed over and usable.

Only iterations whose measurements somebody will read are measured; in all others the stopwatch does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from takeup.training.model import Kind

__all__ = ["NUM_TIMES", "Stopwatch", "Watch", "row_of"]

Ints = npt.NDArray[np.int64]
NUM_TIMES = 3  # F, I and W


class Watch(Protocol):
    """A clock that operations and messages are noted by; `lag` says after how many iterations it can be read."""

    lag: int

    @property
    def is_on(self) -> bool:
        """Whether this iteration is measured."""

    def begin(self, measure: bool) -> None:
        """An iteration begins, which is measured or not."""

    def timed(self, kind: Kind, microbatch: int, compute: Callable[[], Any]) -> Any:
        """What `compute` returns; how long it takes is noted, and its end as a hand-over."""

    def prolong_forward(self, compute: Callable[[], Any]) -> Any:
        """What `compute` returns; the time it takes belongs to the last forward, such as that of the loss."""

    def note_arrival(self, direction: int, microbatch: int, mark: Any = None) -> None:
        """A message can be used from now on, or from the `mark` on."""

    def measured(self) -> Ints:
        """Medians of F, I and W, then all hand-overs, then all arrivals, of the iteration `lag` before this one."""


class Stopwatch:
    """Times in nanoseconds, by the clock of this process.

    `handed[0]` says when the activations of every micro-batch were ready to be sent, `handed[1]` its gradients;
    `usable[0]` when its activations had come from the stage before, `usable[1]` its gradients from the stage behind.
    """

    lag = 0

    def __init__(self, num_microbatches: int) -> None:
        self.handed = np.zeros((2, num_microbatches), np.int64)
        self.usable = np.zeros((2, num_microbatches), np.int64)
        self.is_on = False
        self._lasted: dict[Kind, list[int]] = {kind: [] for kind in Kind}

    def begin(self, measure: bool) -> None:
        """An iteration begins, which is measured or not."""
        self.is_on = measure
        for samples in self._lasted.values():
            samples.clear()

    def timed(self, kind: Kind, microbatch: int, compute: Callable[[], Any]) -> Any:
        """What `compute` returns; the time it took is noted, and the end of it as a hand-over."""
        if not self.is_on:
            return compute()
        start = time.perf_counter_ns()
        result = compute()
        end = time.perf_counter_ns()
        self._lasted[kind].append(end - start)
        if kind != Kind.WEIGHT_GRADIENT:
            self.handed[int(kind != Kind.FORWARD), microbatch] = end
        return result

    def prolong_forward(self, compute: Callable[[], Any]) -> Any:
        """What `compute` returns; the time it took belongs to the last forward, such as that of the loss."""
        if not self.is_on:
            return compute()
        start = time.perf_counter_ns()
        result = compute()
        self._lasted[Kind.FORWARD][-1] += time.perf_counter_ns() - start
        return result

    def note_arrival(self, direction: int, microbatch: int, mark: Any = None) -> None:
        """A message can be used from now on."""
        self.usable[direction, microbatch] = time.perf_counter_ns()

    def measured(self) -> Ints:
        """Medians of F, I and W, then all hand-overs, then all arrivals."""
        return row_of(self._lasted, self.handed, self.usable)


def row_of(lasted: dict[Kind, list[int]], handed: Ints, usable: Ints) -> Ints:
    """What a rank tells the others; of a whole backward nobody knows how it would split, so it is halved."""
    typical = {kind: int(median(samples)) if samples else 0 for kind, samples in lasted.items()}
    times = [typical[kind] for kind in (Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)]
    if full := typical[Kind.FULL_BACKWARD]:
        times[1:] = [full // 2, full - full // 2]
    return np.concatenate([np.array(times, np.int64), handed.ravel(), usable.ravel()])
