"""Pipelines without a family of their own: their images are those of stock, and their denoiser calls are shared."""

from __future__ import annotations

import inspect
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from serving.diffusion.tiny_pipelines import PIPELINES, build
from serving.stock import ENGINE_MARKS, gap
from takeup.errors import BadInput, UnknownName
from takeup.serving.diffusion.addons.lora.addon import Loras
from takeup.serving.diffusion.addons.lora.loading import ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.contract import Family
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.stock_pipelines import NetworkCall, StockPipeline, by_place_or_name
from takeup.serving.model import Cancelled, LoraUse, Request

pytestmark = ENGINE_MARKS

ROUNDING = 3e-5  # attention is sharpened, which amplifies rounding
SIZES = ((32, 64), (64, 32), (32, 64))
NATIVE = {"Flux schnell", "SD 3.5"}
OPTIONS: dict[str, Any] = {
    "use_resolution_binning": False,
    "clean_caption": False,
    "max_area": 64 * 32,
    "_auto_resize": False,
    "max_sequence_length": 64,
}


def requests_for(pipeline: Any) -> list[Request]:
    """Portraits and landscapes, each at another step when the next one joins."""
    options = tuple((name, value) for name, value in OPTIONS.items() if name in parameters_of(pipeline))
    native = not isinstance(family_of(pipeline), StockPipeline)
    return [
        Request(
            f"a {colour} cat",
            "ugly",
            num_steps=3 + number % 2,
            guidance=2.0,
            true_guidance=2.0,
            guidance_rescale=0.4,
            seed=number,
            height_px=height,
            width_px=width,
            options=() if native else options,
        )
        for number, (colour, (height, width)) in enumerate(zip(("red", "blu", "tan"), SIZES, strict=True))
    ]


def parameters_of(pipeline: Any) -> Any:
    return inspect.signature(type(pipeline).__call__).parameters


def inputs_of(pipeline: Any, request: Request) -> dict[str, Any]:
    """An image and a mask, where the pipeline takes them."""
    known = parameters_of(pipeline)
    least = 64 if "Flux2" in type(pipeline).__name__ else 0
    height, width = max(least, request.height_px or 0), max(least, request.width_px or 0)
    pixels = np.random.default_rng(request.seed).integers(0, 255, (height, width, 3), np.uint8)
    size = (width, height)
    offered = {"image": Image.fromarray(pixels), "mask_image": Image.new("L", size, 255), "strength": 1.0}
    return {name: value for name, value in offered.items() if name in known}


def stock_image(pipeline: Any, request: Request) -> torch.Tensor:
    known = parameters_of(pipeline)
    named = {
        "prompt": request.prompt,
        "negative_prompt": request.negative_prompt,
        "num_inference_steps": request.num_steps,
        "guidance_scale": request.guidance if "Qwen" not in type(pipeline).__name__ else None,
        "true_cfg_scale": request.true_guidance,
        "guidance_rescale": request.guidance_rescale,
        "height": request.height_px,
        "width": request.width_px,
        "generator": torch.Generator("cpu").manual_seed(request.seed),
        "output_type": "pt",
        **inputs_of(pipeline, request),
        **dict(request.options),
    }
    images: torch.Tensor = pipeline(**{name: value for name, value in named.items() if name in known}).images
    return images


@pytest.mark.parametrize(
    ("name", "unused"),
    [
        ("SDXL inpaint", {"true_guidance"}),
        ("Flux Kontext", {"guidance_rescale", "strength"}),
        ("PixArt Sigma", {"true_guidance", "guidance_rescale", "strength"}),
    ],
)
def test_a_pipeline_says_which_fields_it_does_not_take(name: str, unused: set[str]) -> None:
    assert set(family_of(build(name)).unused) == unused


