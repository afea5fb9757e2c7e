"""ControlNets as workers: bit for bit the images of stock diffusers, wherever they run and whatever becomes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from PIL import Image

from serving.lora_files import LAYERS, factors, peft_style, save
from serving.stock import ENGINE_MARKS, gap, stock_latents
from takeup.errors import BadInput, UnknownName
from takeup.serving.diffusion.addons.controlnet.addon import Controls
from takeup.serving.diffusion.addons.controlnet.workers import (
    ControlCall,
    ControlNet,
    ControlWorker,
    ThreadWorker,
    scales_of,
)
from takeup.serving.diffusion.addons.lora.addon import Loras
from takeup.serving.diffusion.addons.lora.loading import ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.model import ControlUse, LoraUse, Request

pytestmark = ENGINE_MARKS

NAME = "takeup/tiny-sdxl-controlnet"
EXACT = 1e-5


def picture(seed: int) -> Image.Image:
    pixels = torch.randint(0, 256, (32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(pixels.numpy())


DEPTH, EDGES = ControlUse("depth", picture(1), scale=0.8), ControlUse("edges", picture(2), scale=0.3)


def request(*controls: ControlUse, seed: int = 0, **others: Any) -> Request:
    return Request("a cat", num_steps=4, seed=seed, height_px=32, width_px=32, controls=controls, **others)


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return tiny(NAME)


@pytest.fixture(scope="module")
def nets(pipeline: Any) -> dict[str, Any]:
    return dict(zip(("depth", "edges"), pipeline.controlnet.nets, strict=True))


def stock(pipeline: Any, one: Request) -> torch.Tensor:
    """Stock diffusers with both ControlNets, those that are not named at a scale of zero."""
    uses = {use.net: use for use in one.controls}
    both = [uses.get(net, ControlUse(net, picture(0), scale=0.0)) for net in ("depth", "edges")]
    return stock_latents(
        pipeline,
        one,
        image=[use.image for use in both],
        controlnet_conditioning_scale=[use.scale for use in both],
        control_guidance_start=[use.start_share for use in both],
        control_guidance_end=[use.end_share for use in both],
        guess_mode=one.guess_mode,
    )


def engine_with(
    pipeline: Any, nets: dict[str, Any], workers: dict[str, ControlWorker] | None = None, **options: Any
) -> Any:
    return StepEngine(pipeline, add_ons=[Controls(family_of(pipeline), nets, workers)], **options)


def images(engine: StepEngine, requests: list[Request]) -> list[torch.Tensor]:
    tickets = [engine.submit(one) for one in requests]
    engine.run()
    return [ticket.result().latents for ticket in tickets]


CASES = {
    "one": request(DEPTH),
    "two": request(DEPTH, EDGES, seed=1),
    "no guidance": request(DEPTH, EDGES, seed=2, guidance=1.0),
    "guess mode": request(DEPTH, EDGES, seed=3, guess_mode=True),
    "from a quarter on": request(replace(DEPTH, start_share=0.25, end_share=0.75), EDGES, seed=4),
    "other scheduler": request(EDGES, seed=5, scheduler="dpm++", negative_prompt="dog"),
}


@pytest.mark.parametrize("case", CASES)
def test_images_are_bit_for_bit_those_of_stock_diffusers(pipeline: Any, nets: dict[str, Any], case: str) -> None:
    (ours,) = images(engine_with(pipeline, nets), [CASES[case]])

    assert torch.equal(ours, stock(pipeline, CASES[case]))


def test_controlnets_change_the_image(pipeline: Any, nets: dict[str, Any]) -> None:
    plain, steered, weaker = images(
        engine_with(pipeline, nets, deterministic=True),
        [request(), request(DEPTH), request(replace(DEPTH, scale=0.4))],
    )

    assert gap(steered, plain) > 0.01
    assert gap(weaker, plain) > 0.01
    assert gap(weaker, steered) > 0.01


def test_requests_with_different_controlnets_share_calls(pipeline: Any, nets: dict[str, Any]) -> None:
    mixed = [*CASES.values(), request(seed=6)]
    engine = engine_with(pipeline, nets)
    ours = images(engine, mixed)
    theirs = [stock(pipeline, one) for one in mixed]

    assert max(map(gap, ours, theirs)) < EXACT
    assert engine.num_calls == 4


def test_threads_compute_the_same(pipeline: Any, nets: dict[str, Any]) -> None:
    workers: dict[str, ControlWorker] = {name: ThreadWorker(net) for name, net in nets.items()}
    engine = engine_with(pipeline, nets, workers)
    (ours,) = images(engine, [CASES["two"]])
    engine.add_ons[0].close()

    assert torch.equal(ours, stock(pipeline, CASES["two"]))


def test_an_image_is_embedded_once_not_once_a_step(pipeline: Any, nets: dict[str, Any]) -> None:
    seen = []
    hook = nets["depth"].controlnet_cond_embedding.register_forward_hook(lambda *_: seen.append(1))
    images(engine_with(pipeline, nets), [request(DEPTH)])
    hook.remove()

    assert len(seen) == 1


def test_images_are_forgotten_with_their_request(pipeline: Any, nets: dict[str, Any]) -> None:
    worker = ThreadWorker(nets["depth"])
    engine = engine_with(pipeline, nets, {"depth": worker})
    cancelled = engine.submit(request(DEPTH))
    engine.advance()
    known = set(worker._net._images)
    cancelled.cancel()
    images(engine, [request(DEPTH)])
    worker._thread.submit(int).result()  # after what was sent to the thread before

    assert (len(known), set(worker._net._images)) == (1, set())


def test_channels_in_the_other_order_are_turned_once() -> None:
    net = build(NAME).controlnet.nets[0]
    net.register_to_config(controlnet_conditioning_channel_order="bgr")
    image, text = torch.rand(1, 3, 32, 32), torch.rand(1, 77, 64)
    tensors = {"sample": torch.rand(1, 4, 16, 16), "timestep": torch.tensor([7.0]), "encoder_hidden_states": text}
    added = {"text_embeds": torch.rand(1, 32), "time_ids": torch.rand(1, 6)}
    with torch.no_grad():
        skips, middle = net(**tensors, controlnet_cond=image, added_cond_kwargs=added, return_dict=False)
    ours = ControlNet(net)
    ours.remember(0, image)
    residuals = ours.residuals(ControlCall({**tensors, **added}, (0,)))

    assert all(map(torch.equal, residuals, [middle, *reversed(skips)]))


def test_guess_mode_weakens_the_early_skips() -> None:
    scales = scales_of(0.5, 10, guess_mode=True)

    assert float(scales[0]) == pytest.approx(0.5)
    assert float(scales[-1]) == pytest.approx(0.05)
    assert list(scales_of(0.5, 3, guess_mode=False)) == [0.5] * 3


def test_an_unknown_controlnet_ends_its_own_request_only(pipeline: Any, nets: dict[str, Any]) -> None:
    engine = engine_with(pipeline, nets)
    bad, good = engine.submit(request(replace(DEPTH, net="dept"))), engine.submit(request(DEPTH))
    engine.run()

    assert (bad.state, good.state) == ("failed", "done")
    with pytest.raises(UnknownName, match="did you mean 'depth'"):
        bad.result()


def test_what_is_no_image_ends_its_own_request_only(pipeline: Any, nets: dict[str, Any]) -> None:
    engine = engine_with(pipeline, nets)
    bad, good = engine.submit(request(replace(DEPTH, image="not an image"))), engine.submit(request(DEPTH))
    engine.run()

    assert (bad.state, good.state) == ("failed", "done")


def test_pipelines_without_a_u_net_are_refused(nets: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="for U-Nets only"):
        Controls(family_of(tiny("takeup/tiny-flux")), nets)


def test_loras_and_controlnets_go_together(tmp_path: Path) -> None:
    pipeline, stock_pipeline = build(NAME), build(NAME)
    file = save(peft_style(factors(pipeline, [("unet", path) for path in LAYERS])), tmp_path / "film.safetensors")
    family = family_of(pipeline)
    loras = Loras(family, ThreadLoader({"film": file}, LoraTargets.of(pipeline)))
    controls = Controls(family, dict(zip(("depth", "edges"), pipeline.controlnet.nets, strict=True)))
    both = replace(CASES["two"], loras=(LoraUse("film", 0.6),))
    ours = images(StepEngine(pipeline, add_ons=[loras, controls]), [both, CASES["one"], request(seed=6)])
    loras.close()
    theirs = [stock(stock_pipeline, CASES["one"]), stock(stock_pipeline, request(seed=6))]
    stock_pipeline.load_lora_weights(file, adapter_name="film")
    stock_pipeline.set_adapters(["film"], [0.6])
    stock_pipeline.fuse_lora(components=["unet"])
    stock_pipeline.unload_lora_weights()

    assert gap(ours[0], stock(stock_pipeline, both)) < EXACT
    assert max(map(gap, ours[1:], theirs)) < EXACT
