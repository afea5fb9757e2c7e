"""Calls of a new size are eager until there are no requests; images stay the same. Flux in eight bits."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from PIL import Image

from serving.stock import ENGINE_MARKS, gap
from takeup.errors import BadInput
from takeup.serving.diffusion.addons.controlnet.addon import Controls
from takeup.serving.diffusion.addons.controlnet.workers import StreamWorker
from takeup.serving.diffusion.engine.families import decoded, family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.diffusion.execution.executors import MAX_EAGER_CALLS, CudaGraphExecutor
from takeup.serving.diffusion.execution.fp8 import FP8_LAYERS
from takeup.serving.model import ControlUse, Request
from takeup.serving.server.backends.local import check_precision

pytestmark = ENGINE_MARKS

SDXL, FLUX, CONTROLLED = "takeup/tiny-sdxl", "takeup/tiny-flux", "takeup/tiny-sdxl-controlnet"


def request(size_px: int = 32, **others: Any) -> Request:
    return Request("a cat", num_steps=2, height_px=size_px, width_px=32, **others)


def made(engine: StepEngine, one: Request) -> torch.Tensor:
    ticket = engine.submit(one)
    engine.run()
    return ticket.result().latents


def test_a_new_size_is_captured_once_there_are_no_requests() -> None:
    theirs = made(StepEngine(tiny(SDXL)), request())
    compute = CudaGraphExecutor(eager_first=True)
    engine = StepEngine(build(SDXL), compute=compute)
    first = made(engine, request())
    num_before = len(compute._calls)
    compute.idle()
    second = made(engine, request())

    assert (num_before, len(compute._calls)) == (0, 1)
    assert max(gap(first, theirs), gap(second, theirs)) < 5e-6


def test_a_size_that_never_finds_an_idle_moment_is_captured_all_the_same() -> None:
    compute = CudaGraphExecutor(eager_first=True)
    engine = StepEngine(build(SDXL), compute=compute)
    for _ in range(MAX_EAGER_CALLS // 2 + 1):
        compute._num_eager.update(dict.fromkeys(compute._put_off, 2))
        made(engine, request())
        if compute._calls:
            break

    assert len(compute._calls) == 1
    assert not compute._put_off


def test_a_capture_that_fails_while_idle_leaves_the_loop_alive(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise RuntimeError("no memory")

    compute = CudaGraphExecutor(eager_first=True)
    compute.puts_off("kind", broken)
    compute.idle()

    assert "no memory" in caplog.text


def test_controlnets_of_a_new_size_are_captured_after_their_request_has_gone() -> None:
    picture = Image.effect_noise((32, 32), 64).convert("RGB")
    one = request(controls=(ControlUse("depth", picture, 0.8),))
    images = []
    for compute in (CudaGraphExecutor(), CudaGraphExecutor(eager_first=True)):
        pipeline = build(CONTROLLED)
        family = family_of(pipeline)
        worker = StreamWorker(pipeline.controlnet.nets[0], compute)
        controls = Controls(family, {"depth": pipeline.controlnet.nets[0]}, {"depth": worker})
        engine = StepEngine(pipeline, compute=compute, add_ons=[controls])
        images.append(made(engine, one))
        compute.idle()
        compute.idle()
        images.append(made(engine, one))

    assert len(worker._calls) == 1
    assert max(gap(image, images[0]) for image in images[1:]) < 5e-6


@torch.no_grad()
def test_images_above_a_size_are_decoded_in_tiles() -> None:
    vae = copy.deepcopy(tiny(SDXL).vae)
    tiles: list[tuple[int, ...]] = []

    def tiled(latents: torch.Tensor, **_: Any) -> tuple[torch.Tensor]:
        tiles.append(tuple(latents.shape))
        return (latents,)

    vae.tiled_decode = tiled
    decoded(vae, torch.zeros(1, 4, 4, 4), max_pixels=64)
    decoded(vae, torch.zeros(1, 4, 4, 8), max_pixels=63)

    assert tiles == [(1, 4, 4, 8)]


def test_flux_in_eight_bits_is_changed_a_little() -> None:
    theirs = made(StepEngine(tiny(FLUX)), request())
    ours = made(StepEngine(build(FLUX), compute=CudaGraphExecutor(eight_bits=True)), request())

    assert 1e-5 < gap(ours, theirs) < 0.1


@pytest.mark.parametrize(
    ("path", "is_rounded"),
    [
        ("transformer_blocks.3.attn.add_k_proj", True),
        ("single_transformer_blocks.37.proj_out", True),
        ("transformer_blocks.3.ff_context.net.0.proj", True),
        ("transformer_blocks.3.norm1.linear", False),
        ("proj_out", False),
        ("down_blocks.1.attentions.0.proj_out", False),
        ("down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_out.0", False),
    ],
)
def test_the_widest_layers_are_rounded_and_no_others(path: str, is_rounded: bool) -> None:
    assert (FP8_LAYERS.search(path) is not None) == is_rounded


def test_eight_bits_are_refused_where_no_device_computes_them() -> None:
    with pytest.raises(BadInput, match="found cpu"):
        check_precision("fp8", "cpu", family_of(tiny(SDXL)))
