"""A scalar still being computed on the device: reading it does not wait for work enqueued after it."""

from __future__ import annotations

from typing import Any

import torch

cuda: Any = torch.cuda  # torch.cuda functions are not annotated


class PendingScalar:
    """Copies a scalar to pinned host memory asynchronously; an event marks completion."""

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
        """The number; blocks until it has been copied."""
        if self._event is not None:
            self._event.synchronize()
        return float(self._number)
