"""Index tables at fixed addresses: a CUDA graph reads them in place; new contents are copied in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from copy import deepcopy
from typing import Self

import torch


class IndexTables(ABC):
    """Token positions of a call."""

    @abstractmethod
    def tensors(self) -> Iterator[torch.Tensor]:
        """All tensors that calls read."""

    @property
    def sizes(self) -> Hashable:
        """Shapes and dtypes; tables with equal sizes are interchangeable."""
        return tuple((tuple(one.shape), one.dtype) for one in self.tensors())

    def copied(self) -> Self:
        """Deep copy."""
        return deepcopy(self)

    def take(self, other: Self) -> None:
        """Copy the contents of the other tables in place."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine.copy_(theirs)
