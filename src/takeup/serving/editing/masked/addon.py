"""Edits in the step loop: rows with a template compute masked tokens only, those without one record it."""

import logging
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

import torch

from takeup.serving.diffusion.contract import BatchRows, DenoisingRun, Family, gather
from takeup.serving.diffusion.policies import cheapest_capacity
from takeup.serving.editing.masked.edit_state import SLOT, EditState, ErrorChecks, active_edit, edit_state_of
from takeup.serving.editing.masked.graph_calls import KvMemory, MaskedBatch
from takeup.serving.editing.masked.graph_networks import bind, tables_for
from takeup.serving.editing.masked.hooks import MaskingHooks
from takeup.serving.editing.masked.kv_cache import IndexTables
from takeup.serving.editing.masked.masked_convolutions import supports_masked_convolutions
from takeup.serving.editing.masked.tokens import (
    Grid,
    HookState,
    Mode,
    Page,
    TokenCounts,
    TokenIndices,
    grids_of,
    stacked,
    token_indices,
)
from takeup.serving.editing.templates.store import TemplateStore
from takeup.serving.editing.templates.template import PageReader, Template, TemplateRecorder

# Token positions of edits that share a call: computed on their first shared call, cached for all steps ----------------

MAX_LAYOUTS, MULTIPLE = 8, 64
"""Groups of edits whose calls take turns."""


@dataclass(slots=True)
class CallLayout:
    """Token positions of a call, and gather tables, if any."""

    places: Mapping[int, TokenIndices]
    size: Grid
    tables: IndexTables | None = None


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
        masks = [_computed(run) for run in runs for _ in range(run.num_rows)]
        size = (masks[0].shape[0], masks[0].shape[1])
        places = token_indices(
            masks, grids_of(size, self.num_levels), self.multiple, partial(self._room, len(masks), size)
        )
        return CallLayout(places, size)

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


def _computed(run: DenoisingRun) -> torch.Tensor:
    """Mask of the tokens that the edit needs."""
    computed = active_edit(run).computed
    assert computed is not None
    return computed


# Templates of edits: looked up when an edit joins the batch; recorded by edits without one, step by step --------------

LOG = logging.getLogger(__name__)
NO_CAPACITY = (
    "a template of more than %.1f GiB is not kept, for there is room for %.1f: give it more, or pack templates"
)


class EditTemplates:
    """Keeps templates in a store: every `stride`-th step, packed with an error of at most `budget`.

    Edits that would compute more than `whole_share` of the tokens use no template.
    """

    def __init__(
        self, store: TemplateStore, budget: float, whole_share: float, checks: ErrorChecks, stride: int
    ) -> None:
        self._store, self._whole_share, self._checks = store, whole_share, checks
        self._recorder = partial(TemplateRecorder, budget=budget, stride=stride)
        self._said_no_room = False

    def joined(self, run: DenoisingRun) -> None:
        """Assign a template to an edit, or start recording one."""
        editing = edit_state_of(run)
        if editing is None or editing.key is None:
            return
        self._store.wanted(editing.key)
        template = editing.found or self._store.peek(editing.key)  # another edit may have stored it since
        if template is not None and self._is_used(editing, template):
            return
        editing.recorder = self._recorder(len(run.timesteps), ~editing.mask)

    def left(self, run: DenoisingRun) -> None:
        """Store the template that an edit recorded, if complete, and release its key."""
        editing = edit_state_of(run)
        if editing is None or editing.key is None:
            return
        if editing.recorder is not None and editing.recorder.is_complete and run.is_done:
            self._store.put_soon(editing.key, editing.recorder.finish)
        self._store.released(editing.key)

    def add(self, runs: Sequence[DenoisingRun], recorded: Page) -> None:
        """Add the activations of one step to the recorders of edits that share a call."""
        for run, own in row_slices(runs):
            recorder = active_edit(run).recorder
            assert recorder is not None
            recorder.add({name: kept[own].clone() for name, kept in recorded.items()})
            if recorder.size_bytes > self._store.room.most_bytes:
                active_edit(run).recorder = None
                self._say_no_room(recorder.size_bytes)

    def _is_used(self, editing: EditState, template: Template) -> bool:
        """Use the template unless it covers too few tokens; then it is recorded again."""
        editing.use(template, self._checks)
        if editing.share > self._whole_share:
            editing.template = editing.reader = None
            return False
        return True

    def _say_no_room(self, size_bytes: int) -> None:
        """Warn once, unless the store has no capacity by configuration."""
        room_bytes = self._store.room.most_bytes
        if room_bytes and not self._said_no_room:
            LOG.warning(NO_CAPACITY, size_bytes / 2**30, room_bytes / 2**30)
            self._said_no_room = True


WHOLE_SHARE = {False: 0.9, True: 0.75}
"""Masks that cover more are computed in the plain way: nothing is loaded, and nothing is kept. Masked convolutions
(True) copy nine pixels for each, which costs more than it saves where most of them are masked."""


class MaskedCallOptions(TypedDict, total=False):
    """Options of masked calls, passed to `MaskedEdits`."""

    checks: ErrorChecks | None
    convolutions: bool | None
    binds: bool
    stride: int


