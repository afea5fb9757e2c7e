"""Keys and values that are made from rows are those that were kept, and edits with them the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.editing.networks import FAMILY_NAMES
from serving.stock import ENGINE_MARKS, gap
from takeup.serving.diffusion.contract import DenoisingRun, gather
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine, Ticket
from takeup.serving.diffusion.engine.tiny import build
from takeup.serving.diffusion.execution.executors import CudaGraphExecutor
from takeup.serving.editing.contract import EditRequest
from takeup.serving.editing.masked import graph_calls as stopwatch
from takeup.serving.editing.masked import template_reader as formats
from takeup.serving.editing.masked.edit_state import ErrorChecks, active_edit
from takeup.serving.editing.masked.editor import MaskedEditor, report_of
from takeup.serving.editing.masked.hooks import MaskingHooks
from takeup.serving.editing.masked.template_reader import BlockForms, KvFromRows, TemplatePages, page_selection
from takeup.serving.editing.masked.tokens import ROWS
from takeup.serving.editing.masked.transformer_blocks import blocks_of
from takeup.serving.editing.templates.template import PageReader, PageSelection, TemplateRecorder
from takeup.serving.model import LoraUse, Request
from takeup.serving.server.backends.local import TemplateStorage, make_editor

pytestmark = ENGINE_MARKS

SIDE, EXACT = 64, 1e-5
REQUEST = Request("a cat", num_steps=4, guidance=4.0, seed=5)
OTHER = replace(REQUEST, prompt="a dog", seed=6)
IMAGE = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
BINDING = ("takeup/tiny-sd15", "takeup/tiny-sdxl", "takeup/tiny-flux")


def box(left: int, top: int = 8, side: int = 16) -> npt.NDArray[np.float32]:
    mask = np.zeros((SIDE, SIDE), np.float32)
    mask[top : top + side, left : left + side] = 1
    return mask


def recorded_of(name: str) -> tuple[KvFromRows, DenoisingRun, dict[str, torch.Tensor]]:
    """A step of a run, and what hooks saw of it."""
    family = family_of(build(name))
    run = family.prepare(replace(REQUEST, height_px=SIDE, width_px=SIDE))
    run.step = 2
    hooks = MaskingHooks(family.network, rows=True)
    hooks.call.mode = "record"
    with torch.no_grad():
        family.predict(gather((run,)))
    hooks.remove()
    return KvFromRows(family.network), run, hooks.call.recorded


@pytest.mark.parametrize("is_whole", [False, True], ids=["from rows", "computed whole"])
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_keys_and_values_that_are_made_are_those_that_were_recorded(name: str, is_whole: bool) -> None:
    """From rows of all blocks; or from those that no other block leaves."""
    from_rows, run, recorded = recorded_of(name)
    blocks = from_rows.blocks
    whole = frozenset(blocks) if is_whole else frozenset()
    loaded = blocks.keys() - from_rows.behind(whole)
    rows = {name + ROWS: recorded[name + ROWS] for name in loaded}

    assert len(loaded) == sum(not (is_whole and block.follows) for block in blocks.values())
    assert len(blocks) > 1
    completed = from_rows.made(rows, from_rows.conditioning(run, run.step, is_whole), whole)
    assert len(completed) == 2 * len(blocks)
    for part, one in completed.items():
        assert one.shape == recorded[part].shape
        assert gap(one, recorded[part]) < EXACT


def test_a_block_in_the_middle_is_not_computed_without_the_text_of_those_before() -> None:
    from_rows, run, recorded = recorded_of("takeup/tiny-flux")

    with pytest.raises(AssertionError, match="block 1 has no text"):
        from_rows.made({"1.x": recorded["1.x"]}, from_rows.conditioning(run, run.step, has_whole=True), frozenset("1"))


def test_of_a_page_only_one_form_of_each_block_is_wanted() -> None:
    names = ["a.k", "a.v", "a.x", "b.k", "b.v", "b.x", "c.k", "c.v", "d.k", "d.v", "d.x", "out"]

    wanted = page_selection(names, frozenset({"a", "c", "d"}), frozenset({"d"}), (".map",))

    assert wanted.left == {"a.k", "a.v", "b.x", "d.k", "d.v", "d.x"}  # nothing else is known of c
    assert wanted.far == (".map",)


@pytest.mark.parametrize(("budget", "where"), [(0.0, "cpu"), (0.05, "meta")])
def test_plain_tensors_can_stay_on_the_host(budget: float, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that later steps change must be where the changes are."""
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: True)
    recorder, drawn = TemplateRecorder(2, torch.ones(1, 1, dtype=torch.bool), budget), torch.rand(1, 4, 64)
    for change in (0.0, 0.1):
        recorder.add({"a.k": drawn + change * torch.rand(1, 4, 64), "a.x": drawn})
    template = recorder.finish()

    page = PageReader(template, torch.device("meta")).page(1, PageSelection(far=(".k",)))
    assert page["a.k"].device.type == where
    assert page["a.x"].device.type == "meta"


