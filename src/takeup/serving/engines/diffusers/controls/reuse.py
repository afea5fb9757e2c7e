"""Opt-in reuse of ControlNet residuals over several steps: faster, but the image changes.

Residuals change little from one step to the next. After two computations the change between them is measured, and the
residuals are reused as long as the predicted change since then stays within a bound (see policies/reuse.py). This is
off by default and must pass the quality gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from takeup.serving.engines.diffusers.runs import BatchRows, ControlResiduals, DenoisingRun
from takeup.serving.policies.reuse import steps_to_reuse


class MemoizedResiduals:
    """Residuals of one step, memoized."""

    def __init__(self, source: ControlResiduals) -> None:
        self._source: ControlResiduals | None = source
        self._totals: dict[int, torch.Tensor] = {}

    def total(self, number: int, like: torch.Tensor) -> torch.Tensor:
        """The residual of this number, computed on first use."""
        if number not in self._totals:
            assert self._source is not None
            self._totals[number] = self._source.total(number, like)
        return self._totals[number]

    def write(self, into: Sequence[torch.Tensor]) -> None:
        """Write all residuals, computed on first use."""
        if self._totals:
            for number, tensor in enumerate(into):
                tensor.copy_(self._totals[number])
            return
        assert self._source is not None
        self._source.write(into)
        self._totals = {number: tensor.clone() for number, tensor in enumerate(into)}
        self._source = None  # its streams are reused by the next step

    def change_since(self, older: MemoizedResiduals) -> float:
        """Relative change since the older residuals: the maximum over rows and residuals."""
        changes = [_change(tensor, older._totals[number]) for number, tensor in self._totals.items()]
        return float(torch.stack(changes).max())


@dataclass(slots=True)
class _ReuseEntry:
    """Residuals of a step and of an earlier one, reused for `num_steps` more steps: None until first needed."""

    parts: object
    steps: tuple[int, ...]
    residuals: MemoizedResiduals
    before: MemoizedResiduals | None = None
    num_apart: int = 0
    num_steps: int | None = None


class ResidualReuse:
    """Decides when to recompute residuals. `largest_change` is the largest one measured after reused steps."""

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._asked: dict[tuple[int, ...], _ReuseEntry] = {}
        self.num_asked, self.num_reused, self.largest_change = 0, 0, 0.0

    def find(self, rows: BatchRows, parts: object) -> MemoizedResiduals | None:
        """Residuals that can be reused for these rows, or None."""
        asked = self._asked.get(_key(rows))
        if asked is None or asked.parts != parts:
            return None
        if asked.num_steps is None:
            asked.num_steps = self._steps_to_reuse(asked)
        if _since(rows, asked.steps) > asked.num_steps:
            return None
        self.num_reused += 1
        return asked.residuals

    def keep(self, rows: BatchRows, parts: object, residuals: ControlResiduals) -> ControlResiduals:
        """Cache these residuals for the next steps; returned unchanged if reuse is off."""
        self.num_asked += 1
        if self._bound == 0:
            return residuals
        last = self._asked.pop(_key(rows), None)
        asked = _ReuseEntry(parts, tuple(run.step for run in rows.runs), MemoizedResiduals(residuals))
        if last is not None and last.parts == parts:
            asked.before, asked.num_apart = last.residuals, _since(rows, last.steps)
        for run in rows.runs:  # cached residuals of other groups with this request are stale
            self.forget(run)
        self._asked[_key(rows)] = asked
        return asked.residuals

    def drop(self, rows: BatchRows) -> None:
        """The call failed: its residuals may be incomplete, so drop them."""
        self._asked.pop(_key(rows), None)

    def forget(self, run: DenoisingRun) -> None:
        """Drop all cached residuals of this request."""
        for key in [key for key in self._asked if id(run) in key]:
            del self._asked[key]

    def _steps_to_reuse(self, asked: _ReuseEntry) -> int:
        if asked.before is None:
            return 0
        change, num_apart = asked.residuals.change_since(asked.before), asked.num_apart
        asked.before = None
        if num_apart > 1:
            self.largest_change = max(self.largest_change, change)
        return steps_to_reuse(change, num_apart, self._bound)


def _change(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """The relative change of the row that changed most; 0 for a row without a residual."""
    moved, length = (
        torch.linalg.vector_norm(one.flatten(1), dim=1, dtype=torch.float32) for one in (now - before, now)
    )
    return torch.where(moved == 0, moved, moved / length).max()


def _key(rows: BatchRows) -> tuple[int, ...]:
    return tuple(id(run) for run in rows.runs)


def _since(rows: BatchRows, steps: tuple[int, ...]) -> int:
    """The number of steps made since: the maximum over requests, since they also make steps in other calls."""
    return max(run.step - step for run, step in zip(rows.runs, steps, strict=True))
