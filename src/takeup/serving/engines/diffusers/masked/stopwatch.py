"""How long a device computes between two points of what it is sent, without waiting for it."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Stopwatch"]

cuda: Any = torch.cuda  # whose functions are not annotated


class Stopwatch:
    """Knows the shortest time so far. One that is not on, where there is no device, knows none."""

    def __init__(self, is_on: bool) -> None:
        self._ends: list[Any] = [cuda.Event(enable_timing=True) for _ in range(2)] if is_on else []
        self._runs = self._is_waited_for = False
        self._least_s: float | None = None

    @property
    def least_s(self) -> float | None:
        """Seconds, as far as they are known by now."""
        if self._is_waited_for and self._ends[1].query():
            spent_s = self._ends[0].elapsed_time(self._ends[1]) / 1e3
            self._least_s = spent_s if self._least_s is None else min(self._least_s, spent_s)
            self._is_waited_for = False
        return self._least_s

    def start(self) -> None:
        """From here, unless the time before is not known yet."""
        _ = self.least_s
        self._runs = bool(self._ends) and not self._is_waited_for
        if self._runs:
            self._ends[0].record()

    def stop(self) -> None:
        """Up to here."""
        if self._runs:
            self._ends[1].record()
            self._runs, self._is_waited_for = False, True

    def forget(self) -> None:
        """What began was not meant."""
        self._runs = False