class Session:
    """Edits whose templates seem to be elsewhere, so that forms are chosen.

    Every second block is made from rows, or the first three with some of them `whole`.
    """

    def __init__(
        self,
        name: str,
        monkeypatch: pytest.MonkeyPatch,
        *,
        has_rows: bool,
        budget: float = 0.0,
        has_whole: bool = False,
    ) -> None:
        self.asked: list[tuple[int, float | None]] = []
        monkeypatch.setattr(PageReader, "is_near", False)
        pipeline, compute = build(name), CudaGraphExecutor()
        family = family_of(pipeline)
        self.names = [block.name for block in blocks_of(family.network)]
        self.forms = BlockForms(frozenset(self.names[::2]))
        if has_whole:
            self.forms = BlockForms(frozenset(self.names[:3]), frozenset(self.names[:2]))
        self.editor = MaskedEditor(
            family,
            budget=budget,
            checks=ErrorChecks(),
            binds=True,
            formats=self._after_a_step if has_rows else None,
        )
        self.engine = StepEngine(pipeline, add_ons=self.editor.add_ons, compute=compute)

    def _after_a_step(self, pages: Sequence[TemplatePages], compute_s: float | None) -> BlockForms | None:
        self.asked.append((len(pages), compute_s))
        return self.forms if len(self.asked) > 1 else None

    def edit(self, *requests: Request) -> list[Ticket]:
        masks = (box(8), box(24, 30, 20))
        edits = [EditRequest(IMAGE, mask) for mask, _ in zip(masks, requests, strict=False)]
        runs = [self.editor.prepare(request, edit) for request, edit in zip(requests, edits, strict=True)]
        tickets = [self.engine.enter(run) for run in runs]
        self.engine.run()
        return tickets


def latents(tickets: Sequence[Ticket]) -> torch.Tensor:
    return torch.cat([ticket.result().latents for ticket in tickets])


