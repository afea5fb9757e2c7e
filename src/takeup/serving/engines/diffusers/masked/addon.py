"""Edits in the step loop: rows with a template compute masked tokens only, those without one record it."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypedDict

import torch

from takeup.serving.engines.diffusers.families import Family
from takeup.serving.engines.diffusers.masked.binding import bind, tables_for
from takeup.serving.engines.diffusers.masked.bound import KvMemory, MaskedBatch
from takeup.serving.engines.diffusers.masked.brought import BlockForms, TemplatePages
from takeup.serving.engines.diffusers.masked.call import HookState, Mode
from takeup.serving.engines.diffusers.masked.columns import supports_masked_convolutions
from takeup.serving.engines.diffusers.masked.editing import EditState, active_edit, edit_state_of
from takeup.serving.engines.diffusers.masked.formats import ChooseForms, load_all_kv
from takeup.serving.engines.diffusers.masked.from_rows import KvFromRows
from takeup.serving.engines.diffusers.masked.hooks import MaskingHooks
from takeup.serving.engines.diffusers.masked.keeping import EditTemplates
from takeup.serving.engines.diffusers.masked.layouts import CallLayout, LayoutCache
from takeup.serving.engines.diffusers.masked.pages import PLACED, stacked
from takeup.serving.engines.diffusers.masked.stale import CheckedTokens, cached_values, stale_error
from takeup.serving.engines.diffusers.runs import BatchRows, DenoisingRun
from takeup.serving.engines.templates.store import TemplateStore

WHOLE_SHARE = {False: 0.9, True: 0.75}
"""Masks that cover more are computed in the plain way: nothing is loaded, and nothing is kept. Masked convolutions
(True) copy nine pixels for each, which costs more than it saves where most of them are masked."""

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StalenessChecks:
    """Staleness checks: `share` of the tokens outside the mask is computed too, and compared `every` N steps."""

    every: int = 4
    share: float = 0.005


class MaskedCallOptions(TypedDict, total=False):
    """Options of masked calls, passed to `MaskedEdits`."""

    checks: StalenessChecks | None
    convolutions: bool | None
    binds: bool
    formats: ChooseForms | None


class MaskedEdits:
    """The add-on. Edits with templates may share a call, whatever their masks: it is padded to the largest of them.

    With `convolutions` U-Nets mask these too, and templates store the activations this needs; None: where the U-Net
    supports it. If it `binds`, masked calls are captured as CUDA graphs like all others, instead of using hooks; token
    counts are then rounded up to multiples of `multiple` at least, so that calls have few distinct shapes.

    With `formats`, templates store block inputs (rows) in addition to keys and values, with half as many bytes.
    Captured calls whose templates are not on the device then load, per block, what `formats` selects.
    """

    def __init__(
        self,
        family: Family,
        store: TemplateStore,
        *,
        budget: float = 0.0,
        multiple: int = 64,
        checks: StalenessChecks | None = None,
        convolutions: bool | None = None,
        binds: bool = False,
        formats: ChooseForms | None = None,
    ) -> None:
        self._checks = checks or StalenessChecks()
        self.convolutions = supports_masked_convolutions(family.network) if convolutions is None else convolutions
        self.hooks = MaskingHooks(family.network, convolutions=self.convolutions, rows=formats is not None)
        self._from_rows, self._formats = KvFromRows(family.network), formats or load_all_kv
        can_bind = self.convolutions or bool(self.hooks.fronted)
        self._memory = KvMemory(family.network.device) if binds and can_bind else None
        num_levels = len(getattr(family.network, "down_blocks", (None,)))
        self.layouts = LayoutCache(num_levels, 1 if self._memory is None else multiple)
        self._edit_templates = EditTemplates(store, budget, self.whole_share, self._watch)
        self._num_masked = 0

    @property
    def call(self) -> HookState:
        """State shared by the hooks."""
        return self.hooks.call

    @property
    def whole_share(self) -> float:
        """Edits that would compute more than this share of the tokens compute all of them."""
        return WHOLE_SHARE[self.convolutions]

    @property
    def what_is_kept(self) -> str:
        """Which activations templates contain; part of their key."""
        rows = "" if self._formats is load_all_kv else ", rows"
        return ("with maps" if self.convolutions else "keys and values") + rows

    def close(self) -> None:
        """Remove the hooks from the network."""
        self.hooks.remove()

    # Called by the step loop ----------------------------------------------------------------------------------------

    def joined(self, run: DenoisingRun) -> None:
        self._edit_templates.joined(run)

    def is_ready(self, run: DenoisingRun) -> bool:
        return True

    def plan(self, runs: Sequence[DenoisingRun]) -> None:
        """Set the share of tokens that each run computes in its next step."""
        self._num_masked = 0
        for run in runs:
            editing = edit_state_of(run)
            run.computed_share = 1.0
            if editing is not None:
                editing.settle()
                if editing.mode == "masked":
                    run.computed_share = editing.share
                    self._num_masked += 1

    def bucket(self, run: DenoisingRun) -> Hashable:
        editing = edit_state_of(run)
        return None if editing is None or editing.mode == "off" else editing.mode

    @contextmanager
    def around(self, rows: BatchRows) -> Iterator[None]:
        first = edit_state_of(rows.runs[0])
        mode: Mode = "off" if first is None else first.mode
        if mode == "masked" and not self.hooks.is_exact:
            mode = "off"  # unmerged LoRAs on convolutions: this step computes all tokens
        if mode == "masked" and self._memory is not None and not rows.addon_inputs.has_hooks:
            yield from self._bound(rows, self._memory)
        else:
            yield from self._hooked(rows, mode)
        self._count(rows, mode)

    def left(self, run: DenoisingRun) -> None:
        self._edit_templates.left(run)

    # ---------------------------------------------------------------------------------------------------------------

    def _watch(self, editing: EditState, seed: int) -> None:
        editing.watch(self._checks.share, seed, self.layouts.num_levels)

    def _bound(self, rows: BatchRows, memory: KvMemory) -> Iterator[None]:
        """A masked call that is captured as a CUDA graph."""
        laid, network = self.layouts.of(rows.runs), self.hooks.network
        if laid.tables is None:
            laid.tables = tables_for(network, laid.places, laid.size, rows.shared, self.layouts.multiple)
        edits = [active_edit(run) for run in rows.runs]
        pages = self._formed(laid, rows.runs, memory.watch(laid.tables.sizes).least_s)
        who = tuple(one.number for one in edits)
        asked = rows.runs, pages, who, memory, self._looked_at(rows), rows.addon_inputs.weights
        is_alone = len(rows.runs) == self._num_masked
        masked = rows.addon_inputs.masked = MaskedBatch(bind, laid.tables, *asked, is_alone)
        try:
            yield
        except Exception as problem:
            LOG.warning("masked calls are made by hooks from now on: %s", problem)
            self._memory = None
            raise
        for place, error in masked.errors.items():
            edits[place].checked(error, self._checks.every)

    def _formed(self, laid: CallLayout, runs: Sequence[DenoisingRun], compute_s: float | None) -> list[TemplatePages]:
        """Template pages of each run, in the best known form; the choice is cached in `laid`."""
        pages = [self._pages(run) for run in runs]
        if laid.forms is None:
            has_loras = any(run.request.loras for run in runs)  # may not be merged before the call
            chosen = BlockForms() if has_loras else self._formats(pages, compute_s)
            forms = [one.formed(chosen or BlockForms(), PLACED) for one in pages]
            laid.forms = None if chosen is None else forms
        return [replace(one, form=form) for one, form in zip(pages, laid.forms or forms, strict=True)]

    def _pages(self, run: DenoisingRun) -> TemplatePages:
        reader = active_edit(run).reader
        assert reader is not None
        return TemplatePages(reader, run, self._from_rows)

    def _hooked(self, rows: BatchRows, mode: Mode) -> Iterator[None]:
        """A call with hooks that mask or record; with mode off, a plain call."""
        self.call.mode, self.call.recorded, self.call.made = mode, {}, {}
        rows.addon_inputs.has_hooks = rows.addon_inputs.has_hooks or mode != "off"
        if mode == "masked":
            self._prepare(rows)
        watched = self._looked_at(rows) if mode == "masked" else {}
        try:
            before = self._taken(watched)
            yield
            if mode == "record":
                self._edit_templates.add(rows.runs, self.call.recorded)
            for place, after in self._taken(watched).items():
                active_edit(rows.runs[place]).checked(stale_error(before[place], after), self._checks.every)
        finally:
            self.call.mode, self.call.recorded, self.call.kept = "off", {}, {}

    def _prepare(self, rows: BatchRows) -> None:
        num_text = rows.inputs["encoder_hidden_states"].shape[1] if self.hooks.fronted else 0
        self.call.num_front, self.call.places = num_text, self.layouts.of(rows.runs).places
        pages = [self._pages(run).keys(run.step) for run in rows.runs]
        self.call.kept = stacked(pages, self.hooks.fronted, num_text)

    def _taken(self, watched: Mapping[int, CheckedTokens]) -> dict[int, torch.Tensor]:
        return {place: cached_values(self.call.kept, one, self.call.num_front) for place, one in watched.items()}

    def _count(self, rows: BatchRows, mode: Mode) -> None:
        for run in rows.runs:
            editing = edit_state_of(run)
            if editing is not None:
                editing.stepped(run.computed_share if mode == "masked" else 1.0)

    def _looked_at(self, rows: BatchRows) -> dict[int, CheckedTokens]:
        """Tokens to check for staleness in this step, by index of the run."""
        if not self._checks.share:
            return {}
        watched = self.layouts.of(rows.runs).watched
        return {place: watched[place] for place, run in enumerate(rows.runs) if run.step % self._checks.every == 0}