@pytest.fixture(params=PIPELINES)
def pipeline(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    if "Qwen" in request.param:
        from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit

        monkeypatch.setattr(pipeline_qwenimage_edit, "calculate_dimensions", lambda area, ratio: (64, 32, None))
    return build(request.param)


def test_requests_that_join_at_other_steps_get_the_images_of_stock(pipeline: Any) -> None:
    family = family_of(pipeline)
    engine = StepEngine(pipeline, family=family)
    requests = requests_for(pipeline)
    tickets = []
    for one in requests:
        extra: dict[str, Any] = inputs_of(pipeline, one) if isinstance(family, StockPipeline) else {}
        tickets.append(engine.enter(family.prepare(one, **extra)))
        engine.advance()
    engine.run()
    images = [engine.image(ticket) for ticket in tickets]

    gaps = [gap(ours, stock_image(pipeline, one)) for ours, one in zip(images, requests, strict=True)]
    assert max(gaps) < ROUNDING


@pytest.mark.parametrize("name", ["Flux Fill", "Flux.2 Klein", "Qwen-Image", "Z-Image", "SDXL inpaint"])
def test_denoiser_calls_of_equal_sizes_are_shared(name: str) -> None:
    pipeline = build(name)
    family = family_of(pipeline)
    assert isinstance(family, StockPipeline)
    engine = StepEngine(pipeline, family=family)
    requests = [one for one in requests_for(pipeline) if one.height_px == 32]
    runs = [family.prepare(one, **inputs_of(pipeline, one)) for one in requests]
    calls = count_calls(family)
    for run in runs:
        engine.enter(run)
    engine.run()

    assert sum(family.checked.values()) == len(family.checked) > 0  # shared, and equal to separate calls
    assert max(calls["rows"]) == 2 * min(calls["rows"])  # the smaller ones are the calls that check


def count_calls(family: Family) -> dict[str, Any]:
    counts: dict[str, Any] = {"made": 0, "rows": []}
    network, forward = family.network, family.network.forward

    def counted(*arguments: Any, **named: Any) -> Any:
        counts["made"] += 1
        call = NetworkCall(network, by_place_or_name(arguments, named))
        counts["rows"].append(call.num_rows)
        return forward(*arguments, **named)

    network.forward = counted
    return counts


class FirstRowOnly(torch.nn.Module):
    """A network that reads the first row of an argument for all rows, as some do with positions."""

    def forward(self, sample: torch.Tensor, offset: torch.Tensor, return_dict: bool = False) -> tuple[torch.Tensor]:
        return (sample + offset[:1],)


@torch.no_grad()
def merged(network: Any, file: Path, scale: float) -> None:
    """Write a LoRA for all layers of attention, and merge it by hand."""
    tensors: dict[str, torch.Tensor] = {}
    random = torch.Generator().manual_seed(7)
    for name, layer in network.named_modules():
        if isinstance(layer, torch.nn.Linear) and re.search(r"attn\d?\.|attention\.", name):
            down = torch.randn(2, layer.in_features, generator=random) * 0.3
            up = torch.randn(layer.out_features, 2, generator=random) * 0.3
            tensors |= {f"diffusion_model.{name}.lora_A.weight": down, f"diffusion_model.{name}.lora_B.weight": up}
            layer.weight += scale * up @ down
    save_file(tensors, file)


@pytest.mark.parametrize("name", ["Flux Kontext", "Flux.2 Klein", "Qwen-Image", "Z-Image", "SDXL inpaint"])
def test_requests_with_and_without_a_lora_get_the_images_of_stock(name: str, tmp_path: Path) -> None:
    plain, changed, pipeline = build(name), build(name), build(name)
    merged(
        changed.transformer if hasattr(changed, "transformer") else changed.unet, tmp_path / "style.safetensors", 0.5
    )
    targets = LoraTargets.of(pipeline, has_text=False)
    loader = ThreadLoader({"style": tmp_path / "style.safetensors"}, targets)
    family = StockPipeline(pipeline)
    loras = Loras(family, loader)
    engine = StepEngine(pipeline, family=family, add_ons=[loras])
    one = requests_for(plain)[0]
    asked = [replace(one, loras=(LoraUse("style", 0.5),)), one]
    tickets = [engine.enter(family.prepare(each, **inputs_of(pipeline, each))) for each in asked]
    engine.run()
    ours = [family.decode(ticket.result()) for ticket in tickets]
    theirs = [stock_image(each, one) for each in (changed, plain)]

    assert gap(*theirs) > 100 * ROUNDING
    assert max(gap(mine, its) for mine, its in zip(ours, theirs, strict=True)) < ROUNDING
    loras.close()


def test_calls_that_would_differ_together_are_never_shared() -> None:
    pipeline = build("PixArt Sigma")
    family, network = StockPipeline(pipeline), FirstRowOnly()
    engine = StepEngine(pipeline, family=family)
    runs = [family.prepare(one) for one in requests_for(pipeline) if one.height_px == 32]
    for number, run in enumerate(runs):
        run.call = NetworkCall(network, {"sample": torch.ones(1, 3), "offset": torch.full((1, 3), float(number))})
        run.kind = run.call.kind(run.digest_of)
    rows = engine._gather(tuple(runs))
    family.predict(rows)

    assert runs[0].kind == runs[1].kind
    assert [run.output[0].tolist() for run in runs] == [[[1.0] * 3], [[2.0] * 3]]
    assert family.checked == {runs[0].kind: False}
    for run in runs:
        family.add_ons[0].left(run)


def test_positions_of_other_values_are_of_another_kind() -> None:
    def kind(positions: list[int]) -> Any:
        ids = torch.tensor(positions).view(1, 2, 1)
        call = NetworkCall(None, {"hidden_states": torch.ones(1, 2, 4), "img_ids": ids, "img_shapes": [[(1, 2, 2)]]})
        return call.kind(lambda tensor: tuple(tensor.flatten().tolist()))

    assert kind([0, 1]) == kind([0, 1])
    assert kind([0, 1]) != kind([1, 0])


def test_a_request_that_is_cancelled_ends_its_thread() -> None:
    pipeline = build("PixArt Sigma")
    engine = StepEngine(pipeline)
    before = set(threading.enumerate())
    ticket = engine.submit(requests_for(pipeline)[0])
    (thread,) = set(threading.enumerate()) - before
    engine.advance()
    ticket.cancel()
    engine.run()
    thread.join(30)

    assert not thread.is_alive()
    with pytest.raises(Cancelled):
        ticket.result()


def test_what_a_pipeline_refuses_is_a_bad_request() -> None:
    pipeline = build("PixArt Sigma")
    engine = StepEngine(pipeline)
    one = requests_for(pipeline)[0]

    with pytest.raises(BadInput, match=r"refuses this request .*divisible by 8"):
        engine.submit(Request("a cat", height_px=33, width_px=32, options=one.options))
    with pytest.raises(UnknownName, match="clip_skip"):
        engine.submit(Request("a cat", options=(("clip_skip", 1),)))
    with pytest.raises(BadInput, match="scheduler"):
        engine.submit(Request("a cat", scheduler="ddim"))
    ticket = engine.submit(Request("a cat", height_px=32, width_px=32, loras=(LoraUse("x"),), options=one.options))
    engine.run()
    with pytest.raises(BadInput, match="LoRAs"):
        ticket.result()
