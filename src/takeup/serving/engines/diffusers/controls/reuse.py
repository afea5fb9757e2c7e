"""Residuals that are used for more than one step, if that is wanted: faster, and no longer the same image.

What a ControlNet says changes little from one step to the next. With `every=2` it is asked in every second step of a
request, and what it said is used again in between. That is never done unless it is asked for, and belongs before the
quality gate.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

import torch

from takeup.serving.engines.diffusers.runs import Residuals, Rows

__all__ = ["Keeping", "Reuse"]

MOST_KEPT = 8


class Keeping:
    """Residuals of one step, which remember what they were."""

    def __init__(self, source: Residuals) -> None:
        self._source: Residuals | None = source
        self._totals: dict[int, torch.Tensor] = {}

    def total(self, number: int, like: torch.Tensor) -> torch.Tensor:
        """The residual of this number, computed or remembered."""
        if number not in self._totals:
            assert self._source is not None
            self._totals[number] = self._source.total(number, like)
        return self._totals[number]

    def write(self, into: Sequence[torch.Tensor]) -> None:
        """All residuals, computed or remembered."""
        if self._totals:
            for number, tensor in enumerate(into):
                tensor.copy_(self._totals[number])
            return
        assert self._source is not None
        self._source.write(into)
        self._totals = {number: tensor.clone() for number, tensor in enumerate(into)}
        self._source = None  # its streams belong to the next step now


class Reuse:
    """Says when to ask ControlNets again: in every `every`-th step of a request, and whenever something changed."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._kept: OrderedDict[Hashable, tuple[object, Keeping]] = OrderedDict()

    def find(self, rows: Rows, parts: object) -> Keeping | None:
        """What can be used again for these rows, if anything can."""
        is_due = any(run.step % self._every == 0 for run in rows.runs)
        old_parts, kept = self._kept.get(_key(rows), (None, None))
        return kept if not is_due and old_parts == parts else None

    def keep(self, rows: Rows, parts: object, residuals: Residuals) -> Residuals:
        """Remember these for the next steps; the same, if there are none in which they are used."""
        if self._every == 1:
            return residuals
        kept = Keeping(residuals)
        self._kept[_key(rows)] = parts, kept
        self._kept.move_to_end(_key(rows))
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return kept


def _key(rows: Rows) -> Hashable:
    return tuple(id(run) for run in rows.runs)