@pytest.mark.parametrize("has_whole", [False, True], ids=["from rows", "computed whole"])
@pytest.mark.parametrize("num_edits", [1, 2])
@pytest.mark.parametrize("name", BINDING)
def test_edits_made_from_rows_are_those_made_from_keys(
    name: str, num_edits: int, has_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, errors = [], []
    for has_rows in (True, False):
        session = Session(name, monkeypatch, has_rows=has_rows, has_whole=has_whole)
        session.edit(REQUEST)
        tickets = session.edit(*(REQUEST, replace(REQUEST, seed=7))[:num_edits])
        reports = [report_of(ticket.result()) for ticket in tickets]
        assert all(report.from_template for report in reports)
        assert session.asked == ([(num_edits, None)] * 2 if has_rows else [])
        made.append(latents(tickets))
        errors.append([report.error for report in reports])
        session.editor.close()

    assert gap(made[0], made[1]) < 1e-4
    assert errors[0] == pytest.approx(errors[1], rel=1e-2, abs=1e-4)


def pages_read(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Names in pages, as they are read."""
    seen: list[set[str]] = []
    usual = PageReader.page

    def noting(self: PageReader, *asked: Any) -> Any:
        page = usual(self, *asked)
        seen.append(set(page))
        return page

    monkeypatch.setattr(PageReader, "page", noting)
    return seen


def test_what_is_not_wanted_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session("takeup/tiny-sdxl", monkeypatch, has_rows=True)
    session.edit(REQUEST)
    seen = pages_read(monkeypatch)
    session.edit(OTHER)
    session.editor.close()

    assert not any(name.endswith(ROWS) for name in seen[0])
    for number, name in enumerate(session.names):
        parts = {f"{name}.k", f"{name}.v"}
        assert (name + ROWS in seen[-1]) == (number % 2 == 0)
        assert parts.isdisjoint(seen[-1]) if number % 2 == 0 else parts <= seen[-1]


def test_packed_templates_are_read_from_their_beginning_when_the_form_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for has_rows in (True, False):
        session = Session("takeup/tiny-sdxl", monkeypatch, has_rows=has_rows, budget=0.02)
        session.edit(REQUEST)
        made.append(latents(session.edit(OTHER)))
        session.editor.close()

    assert gap(made[0], made[1]) < 0.1


@pytest.mark.parametrize("has_rows", [True, False])
def test_recorded_calls_keep_no_template(has_rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session("takeup/tiny-flux", monkeypatch, has_rows=has_rows)
    session.edit(REQUEST)
    (ticket,) = session.edit(OTHER)
    used = active_edit(ticket.result())
    template, key = weakref.ref(used.template), used.key
    assert key is not None

    del ticket, used
    session.editor.forget(key.template)
    gc.collect()

    assert session.engine.compute._calls  # type: ignore[attr-defined]
    assert template() is None
    session.editor.close()


def test_edits_with_loras_load_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose weights may not be there yet when pages are brought."""
    session = Session("takeup/tiny-sdxl", monkeypatch, has_rows=True)
    session.edit(REQUEST)
    run = session.editor.prepare(OTHER, EditRequest(IMAGE, box(8)))
    run.request = replace(run.request, loras=(LoraUse("somebody's"),))
    laid = _laid(session, run)

    assert session.asked == []
    assert all(pages.form.wanted.left >= {name + ROWS for name in session.names} for pages in laid)
    session.editor.close()


def _laid(session: Session, run: DenoisingRun) -> Any:
    edits = session.editor.edits
    edits.joined(run)
    return edits._formed(edits.layouts.of([run]), [run], 0.01)


# What is chosen -------------------------------------------------------------------------------------------------------


def pages_of(session: Session) -> TemplatePages:
    run = session.editor.prepare(OTHER, EditRequest(IMAGE, box(8)))
    session.editor.edits.joined(run)
    return session.editor.edits._pages(run)


def set_speeds(monkeypatch: pytest.MonkeyPatch, whole_s: float) -> None:
    """A slow link, and blocks that make keys and values in a millisecond."""

    def spent_s(work: Any, *_: Any, **__: Any) -> float:
        work()
        return 0.001 * len(work.args[0]) if isinstance(work.args[0], dict) else whole_s

    monkeypatch.setattr(formats, "_link_bytes_per_s", lambda _: 1e6)
    monkeypatch.setattr(formats, "_spent_s", spent_s)


def test_blocks_are_chosen_by_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session("takeup/tiny-sdxl", monkeypatch, has_rows=True)
    for request in (REQUEST, OTHER):  # speeds are measured when a masked call was made
        session.edit(request)
    pages = pages_of(session)
    set_speeds(monkeypatch, whole_s=10.0)
    longest_s = sum(one.size_bytes for one in pages.reader.template.pages[0].values()) / 1e6

    assert formats.fastest_forms([pages], None) is None
    assert formats.fastest_forms([pages], 0.0) == BlockForms(frozenset(session.names))
    assert formats.fastest_forms([pages], longest_s) == BlockForms()
    assert list(pages.from_rows.seconds.values()) == [pytest.approx(0.001), 10.0]  # all blocks are alike
    session.editor.close()


@pytest.mark.parametrize("name", ["takeup/tiny-sdxl", "takeup/tiny-flux"])
def test_where_loads_take_longer_blocks_with_one_behind_them_are_computed_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(name, monkeypatch, has_rows=True)
    for request in (REQUEST, OTHER):  # speeds are measured when a masked call was made
        session.edit(request)
    pages = pages_of(session)
    set_speeds(monkeypatch, whole_s=0.001)
    blocks = list(pages.from_rows.blocks.values())
    before_others = {one.name for one, after in pairwise(blocks) if after.follows}
    first = pages.reader.template.pages[0]
    in_reverse = {name: first.pop(name) for name in list(first)[::-1]}
    first.update(in_reverse)  # as a template may have been read: the order of the network counts

    assert formats.fastest_forms([pages], 0.0) == BlockForms(frozenset(session.names), frozenset(before_others))
    session.editor.close()


def test_blocks_that_cannot_be_computed_whole_are_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session("takeup/tiny-flux", monkeypatch, has_rows=True)
    for request in (REQUEST, OTHER):
        session.edit(request)
    pages = pages_of(session)
    set_speeds(monkeypatch, whole_s=0.001)
    monkeypatch.setattr(KvFromRows, "computed", lambda *_: torch.zeros(1) @ torch.zeros(2))

    assert formats.fastest_forms([pages], 0.0) == BlockForms(frozenset(session.names))
    assert len(caplog.records) == 2  # for each kind of block
    assert "blocks like 0 are not computed whole" in caplog.text
    session.editor.close()


def test_templates_that_are_near_load_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session("takeup/tiny-sdxl", monkeypatch, has_rows=True)
    session.edit(REQUEST)
    pages = pages_of(session)
    monkeypatch.setattr(PageReader, "is_near", True)

    assert formats.fastest_forms([pages], 1.0) == BlockForms()
    assert pages.formed(BlockForms(frozenset(session.names))).wanted.left == {name + ROWS for name in session.names}
    session.editor.close()


def test_templates_without_rows_load_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session("takeup/tiny-sdxl", monkeypatch, has_rows=False)
    session.edit(REQUEST)

    assert formats.fastest_forms([pages_of(session)], 1.0) == BlockForms()
    session.editor.close()


@pytest.mark.parametrize("has_rows", [True, False])
def test_servers_keep_rows_if_told_to(has_rows: bool) -> None:
    editor = make_editor(family_of(build("takeup/tiny-sd15")), TemplateStorage(has_rows=has_rows))

    assert isinstance(editor, MaskedEditor)
    assert editor.edits.what_is_kept.endswith("rows") == has_rows
    editor.close()


class Event:
    """Of a device that is as far as it is told to be."""

    reached, clock_ms = False, 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at_ms = 0.0

    def record(self) -> None:
        self.at_ms = Event.clock_ms

    def query(self) -> bool:
        return Event.reached

    def elapsed_time(self, end: Event) -> float:
        return end.at_ms - self.at_ms


def test_a_stopwatch_knows_the_shortest_time_that_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch.cuda, "Event", Event)
    watch = stopwatch.StreamStopwatch(is_on=True)
    for begin_ms, end_ms, is_reached in ((0, 30, False), (30, 31, True), (50, 70, True), (80, 120, True)):
        Event.clock_ms, Event.reached = begin_ms, is_reached and begin_ms != 30
        watch.start()
        Event.clock_ms = end_ms
        watch.stop()
        Event.reached = is_reached

    assert watch.least_s == pytest.approx(0.02)


def test_a_stopwatch_that_is_off_or_was_not_meant_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch.cuda, "Event", Event)
    Event.reached = True
    for watch in (stopwatch.StreamStopwatch(is_on=False), stopwatch.StreamStopwatch(is_on=True)):
        watch.start()
        watch.forget()
        watch.stop()

        assert watch.least_s is None
