"""A number that a device is still computing: whoever asks does not hold up what is sent after it."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Awaited"]

cuda: Any = torch.cuda  # whose functions are not annotated


class Awaited:
    """Copied to the host when it is there."""

    def __init__(self, number: torch.Tensor) -> None:
        self._event: Any = cuda.Event() if number.is_cuda else None
        self._number = number
        if self._event is not None:
            self._number = torch.empty((), dtype=number.dtype, pin_memory=True)
            self._number.copy_(number, non_blocking=True)
            self._event.record()

    @property
    def is_there(self) -> bool:
        return self._event is None or bool(self._event.query())

    @property
    def value(self) -> float:
        """Waits for it."""
        if self._event is not None:
            self._event.synchronize()
        return float(self._number)
