"""Token positions of edits that share a call: computed on their first shared call, cached for all steps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from takeup.serving.engines.diffusers.masked.brought import Form
from takeup.serving.engines.diffusers.masked.call import Places
from takeup.serving.engines.diffusers.masked.editing import edited
from takeup.serving.engines.diffusers.masked.stale import Watched, watched_tokens
from takeup.serving.engines.diffusers.masked.tables import Tables
from takeup.serving.engines.diffusers.masked.tokens import Grid, Rooms, grids_of, places_of
from takeup.serving.engines.diffusers.runs import Run
from takeup.serving.policies.mask_rooms import least_dear

MOST_KEPT = 8
"""Groups of edits whose calls take turns."""


@dataclass(slots=True)
class Laid:
    """Token positions of a call, tokens of each edit that are checked for staleness, and gather tables, if any.

    `forms`: which cached activations are read from the template of each edit, once decided.
    """

    places: Mapping[int, Places]
    size: Grid
    watched: Sequence[Watched]
    tables: Tables | None = None
    forms: Sequence[Form] | None = None


class Layouts:
    """LRU cache of layouts for a network with `num_levels` grids; token counts are padded to multiples of `multiple`.

    With a multiple above one, calls reuse the padded sizes of earlier calls if these fit, and so their CUDA graphs.
    """

    def __init__(self, num_levels: int, multiple: int) -> None:
        self.num_levels, self.multiple = num_levels, multiple
        self._kept: OrderedDict[Hashable, Laid] = OrderedDict()
        self._known: dict[Hashable, set[Rooms]] = {}

    def of(self, runs: Sequence[Run]) -> Laid:
        """Layout of these edits, all of which must have a template."""
        who = tuple(edited(run).number for run in runs)
        if who not in self._kept:
            self._kept[who] = self._made(runs)
        self._kept.move_to_end(who)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return self._kept[who]

    def _made(self, runs: Sequence[Run]) -> Laid:
        masks = [_computed(run)[1] for run in runs for _ in range(run.num_rows)]
        size = (masks[0].shape[0], masks[0].shape[1])
        places = places_of(masks, grids_of(size, self.num_levels), self.multiple, partial(self._room, len(masks), size))
        watched = [watched_tokens(*_computed(run), self.num_levels, own) for run, own in slices(runs)]
        return Laid(places, size, watched)

    def _room(self, num_rows: int, size: Grid, needed: Rooms) -> Rooms:
        """Padded sizes for the call: those of an earlier call, if the policy selects them."""
        if self.multiple == 1:
            return needed
        known = self._known.setdefault((num_rows, size), set())
        taken = least_dear(needed, known, num_rows, size[0] * size[1])
        known.add(taken)
        return taken


def slices(runs: Sequence[Run]) -> Iterator[tuple[Run, slice]]:
    """Runs, each with the slice of its rows in the batch."""
    start = 0
    for run in runs:
        yield run, slice(start, start + run.num_rows)
        start += run.num_rows


def _computed(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks of the tokens that the edit needs, and of these plus the tokens checked for staleness."""
    editing = edited(run)
    assert editing.computed is not None
    assert editing.watched is not None
    return editing.computed, editing.watched
