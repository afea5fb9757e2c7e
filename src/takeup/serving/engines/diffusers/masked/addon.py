"""Edits in the step loop: rows with a template compute their masked tokens, those without one fill it as they go."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from takeup.serving.engines.diffusers.families import Family
from takeup.serving.engines.diffusers.masked.call import Call, Places
from takeup.serving.engines.diffusers.masked.columns import can_mask
from takeup.serving.engines.diffusers.masked.editing import SLOT, Editing, sampled
from takeup.serving.engines.diffusers.masked.hooks import Hooks
from takeup.serving.engines.diffusers.masked.pages import Page, stacked
from takeup.serving.engines.diffusers.masked.tokens import grids_of, places_of, token_mask
from takeup.serving.engines.diffusers.runs import Rows, Run
from takeup.serving.engines.templates.store import TemplateStore
from takeup.serving.engines.templates.templates import Recorder, Template

__all__ = ["Checks", "Edits"]

WHOLE_SHARE = {False: 0.9, True: 0.75}
"""Masks that cover more are computed in the plain way: nothing is loaded, and nothing is kept. Masked convolutions
(True) copy nine pixels for each, which costs more than it saves where most of them are masked."""


@dataclass(frozen=True, slots=True)
class Checks:
    """Every so many steps, such a share of the tokens outside the mask is computed too and compared."""

    every: int = 4
    share: float = 0.01


class Edits:
    """The add-on. Edits with templates may share a call, whatever their masks: it is padded to the largest of them.

    Numbers of tokens are rounded up to multiples of `multiple`, so that calls come in few sizes. With `convolutions`
    U-Nets compute masked pixels in these too, and templates keep what they need for it; None: where a U-Net allows it.
    """

    def __init__(
        self,
        family: Family,
        store: TemplateStore,
        *,
        budget: float = 0.0,
        multiple: int = 64,
        checks: Checks | None = None,
        convolutions: bool | None = None,
    ) -> None:
        self._store, self._budget, self._multiple = store, budget, multiple
        self._checks = checks or Checks()
        self.convolutions = can_mask(family.network) if convolutions is None else convolutions
        self.hooks = Hooks(family.network, convolutions=self.convolutions)
        self._places: tuple[Hashable, dict[int, Places]] = (None, {})

    @property
    def call(self) -> Call:
        """What the hooks know."""
        return self.hooks.call

    @property
    def whole_share(self) -> float:
        """Edits that compute more than this share are made in the plain way."""
        return WHOLE_SHARE[self.convolutions]

    def close(self) -> None:
        """Leave the network as it was."""
        self.hooks.remove()

    # What the loop asks ---------------------------------------------------------------------------------------------

    def joined(self, run: Run) -> None:
        editing = _editing(run)
        if editing is None or editing.key is None:
            return
        for key in editing.keys:
            self._store.wanted(key)
        template = editing.found or self._store.peek(editing.key)  # another edit may have made it since
        if template is not None and self._is_used(editing, template):
            return
        begun = None
        if editing.shared is not None and self._is_used(editing, editing.shared):
            begun = editing.shared
        editing.recorder = Recorder(len(run.timesteps), ~editing.mask, self._budget, begun)

    def is_ready(self, run: Run) -> bool:
        return True

    def plan(self, runs: Sequence[Run]) -> None:
        """Say how much each of them computes."""
        for run in runs:
            editing = _editing(run)
            is_masked = editing is not None and editing.mode == "masked"
            run.computed_share = self._share(run, _edited(run)) if is_masked else 1.0

    def bucket(self, run: Run) -> Hashable:
        editing = _editing(run)
        return None if editing is None or editing.mode == "off" else editing.mode

    @contextmanager
    def around(self, rows: Rows) -> Iterator[None]:
        first = _editing(rows.runs[0])
        self.call.mode = "off" if first is None else first.mode
        if self.call.mode == "masked" and not self.hooks.is_exact:
            self.call.mode = "off"  # LoRAs beside convolutions: this step is made whole
        rows.aids.has_hooks = rows.aids.has_hooks or self.call.mode != "off"
        pages = self._prepare(rows)
        try:
            yield
            self._finish(rows, pages)
        finally:
            self.call.mode = "off"
            self.call.recorded, self.call.fresh, self.call.kept = {}, None, {}

    def left(self, run: Run) -> None:
        editing = _editing(run)
        if editing is None or editing.key is None:
            return
        if editing.recorder is not None and editing.recorder.is_complete and run.is_done:
            self._store.put_soon(editing.key, editing.recorder.finish)
            if editing.shared_key is not None and editing.template is None:
                made = editing.recorder.finish().first(editing.num_shared)
                self._store.put_soon(editing.shared_key, lambda: made)
        for key in editing.keys:
            self._store.released(key)

    # ---------------------------------------------------------------------------------------------------------------

    def _is_used(self, editing: Editing, template: Template) -> bool:
        """Not if it knows too little: then it is made again."""
        editing.use(template)
        if editing.usual_share > self.whole_share:
            editing.template = editing.reader = None
        return editing.template is not None

    def _prepare(self, rows: Rows) -> list[Page]:
        """Lay out what the call needs; the pages of its templates."""
        self.call.recorded, self.call.made = {}, {}
        if self.call.mode != "masked":
            return []
        pages = [_template_page(run) for run in rows.runs]
        num_text = rows.inputs["encoder_hidden_states"].shape[1] if self.hooks.fronted else 0
        self.call.num_front = num_text
        self.call.kept = stacked(pages, self.hooks.fronted, num_text)
        self.call.places = self._places_of(rows)
        self.call.fresh = {} if any(map(self._is_checked, rows.runs)) else None
        return pages

    def _finish(self, rows: Rows, pages: Sequence[Page]) -> None:
        start = 0
        for number, run in enumerate(rows.runs):
            editing, own = _editing(run), slice(start, start + run.num_rows)
            start += run.num_rows
            if editing is None:
                continue
            if self.call.mode == "record":
                assert editing.recorder is not None
                editing.recorder.add({name: kept[own].clone() for name, kept in self.call.recorded.items()})
                if editing.recorder.size_bytes > self._store.room.most_bytes:
                    editing.recorder = None  # there is no room for it anywhere
            editing.stepped(run.computed_share if self.call.mode == "masked" else 1.0)
            if self.call.fresh and self._is_checked(run):
                editing.checked(self._stale_error(editing, own, pages[number]), self._checks.every)

    def _is_checked(self, run: Run) -> bool:
        return self._checks.share > 0 and run.step % self._checks.every == 0

    def _share(self, run: Run, editing: Editing) -> float:
        if not self._is_checked(run):
            return editing.usual_share
        return float(self._computed(run, editing).float().mean())

    def _computed(self, run: Run, editing: Editing) -> torch.Tensor:
        """Tokens of this step, those that are looked at for errors included."""
        assert editing.computed is not None
        if not self._is_checked(run):
            return editing.computed
        return sampled(editing.computed, self._checks.share, run.step)

    def _places_of(self, rows: Rows) -> dict[int, Places]:
        """Made again only if other edits share the call, or others of their tokens are looked at."""
        who = tuple((_edited(run).number, run.step if self._is_checked(run) else -1) for run in rows.runs)
        if self._places[0] != who:
            masks = [self._computed(run, _edited(run)) for run in rows.runs for _ in range(run.num_rows)]
            grid = tuple(masks[0].shape)
            self._places = who, places_of(masks, grids_of((grid[0], grid[1])), self._multiple)
        return self._places[1]

    def _stale_error(self, editing: Editing, rows: slice, page: Page) -> float:
        """How far what was computed of tokens outside the mask is from what was kept of them."""
        assert self.call.fresh is not None
        assert editing.computed is not None
        outside: dict[int, torch.Tensor] = {}
        gone, size = 0.0, 0.0
        for name, fresh in self.call.fresh.items():
            kept = page[name].flatten(2)
            by_row = self.call.places[kept.shape[1]].by_row[rows]
            if kept.shape[1] not in outside:
                outside[kept.shape[1]] = _outside(editing.computed, kept.shape[1])
            chosen = outside[kept.shape[1]][by_row]
            stale = torch.gather(kept, 1, by_row[:, :, None].expand(-1, -1, kept.shape[2]))[chosen].float()
            gone += float((fresh[rows].flatten(2)[chosen].float() - stale).square().sum())
            size += float(stale.square().sum())
        return math.sqrt(gone / max(size, 1e-20))


def _outside(computed: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Tokens of the grid of this size that the mask does not touch."""
    grids = grids_of((computed.shape[0], computed.shape[1]))
    grid = next(grid for grid in grids if grid[0] * grid[1] == num_tokens)
    return ~token_mask(computed, grid).flatten()


def _editing(run: Run) -> Editing | None:
    editing: Editing | None = run.extras.get(SLOT)
    return editing


def _edited(run: Run) -> Editing:
    editing = _editing(run)
    assert editing is not None
    return editing


def _template_page(run: Run) -> Page:
    reader = _edited(run).reader
    assert reader is not None
    return reader.page(run.step)
