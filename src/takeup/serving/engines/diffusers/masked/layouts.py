"""Token positions of edits that share a call: computed on their first shared call, cached for all steps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from takeup.serving.engines.diffusers.masked.brought import PageForm
from takeup.serving.engines.diffusers.masked.call import TokenIndices
from takeup.serving.engines.diffusers.masked.editing import active_edit
from takeup.serving.engines.diffusers.masked.stale import CheckedTokens, checked_tokens
from takeup.serving.engines.diffusers.masked.tables import IndexTables
from takeup.serving.engines.diffusers.masked.tokens import Grid, TokenCounts, grids_of, token_indices
from takeup.serving.engines.diffusers.runs import DenoisingRun
from takeup.serving.policies.mask_rooms import cheapest_capacity

MAX_LAYOUTS = 8
"""Groups of edits whose calls take turns."""


@dataclass(slots=True)
class CallLayout:
    """Token positions of a call, tokens of each edit that are checked for staleness, and gather tables, if any.

    `forms`: which cached activations are read from the template of each edit, once decided.
    """

    places: Mapping[int, TokenIndices]
    size: Grid
    watched: Sequence[CheckedTokens]
    tables: IndexTables | None = None
    forms: Sequence[PageForm] | None = None


class LayoutCache:
    """LRU cache of layouts for a network with `num_levels` grids; token counts are padded to multiples of `multiple`.

    With a multiple above one, calls reuse the padded sizes of earlier calls if these fit, and so their CUDA graphs.
    """

    def __init__(self, num_levels: int, multiple: int) -> None:
        self.num_levels, self.multiple = num_levels, multiple
        self._kept: OrderedDict[Hashable, CallLayout] = OrderedDict()
        self._known: dict[Hashable, set[TokenCounts]] = {}

    def of(self, runs: Sequence[DenoisingRun]) -> CallLayout:
        """Layout of these edits, all of which must have a template."""
        who = tuple(active_edit(run).number for run in runs)
        if who not in self._kept:
            self._kept[who] = self._made(runs)
        self._kept.move_to_end(who)
        while len(self._kept) > MAX_LAYOUTS:
            self._kept.popitem(last=False)
        return self._kept[who]

    def _made(self, runs: Sequence[DenoisingRun]) -> CallLayout:
        masks = [_computed(run)[1] for run in runs for _ in range(run.num_rows)]
        size = (masks[0].shape[0], masks[0].shape[1])
        places = token_indices(
            masks, grids_of(size, self.num_levels), self.multiple, partial(self._room, len(masks), size)
        )
        watched = [checked_tokens(*_computed(run), self.num_levels, own) for run, own in row_slices(runs)]
        return CallLayout(places, size, watched)

    def _room(self, num_rows: int, size: Grid, needed: TokenCounts) -> TokenCounts:
        """Padded sizes for the call: those of an earlier call, if the policy selects them."""
        if self.multiple == 1:
            return needed
        known = self._known.setdefault((num_rows, size), set())
        taken = cheapest_capacity(needed, known, num_rows, size[0] * size[1])
        known.add(taken)
        return taken


def row_slices(runs: Sequence[DenoisingRun]) -> Iterator[tuple[DenoisingRun, slice]]:
    """Runs, each with the slice of its rows in the batch."""
    start = 0
    for run in runs:
        yield run, slice(start, start + run.num_rows)
        start += run.num_rows


def _computed(run: DenoisingRun) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks of the tokens that the edit needs, and of these plus the tokens checked for staleness."""
    editing = active_edit(run)
    assert editing.computed is not None
    assert editing.watched is not None
    return editing.computed, editing.watched