class MaskedEdits:
    """The add-on. Edits with templates may share a call, whatever their masks: it is padded to the largest of them.

    With `convolutions` U-Nets mask these too, and templates store the activations this needs; None: where the U-Net
    supports it. If it `binds`, masked calls are captured as CUDA graphs like all others, instead of using hooks; token
    counts are then rounded up to multiples of `MULTIPLE` at least, so that calls have few distinct shapes.

    Templates keep every `stride`-th step. The hooks are installed while at least one edit is running: plain images run
    through the network as it is.
    """

    slot: str | None = SLOT

    def __init__(
        self,
        family: Family,
        store: TemplateStore,
        *,
        budget: float = 0.0,
        checks: ErrorChecks | None = None,
        convolutions: bool | None = None,
        binds: bool = False,
        stride: int = 1,
    ) -> None:
        self.convolutions = supports_masked_convolutions(family.network) if convolutions is None else convolutions
        self.stride, self._family = stride, family
        self.hooks = MaskingHooks(family.network, convolutions=self.convolutions)
        can_bind = self.convolutions or bool(self.hooks.fronted)
        self._memory = KvMemory(family.network.device) if binds and can_bind else None
        num_levels = len(getattr(family.network, "down_blocks", (None,)))
        self.layouts = LayoutCache(num_levels, 1 if self._memory is None else MULTIPLE)
        self._edit_templates = EditTemplates(store, budget, self.whole_share, checks or ErrorChecks(), stride)
        self._num_masked = 0
        self._inside: set[int] = set()
        self.hooks.remove()  # until the first edit

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
        thinned = "" if self.stride == 1 else f", every {self.stride} steps"
        return ("with maps" if self.convolutions else "keys and values") + thinned

    def step_bytes(self, run: DenoisingRun) -> int:
        """Bytes of the activations that a template keeps of a step of this run; no edit may be running."""
        self.hooks.install()
        self.call.mode, self.call.recorded, self.call.made = "record", {}, {}
        try:
            self._family.predict(gather((run,)))
            return sum(one.numel() * one.element_size() for one in self.call.recorded.values())
        finally:
            self.call.mode, self.call.recorded = "off", {}
            self.hooks.remove()

    def close(self) -> None:
        """Remove the hooks from the network."""
        self.hooks.remove()

    # Called by the step loop ----------------------------------------------------------------------------------------

    def joined(self, run: DenoisingRun) -> None:
        self._inside.add(id(run))
        self.hooks.install()
        self._edit_templates.joined(run)
        run.accepts = active_edit(run).accepts

    def is_ready(self, run: DenoisingRun) -> bool:
        return True

    def plan(self, runs: Sequence[DenoisingRun]) -> None:
        """Set the share of tokens that each run computes in its next step."""
        self._num_masked = 0
        for run in runs:
            editing = edit_state_of(run)
            run.computed_share = 1.0
            if editing is not None and editing.mode == "masked":
                run.computed_share = editing.share
                self._num_masked += 1

    def bucket(self, run: DenoisingRun) -> Hashable:
        editing = edit_state_of(run)
        return None if editing is None or editing.mode == "off" else editing.mode

    @contextmanager
    def around(self, rows: BatchRows) -> Iterator[None]:
        first = edit_state_of(rows.runs[0])
        mode: Mode = "off" if first is None else first.mode
        if mode == "masked" and self._memory is not None and not rows.addon_inputs.has_hooks:
            yield from self._bound(rows, self._memory)
        else:
            yield from self._hooked(rows, mode)
        self._count(rows, mode)

    def left(self, run: DenoisingRun) -> None:
        self._inside.discard(id(run))
        if not self._inside:
            self.hooks.remove()
        self._edit_templates.left(run)

    def _bound(self, rows: BatchRows, memory: KvMemory) -> Iterator[None]:
        """A masked call that is captured as a CUDA graph."""
        laid, network = self.layouts.of(rows.runs), self.hooks.network
        if laid.tables is None:
            laid.tables = tables_for(network, laid.places, laid.size, rows.shared, self.layouts.multiple)
        readers = list(map(_reader, rows.runs))
        who = tuple(active_edit(run).number for run in rows.runs)
        asked = rows.runs, readers, who, memory, rows.addon_inputs.weights
        is_alone = len(rows.runs) == self._num_masked
        rows.addon_inputs.masked = MaskedBatch(bind, laid.tables, *asked, is_alone)
        try:
            yield
        except Exception as problem:
            LOG.warning("masked calls are made by hooks from now on: %s", problem)
            self._memory = None
            raise

    def _hooked(self, rows: BatchRows, mode: Mode) -> Iterator[None]:
        """A call with hooks that mask or record; with mode off, a plain call."""
        self.call.mode, self.call.recorded, self.call.made = mode, {}, {}
        rows.addon_inputs.has_hooks = rows.addon_inputs.has_hooks or mode != "off"
        if mode == "masked":
            self._prepare(rows)
        try:
            yield
            if mode == "record":
                self._edit_templates.add(rows.runs, self.call.recorded)
        finally:
            self.call.mode, self.call.recorded, self.call.kept = "off", {}, {}

    def _prepare(self, rows: BatchRows) -> None:
        num_text = rows.inputs["encoder_hidden_states"].shape[1] if self.hooks.fronted else 0
        self.call.num_front, self.call.places = num_text, self.layouts.of(rows.runs).places
        pages = [_reader(run).page(run.step) for run in rows.runs]
        self.call.kept = stacked(pages, self.hooks.fronted, num_text)

    def _count(self, rows: BatchRows, mode: Mode) -> None:
        for run in rows.runs:
            editing = edit_state_of(run)
            if editing is not None:
                editing.stepped(run.computed_share if mode == "masked" else 1.0, mode == "masked")


def _reader(run: DenoisingRun) -> PageReader:
    reader = active_edit(run).reader
    assert reader is not None
    return reader
