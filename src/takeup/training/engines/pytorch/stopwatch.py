"""What one rank measures in an iteration: how long operations took, and when messages were handed over and usable."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.training.model import Kind

__all__ = ["Stopwatch"]

Ints = npt.NDArray[np.int64]
NUM_TIMES = 3  # F, I and W


class Stopwatch:
    """Times in nanoseconds, by the clock of this process.

    `handed[0]` says when the activations of every micro-batch were ready to be sent, `handed[1]` its gradients;
    `usable[0]` when its activations had come from the stage before, `usable[1]` its gradients from the stage behind.
    """

    def __init__(self, num_microbatches: int) -> None:
        self.handed = np.zeros((2, num_microbatches), np.int64)
        self.usable = np.zeros((2, num_microbatches), np.int64)
        self._lasted: dict[Kind, list[int]] = {kind: [] for kind in Kind}

    def clear(self) -> None:
        """Begin an iteration."""
        for samples in self._lasted.values():
            samples.clear()

    def timed(self, kind: Kind, microbatch: int, compute: Callable[[], Any]) -> Any:
        """What `compute` returns; the time it took is noted, and the end of it as a hand-over."""
        start = time.perf_counter_ns()
        result = compute()
        end = time.perf_counter_ns()
        self._lasted[kind].append(end - start)
        if kind != Kind.WEIGHT_GRADIENT:
            self.handed[int(kind != Kind.FORWARD), microbatch] = end
        return result

    def prolong_forward(self, compute: Callable[[], Any]) -> Any:
        """What `compute` returns; the time it took belongs to the last forward, such as that of the loss."""
        start = time.perf_counter_ns()
        result = compute()
        self._lasted[Kind.FORWARD][-1] += time.perf_counter_ns() - start
        return result

    def note_arrival(self, direction: int, microbatch: int) -> None:
        """A message can be used from now on."""
        self.usable[direction, microbatch] = time.perf_counter_ns()

    def measured(self) -> Ints:
        """Medians of F, I and W, then all hand-overs, then all arrivals."""
        times = [*map(self._typical, (Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT))]
        if full := self._typical(Kind.FULL_BACKWARD):
            times[1:] = [full // 2, full - full // 2]  # nobody knows how it would split
        return np.concatenate([np.array(times, np.int64), self.handed.ravel(), self.usable.ravel()])

    def _typical(self, kind: Kind) -> int:
        return int(median(self._lasted[kind])) if self._lasted[kind] else 0
