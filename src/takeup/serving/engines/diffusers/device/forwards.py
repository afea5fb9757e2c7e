"""Replacement forwards of modules, and the original ones while hooks on layers need them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class ReplacedForwards:
    """The replacement forward of each module."""

    def __init__(self, forwards: Mapping[Any, Any]) -> None:
        self._forwards = dict(forwards)
        self._use()

    def __len__(self) -> int:
        return len(self._forwards)

    @contextmanager
    def separate(self) -> Iterator[None]:
        """Inside, every module uses its original forward."""
        for module in self._forwards:
            del module.forward
        try:
            yield
        finally:
            self._use()

    def _use(self) -> None:
        for module, forward in self._forwards.items():
            module.forward = forward
