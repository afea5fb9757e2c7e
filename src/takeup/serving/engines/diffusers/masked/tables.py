"""Tables in fixed memory: a recorded call reads them where they are, and is told of other tokens by copying."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from copy import deepcopy
from typing import Self

import torch

__all__ = ["Tables"]


class Tables(ABC):
    """Where the tokens of a call are."""

    @abstractmethod
    def tensors(self) -> Iterator[torch.Tensor]:
        """All that calls read."""

    @property
    def sizes(self) -> Hashable:
        """Equal for tables that can take each other's place."""
        return tuple((tuple(one.shape), one.dtype) for one in self.tensors())

    def copied(self) -> Self:
        """The same in memory of its own."""
        return deepcopy(self)

    def take(self, other: Self) -> None:
        """Say what the other says, where everything lies already."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine.copy_(theirs)
