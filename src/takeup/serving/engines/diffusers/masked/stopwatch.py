"""Device time between two points of a CUDA stream, measured with events and without synchronizing."""

from __future__ import annotations

from typing import Any

import torch

cuda: Any = torch.cuda  # torch.cuda functions are not annotated


class StreamStopwatch:
    """Keeps the shortest time measured. If not `is_on` (no CUDA device), it measures nothing."""

    def __init__(self, is_on: bool) -> None:
        self._ends: list[Any] = [cuda.Event(enable_timing=True) for _ in range(2)] if is_on else []
        self._runs = self._is_waited_for = False
        self._least_s: float | None = None

    @property
    def least_s(self) -> float | None:
        """Shortest time in seconds among completed measurements, or None."""
        if self._is_waited_for and self._ends[1].query():
            spent_s = self._ends[0].elapsed_time(self._ends[1]) / 1e3
            self._least_s = spent_s if self._least_s is None else min(self._least_s, spent_s)
            self._is_waited_for = False
        return self._least_s

    def start(self) -> None:
        """Start a measurement, unless the previous one is still pending on the device."""
        _ = self.least_s
        self._runs = bool(self._ends) and not self._is_waited_for
        if self._runs:
            self._ends[0].record()

    def stop(self) -> None:
        """End the measurement, if one was started."""
        if self._runs:
            self._ends[1].record()
            self._runs, self._is_waited_for = False, True

    def forget(self) -> None:
        """Discard the measurement that was started."""
        self._runs = False
