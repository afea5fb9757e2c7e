"""Templates that seem to be elsewhere: what is read of them, where it goes, and what keeps them alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace

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
from takeup.serving.diffusion.execution.executors import CudaGraphExecutor
from takeup.serving.editing.contract import EditRequest
from takeup.serving.editing.masked.edit_state import ErrorChecks, active_edit
from takeup.serving.editing.masked.editor import MaskedEditor, report_of
from takeup.serving.editing.templates.template import PageReader, TemplateRecorder
from takeup.serving.model import Request

pytestmark = ENGINE_MARKS

SIDE = 64
REQUEST = Request("a cat", num_steps=4, guidance=4.0, seed=5)
OTHER = replace(REQUEST, prompt="a dog", seed=6)
IMAGE = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


def box(left: int, top: int = 8, side: int = 16) -> npt.NDArray[np.float32]:
    mask = np.zeros((SIDE, SIDE), np.float32)
    mask[top : top + side, left : left + side] = 1
    return mask


@pytest.mark.parametrize(("budget", "where"), [(0.0, "cpu"), (0.05, "meta")])
def test_plain_tensors_can_stay_on_the_host(budget: float, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that later steps change must be where the changes are."""
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: True)
    recorder, drawn = TemplateRecorder(2, torch.ones(1, 1, dtype=torch.bool), budget), torch.rand(1, 4, 64)
    for change in (0.0, 0.1):
        recorder.add({"a.k": drawn + change * torch.rand(1, 4, 64), "a.v": drawn})
    template = recorder.finish()

    page = PageReader(template, torch.device("meta")).page(1, far=(".k",))
    assert page["a.k"].device.type == where
    assert page["a.v"].device.type == "meta"


class Session:
    """Edits whose masked calls are recorded."""

    def __init__(self, name: str, budget: float = 0.0) -> None:
        pipeline = build(name)
        family = family_of(pipeline)
        self.editor = MaskedEditor(family, budget=budget, checks=ErrorChecks(), binds=True)
        self.engine = StepEngine(pipeline, add_ons=self.editor.add_ons, compute=CudaGraphExecutor())

    def edit(self, *requests: Request) -> list[Ticket]:
        masks = (box(8), box(24, 30, 20))
        edits = [EditRequest(IMAGE, mask) for mask, _ in zip(masks, requests, strict=False)]
        runs = [self.editor.prepare(request, edit) for request, edit in zip(requests, edits, strict=True)]
        tickets = [self.engine.enter(run) for run in runs]
        self.engine.run()
        return tickets


@pytest.fixture(params=["takeup/tiny-sdxl", "takeup/tiny-flux"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    opened = Session(request.param)
    yield opened
    opened.editor.close()


def test_edits_that_share_recorded_calls_are_those_made_alone(session: Session) -> None:
    session.edit(REQUEST)
    asked = REQUEST, replace(REQUEST, seed=7)
    together = session.edit(*asked)
    (alone,) = session.edit(asked[0])

    assert all(report_of(ticket.result()).from_template for ticket in (*together, alone))
    assert gap(together[0].result().latents, alone.result().latents) < 1e-4


def test_recorded_calls_keep_no_template(session: Session) -> None:
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
