"""Requests whose inputs have equal shapes and other values (portrait and landscape) never get each other's values."""

from __future__ import annotations

import random
from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import numpy as np
import torch

from serving.stock import ENGINE_MARKS, gap, stock_latents
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build
from takeup.serving.diffusion.execution.executors import CudaGraphExecutor
from takeup.serving.editing.contract import EditRequest
from takeup.serving.editing.masked.editor import MaskedEditor
from takeup.serving.model import Request

pytestmark = ENGINE_MARKS

FAMILIES = ("takeup/tiny-sd15", "takeup/tiny-sdxl", "takeup/tiny-sd3", "takeup/tiny-flux")
SIZES = ((32, 64), (64, 32), (48, 48), (96, 32), (32, 96), (64, 48), (48, 64))
ROUNDING = 2e-6


def sharpened(name: str) -> Any:
    """A pipeline whose attention depends on positions: with random weights as they are it hardly does."""
    pipeline = build(name)
    network = getattr(pipeline, "transformer", None) or pipeline.unet
    with torch.no_grad():
        for module_name, parameter in network.named_parameters():
            if "norm_q" in module_name or "norm_k" in module_name:
                parameter.mul_(6)
    return pipeline


def drawn(number: int) -> Request:
    rng = random.Random(number)
    height_px, width_px = rng.choice(SIZES)
    negative = rng.choice([None, "ugly"])
    return Request(
        "a cat",
        negative,
        num_steps=rng.randint(1, 4),
        guidance=rng.choice([1.0, 3.5, 6.0]),
        true_guidance=rng.choice([1.0, 2.0]),
        seed=number,
        height_px=height_px,
        width_px=width_px,
    )


@pytest.fixture(scope="module", params=FAMILIES)
def pipeline(request: Any) -> Any:
    return sharpened(request.param)


@pytest.mark.parametrize("schedule", range(3))
def test_requests_that_join_and_leave_at_random_get_the_images_of_stock(pipeline: Any, schedule: int) -> None:
    rng = random.Random(schedule)
    requests = [drawn(100 * schedule + number) for number in range(6)]
    engine = StepEngine(pipeline)
    tickets = []
    for one in requests:
        tickets.append(engine.submit(one))
        for _ in range(rng.randint(0, 1)):
            engine.advance()
    engine.submit(drawn(99)).cancel()
    engine.run()

    gaps = [
        gap(ticket.result().latents, stock_latents(pipeline, one))
        for ticket, one in zip(tickets, requests, strict=True)
    ]
    assert max(gaps) < 2 * ROUNDING


def test_portrait_and_landscape_share_no_call_of_flux_and_squares_share_one() -> None:
    engine = StepEngine(sharpened("takeup/tiny-flux"))
    for height_px, width_px in ((32, 64), (64, 32), (64, 32)):
        engine.submit(Request("a cat", num_steps=1, height_px=height_px, width_px=width_px))
    engine.run()

    assert engine.num_calls == 2


def test_captured_calls_take_the_positions_of_their_own_requests() -> None:
    pipeline = sharpened("takeup/tiny-flux")
    requests = [Request("a cat", num_steps=3, seed=seed, height_px=h, width_px=w) for seed, (h, w) in enumerate(SIZES)]
    alone = [stock_latents(pipeline, one) for one in requests]
    engine = StepEngine(pipeline, compute=CudaGraphExecutor(None))
    tickets = [engine.submit(one) for one in requests]
    engine.run()

    assert max(gap(ticket.result().latents, one) for ticket, one in zip(tickets, alone, strict=True)) < 5 * ROUNDING


@pytest.mark.parametrize("name", FAMILIES)
def test_edits_of_both_orientations_from_templates_equal_those_made_alone(name: str) -> None:
    def edit(height_px: int, width_px: int) -> EditRequest:
        image = np.random.default_rng(height_px).integers(0, 256, (height_px, width_px, 3), dtype=np.uint8)
        mask = np.zeros((height_px, width_px), np.float32)
        mask[8:24, 8:24] = 1
        return EditRequest(image, mask)

    pipeline, edits = sharpened(name), [edit(32, 64), edit(64, 32)]
    editor = MaskedEditor(family_of(pipeline), convolutions=False)
    engine = StepEngine(pipeline, add_ons=editor.add_ons)

    def made(together: list[EditRequest]) -> list[torch.Tensor]:
        runs = [editor.prepare(Request("a dog", num_steps=3, guidance=4.0, seed=5), one) for one in together]
        tickets = [engine.enter(run) for run in runs]
        engine.run()
        return [ticket.result().latents for ticket in tickets]

    recorded = made(edits)
    alone = [made([one])[0] for one in edits]
    both = made(edits)
    editor.close()

    assert max(map(gap, both, alone)) < 5 * ROUNDING
    assert len(recorded) == 2


@pytest.mark.parametrize("kind", ["UniPCMultistepScheduler", "DPMSolverMultistepScheduler"])
def test_flux_with_other_flow_samplers_equals_stock(kind: str) -> None:
    pipeline = build("takeup/tiny-flux")
    options = {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "use_dynamic_shifting": True}
    pipeline.scheduler = getattr(import_module("diffusers"), kind)(**options, time_shift_type="exponential")
    one = Request("a cat", num_steps=4, seed=3, height_px=32, width_px=32)
    engine = StepEngine(pipeline)
    ticket = engine.submit(one)
    engine.run()

    assert gap(ticket.result().latents, stock_latents(pipeline, one)) < ROUNDING
