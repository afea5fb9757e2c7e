"""Networks prepared for a device: images stay those of diffusers, whatever is packed, padded, recorded or patched."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from PIL import Image

from serving.lora_cases import EXACT, images, stock
from serving.stock import ENGINE_MARKS, gap, stock_latents
from takeup.serving.diffusion.addons.controlnet.addon import Controls
from takeup.serving.diffusion.addons.controlnet.workers import StreamWorker
from takeup.serving.diffusion.addons.lora.addon import Loras
from takeup.serving.diffusion.addons.lora.loading import ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.contract import RowGatherer
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.diffusion.execution import cuda_graph as passes
from takeup.serving.diffusion.execution import executors as compute_module
from takeup.serving.diffusion.execution import unet_blocks as lean_module
from takeup.serving.diffusion.execution.cuda_graph import StaticBuffers, Uncaptured, capture, num_padded
from takeup.serving.diffusion.execution.executors import CudaGraphExecutor, compile_regions
from takeup.serving.diffusion.execution.ops import text_attention
from takeup.serving.model import ControlUse, LoraUse, Request

pytestmark = ENGINE_MARKS

CONTROLLED = "takeup/tiny-sdxl-controlnet"


def picture(seed: int) -> Image.Image:
    pixels = torch.randint(0, 256, (32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(pixels.numpy())


DEPTH, EDGES = ControlUse("depth", picture(1), scale=0.8), ControlUse("edges", picture(2), scale=0.3)


def request(seed: int = 0, num_steps: int = 3, **others: Any) -> Request:
    return Request("a cat", num_steps=num_steps, seed=seed, height_px=32, width_px=32, **others)


# Passes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_rows", "padded"), [(1, 2), (2, 2), (3, 4), (4, 4), (5, 5)])
def test_rows_are_padded_to_the_next_size_and_beyond_the_last_one_not_at_all(num_rows: int, padded: int) -> None:
    assert num_padded(num_rows, (2, 4)) == padded


def test_buffers_stay_where_they_are_and_keep_the_rows_that_are_not_filled() -> None:
    buffers = StaticBuffers({"x": torch.zeros(1, 3)}, 2)
    place = buffers.tensors["x"].data_ptr()
    buffers.fill({"x": torch.ones(2, 3)})
    buffers.fill({"x": torch.full((1, 3), 5.0)})

    assert buffers.tensors["x"].data_ptr() == place
    assert buffers.tensors["x"].tolist() == [[5.0] * 3, [1.0] * 3]


def test_without_graphs_a_pass_is_computed_anew_and_its_seam_is_called() -> None:
    seams: list[str] = []
    numbers = torch.zeros(1)

    def compute(at_seam: Any) -> Any:
        at_seam()
        return (numbers + 1,)

    one = capture(compute, torch.device("cpu"))
    numbers.fill_(4)
    (answer,) = one.replay(lambda: seams.append("here"))

    assert answer.item() == 5
    assert seams == ["here"]


def test_what_cannot_be_recorded_is_computed_anew_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(passes, "CudaGraphPass", refuse)
    monkeypatch.setattr(passes.cuda, "synchronize", lambda: None)
    with caplog.at_level(logging.WARNING):
        one = capture(lambda at_seam: (torch.ones(1),), torch.device("cuda"))
        one.replay(lambda: None)

    assert isinstance(one, Uncaptured)
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
    assert "not permitted" in caplog.text


def test_inputs_that_did_not_change_are_the_same_object_in_the_next_step() -> None:
    family = family_of(tiny("takeup/tiny-sdxl"))
    runs = family.prepare(request(1)), family.prepare(request(2))
    gather = RowGatherer()
    first, second = gather(runs).inputs, gather(runs).inputs
    runs[1].inputs["text_embeds"] = runs[1].inputs["text_embeds"] + 1
    third = gather(runs).inputs

    assert first is second
    assert third is not second
    assert torch.equal(third["text_embeds"][2:], second["text_embeds"][2:] + 1)


# Whole images ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded() -> tuple[Any, CudaGraphExecutor]:
    """A pipeline whose networks are prepared, and who prepared them; ControlNets included."""
    return build(CONTROLLED), CudaGraphExecutor()


@pytest.fixture(scope="module")
def nets(recorded: tuple[Any, CudaGraphExecutor]) -> dict[str, Any]:
    return dict(zip(("depth", "edges"), recorded[0].controlnet.nets, strict=True))


@pytest.fixture
def engine(
    recorded: tuple[Any, CudaGraphExecutor], nets: dict[str, Any], files: dict[str, Path]
) -> Iterator[StepEngine]:
    """With ControlNets in streams and LoRAs merged by stacks."""
    pipeline, compute = recorded
    family = family_of(pipeline)
    workers = {name: StreamWorker(net, compute) for name, net in nets.items()}
    stacks = compute.prepared(family.network).stacks
    loras = Loras(family, ThreadLoader(files, LoraTargets.of(pipeline)), stacks=stacks)
    controls = Controls(family, nets, workers)
    yield StepEngine(pipeline, compute=compute, add_ons=[loras, controls])
    loras.close()
    controls.close()


def steered(one: Request) -> torch.Tensor:
    uses = {use.net: use for use in one.controls}
    both = [uses.get(net, ControlUse(net, picture(0), scale=0.0)) for net in ("depth", "edges")]
    return stock_latents(
        tiny(CONTROLLED),
        one,
        image=[use.image for use in both],
        controlnet_conditioning_scale=[use.scale for use in both],
        control_guidance_start=[use.start_share for use in both],
        control_guidance_end=[use.end_share for use in both],
        guess_mode=one.guess_mode,
    )


@pytest.mark.parametrize("name", ["takeup/tiny-sd15", "takeup/tiny-sd3", "takeup/tiny-flux"])
def test_images_of_every_family_are_those_of_diffusers(name: str) -> None:
    requests = [request(1), request(2, 2), request(3, guidance=1.0)]
    ours = images(StepEngine(build(name), compute=CudaGraphExecutor()), requests)

    assert max(gap(one, stock_latents(tiny(name), other)) for one, other in zip(ours, requests, strict=True)) < EXACT


def test_a_padded_call_gives_the_images_of_diffusers(engine: StepEngine) -> None:
    requests = [request(seed) for seed in range(5)]  # ten rows in a call for twelve
    ours = images(engine, requests)

    assert max(gap(one, steered(other)) for one, other in zip(ours, requests, strict=True)) < EXACT


@pytest.mark.parametrize(("negative", "num_attending"), [((None, None), 1), ((None, "blurry"), 2), (("", "blurry"), 2)])
def test_rows_without_a_text_do_not_attend_and_images_stay_those_of_diffusers(
    engine: StepEngine, monkeypatch: pytest.MonkeyPatch, negative: tuple[str | None, ...], num_attending: int
) -> None:
    """Rows that attend, out of two for each request."""
    seen: set[int] = set()

    def noting(query: torch.Tensor, text: torch.Tensor, num_heads: int) -> torch.Tensor:
        seen.add(len(query))
        attended: torch.Tensor = text_attention(query, text, num_heads)
        return attended

    monkeypatch.setattr(lean_module, "text_attention", noting)
    requests = [request(seed, negative_prompt=text, controls=(DEPTH,)) for seed, text in enumerate(negative)]
    ours = images(engine, requests)

    assert seen == {num_attending * len(requests)}
    assert max(gap(one, steered(other)) for one, other in zip(ours, requests, strict=True)) < EXACT


def test_controlnets_in_streams_give_the_images_of_diffusers(engine: StepEngine) -> None:
    requests = [
        request(1, controls=(DEPTH, EDGES)),
        request(2, controls=(replace(DEPTH, start_share=0.4),)),
        request(3),
        request(4, 2, controls=(EDGES,), guess_mode=True),
    ]
    ours = images(engine, requests)

    assert max(gap(one, steered(other)) for one, other in zip(ours, requests, strict=True)) < EXACT


def test_another_picture_for_the_same_controlnet_is_felt(engine: StepEngine) -> None:
    requests = [request(1, controls=(DEPTH,)), request(1, controls=(replace(DEPTH, image=picture(7)),))]
    ours = [images(engine, [one])[0] for one in requests]

    assert gap(ours[0], ours[1]) > 100 * EXACT
    assert max(gap(one, steered(other)) for one, other in zip(ours, requests, strict=True)) < EXACT


def test_loras_change_text_and_weights_of_recorded_calls(engine: StepEngine, files: dict[str, Path]) -> None:
    sets = [(), (LoraUse("paper", 0.8),), (LoraUse("words", 1.0), LoraUse("film", 0.5)), ()]
    requests = [request(6, loras=one) for one in sets]
    ours = [images(engine, [one])[0] for one in requests]

    assert max(gap(one, stock(files, other)) for one, other in zip(ours, requests, strict=True)) < EXACT
    assert torch.equal(ours[0], ours[-1])


def test_requests_with_different_loras_run_together(engine: StepEngine, files: dict[str, Path]) -> None:
    requests = [request(7, loras=(LoraUse("paper"),)), request(8), request(9, loras=(LoraUse("film", 0.4),))]
    ours = images(engine, requests)

    assert max(gap(one, stock(files, other)) for one, other in zip(ours, requests, strict=True)) < EXACT


def test_what_is_recorded_is_dropped_when_there_are_too_many_kinds(recorded: tuple[Any, CudaGraphExecutor]) -> None:
    pipeline = build("takeup/tiny-sd15")
    compute = CudaGraphExecutor(max_kinds=1)
    engine = StepEngine(pipeline, compute=compute)
    requests = [request(1, 2), replace(request(2, 2), height_px=48)]
    ours = images(engine, requests)

    assert len(compute._calls) == 1
    assert (
        max(gap(one, stock_latents(tiny("takeup/tiny-sd15"), two)) for one, two in zip(ours, requests, strict=True))
        < EXACT
    )


@pytest.mark.parametrize("num_failures", [1, 2])
def test_where_memory_is_short_the_call_is_recorded_anyway(monkeypatch: pytest.MonkeyPatch, num_failures: int) -> None:
    """First memory that nobody uses is given back, then that of other calls."""
    compute, make, num_tries = CudaGraphExecutor(), compute_module._CapturedCall, 0
    engine = StepEngine(build("takeup/tiny-sd15"), compute=compute)
    images(engine, [request(1, 2)])

    def short(*given: Any) -> Any:
        nonlocal num_tries
        num_tries += 1
        if num_tries <= num_failures:
            raise torch.OutOfMemoryError
        return make(*given)

    monkeypatch.setattr(compute_module, "_CapturedCall", short)
    other = replace(request(2, 2), height_px=48)

    assert gap(images(engine, [other])[0], stock_latents(tiny("takeup/tiny-sd15"), other)) < EXACT
    assert num_tries == num_failures + 1
    assert len(compute._calls) == 3 - num_failures


def test_a_call_for_which_there_is_never_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*given: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(compute_module, "_CapturedCall", short)
    engine = StepEngine(build("takeup/tiny-sd15"), compute=CudaGraphExecutor())
    ticket = engine.submit(request(1, 2))
    engine.run()

    with pytest.raises(torch.OutOfMemoryError):
        ticket.result()


def test_all_blocks_of_a_network_are_compiled_and_nothing_between_them() -> None:
    unet = build("takeup/tiny-sdxl").unet
    num_regions = compile_regions(unet, {})
    compiled = {type(module).__name__ for module in unet.modules() if module._compiled_call_impl is not None}

    assert compiled == {"Downsample2D", "ResnetBlock2D", "Transformer2DModel", "Upsample2D"}
    assert num_regions == sum(type(module).__name__ in compiled for module in unet.modules())
