"""Masked calls that are recorded make the pictures of those made by hooks; other masks of their sizes share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.stock import ENGINE_MARKS, gap
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine, Ticket
from takeup.serving.diffusion.engine.tiny import build
from takeup.serving.diffusion.execution import executors as compute_module
from takeup.serving.diffusion.execution.cuda_graph import Uncaptured
from takeup.serving.diffusion.execution.executors import CudaGraphExecutor
from takeup.serving.diffusion.policies import MaskGrouping
from takeup.serving.editing.contract import EditRequest
from takeup.serving.editing.masked import addon as layouts
from takeup.serving.editing.masked.edit_state import ErrorChecks
from takeup.serving.editing.masked.editor import MaskedEditor, report_of
from takeup.serving.editing.masked.graph_networks import can_bind
from takeup.serving.editing.masked.kv_cache import UnetCache
from takeup.serving.editing.masked.tokens import token_indices
from takeup.serving.model import Request

pytestmark = ENGINE_MARKS

SIDE, EXACT = 64, 1e-4
NAMES = ("takeup/tiny-sd15", "takeup/tiny-sdxl", "takeup/tiny-flux")
Floats = npt.NDArray[np.float32]
IMAGE = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
REQUEST = Request("a cat", num_steps=3, guidance=4.0, seed=5)
OTHER = replace(REQUEST, prompt="a dog", seed=6)


def box(left: int, top: int = 8, side: int = 16) -> Floats:
    mask = np.zeros((SIDE, SIDE), np.float32)
    mask[top : top + side, left : left + side] = 1
    return mask


class Session:
    """An engine with an editor, on a pipeline of its own; recorded calls, or calls with hooks."""

    def __init__(self, name: str, *, binds: bool, checks: ErrorChecks, max_rows: int = 8) -> None:
        self.pipeline = build(name)
        family = family_of(self.pipeline)
        self.compute = CudaGraphExecutor()
        assert can_bind(self.compute.prepared(family.network))
        self.editor = MaskedEditor(family, checks=checks, binds=binds)
        self.engine = StepEngine(
            self.pipeline, add_ons=self.editor.add_ons, compute=self.compute, group=MaskGrouping(max_rows, 100.0)
        )

    def edit(self, *asked: tuple[Floats, Request], max_error: float | None = None) -> list[Ticket]:
        runs = [self.editor.prepare(request, EditRequest(IMAGE, mask, max_error=max_error)) for mask, request in asked]
        tickets = [self.engine.enter(run) for run in runs]
        self.engine.run()
        return tickets

    @property
    def num_kinds(self) -> int:
        """Of calls that were recorded."""
        return len(self.compute._calls)


@pytest.fixture
def start() -> Iterator[Callable[..., Session]]:
    opened: list[Session] = []

    def open_one(
        name: str = "takeup/tiny-sdxl", *, binds: bool = True, checks: ErrorChecks | None = None, max_rows: int = 8
    ) -> Session:
        opened.append(Session(name, binds=binds, checks=checks or ErrorChecks(0), max_rows=max_rows))
        return opened[-1]

    yield open_one
    for session in opened:
        session.editor.close()


Start = Callable[..., Session]


def latents(tickets: list[Ticket]) -> torch.Tensor:
    return torch.cat([ticket.result().latents for ticket in tickets])


@pytest.mark.parametrize("name", NAMES)
def test_recorded_edits_are_those_with_hooks(start: Start, name: str) -> None:
    made = []
    for binds in (True, False):
        session = start(name, binds=binds)
        session.edit((box(8), REQUEST))
        tickets = session.edit((box(8), OTHER))
        assert report_of(tickets[0].result()).from_template
        made.append(latents(tickets))

    assert gap(made[0], made[1]) < EXACT


@pytest.mark.parametrize("name", NAMES)
def test_edits_with_different_masks_share_a_recorded_call(start: Start, name: str) -> None:
    made, num_calls = [], []
    for binds in (True, False):
        session = start(name, binds=binds)
        session.edit((box(8), REQUEST))
        before = session.engine.num_calls
        made.append(latents(session.edit((box(8), OTHER), (box(24, 30, 20), REQUEST))))
        num_calls.append(session.engine.num_calls - before)

    assert gap(made[0], made[1]) < EXACT
    assert num_calls[0] == num_calls[1] == REQUEST.num_steps


@pytest.mark.parametrize("name", NAMES)
def test_an_edit_that_comes_in_between_changes_nothing(start: Start, name: str) -> None:
    """Both use the same memory, and what the first one needs next lies there already."""
    made = []
    for binds in (True, False):
        session = start(name, binds=binds, max_rows=2)
        session.edit((box(8), REQUEST))
        first = session.engine.enter(session.editor.prepare(OTHER, EditRequest(IMAGE, box(8))))
        for _ in range(2):
            session.engine.advance()
        urgent = replace(OTHER, seed=7, deadline_s=1e12)
        made.append(latents([*session.edit((box(4, 24, 40), urgent)), first]))

    assert gap(made[0], made[1]) < EXACT


def test_edits_that_take_turns_are_laid_out_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def noting(masks: Sequence[torch.Tensor], *others: Any) -> Any:
        made.append(len(masks))
        return token_indices(masks, *others)

    session = start(max_rows=2)
    session.edit((box(8), REQUEST))
    monkeypatch.setattr(layouts, "token_indices", noting)
    session.edit((box(8), OTHER), (box(24, 30, 20), REQUEST))

    assert made == [2, 2]


def test_another_mask_of_the_same_sizes_needs_no_recording(start: Start) -> None:
    bound, hooked = start(), start(binds=False)
    for session in (bound, hooked):
        session.edit((box(8), REQUEST))
    bound.edit((box(24, 24), OTHER))
    num_kinds = bound.num_kinds
    for top in (28, 24):
        ours, theirs = (latents(session.edit((box(24, top), OTHER))) for session in (bound, hooked))
        assert gap(ours, theirs) < EXACT

    assert bound.num_kinds == num_kinds


def test_a_smaller_mask_is_made_by_the_recorded_call_of_a_larger_one(start: Start) -> None:
    bound, hooked = start(), start(binds=False)
    for session in (bound, hooked):
        session.edit((box(8), REQUEST))
    bound.edit((box(24, 24, 30), OTHER))
    num_kinds = bound.num_kinds
    ours, theirs = (latents(session.edit((box(24, 24, 26), OTHER))) for session in (bound, hooked))

    assert gap(ours, theirs) < EXACT
    assert bound.num_kinds == num_kinds


def test_recorded_edits_estimate_their_error(start: Start) -> None:
    errors = []
    for binds in (True, False):
        session = start(binds=binds, checks=ErrorChecks())
        session.edit((box(8), REQUEST))
        errors.append(report_of(session.edit((box(8), OTHER))[0].result()).error)

    assert errors[0] == pytest.approx(errors[1], rel=1e-3)
    assert errors[0] is not None
    assert errors[0] > 0


def test_recording_a_call_does_not_change_what_is_kept(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device, where calls are tried out before they are recorded."""

    def tried(compute: Any, *_: Any) -> Uncaptured:
        compute(lambda: None)
        return Uncaptured(compute)

    errors = []
    for _ in range(2):
        session = start(checks=ErrorChecks())
        session.edit((box(8), REQUEST))
        errors.append(report_of(session.edit((box(8), OTHER))[0].result()).error)
        monkeypatch.setattr(compute_module, "capture", tried)

    assert errors[0] == errors[1]
    assert errors[0]


def test_above_the_bound_recorded_edits_make_whole_steps(start: Start) -> None:
    session = start(checks=ErrorChecks())
    session.edit((box(8), REQUEST))
    report = report_of(session.edit((box(8), OTHER), max_error=1e-9)[0].result())

    assert (report.num_whole_steps, report.error) == (3, 0)  # the first one was not accepted, nor is any after it


def test_after_a_failure_edits_are_made_by_hooks(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    session, hooked = start(), start(binds=False)
    for one in (session, hooked):
        one.edit((box(8), REQUEST))
    with monkeypatch.context() as broken:
        broken.setattr(UnetCache, "load", _no_memory)
        failed = session.edit((box(8), OTHER))[0]
    ours, theirs = (latents(one.edit((box(8), OTHER))) for one in (session, hooked))

    assert failed.state == "failed"
    assert gap(ours, theirs) < EXACT


def _no_memory(*_: Any) -> None:
    raise torch.OutOfMemoryError("no memory left")


def test_a_network_in_eight_bits_is_not_bound() -> None:
    compute: Any = CudaGraphExecutor(eight_bits=True)

    assert not can_bind(compute.prepared(build("takeup/tiny-sdxl").unet))
