"""Safety checkers and watermarks of pipelines run as in stock diffusers, unless a server is told to leave them out."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.stock import ENGINE_MARKS
from takeup.serving.diffusion.engine.sampling import usual_settings
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build
from takeup.serving.model import Request
from takeup.serving.server.backends import ImageJob
from takeup.serving.server.backends.local import ServingPlan

pytestmark = ENGINE_MARKS
ONE = Request("a cat", num_steps=2, guidance=4.0, seed=6, height_px=32, width_px=32)


class Flagging(torch.nn.Module):
    """Blanks every image, as the checker of diffusers does with those it flags."""

    device, dtype = torch.device("cpu"), torch.float32

    def forward(self, images: Any, clip_input: Any) -> tuple[Any, list[bool]]:
        return torch.zeros_like(images), [True] * len(images)


class Features:
    def __call__(self, images: Any, return_tensors: str) -> Any:
        return type("Found", (), {"to": lambda self, _: self, "pixel_values": torch.zeros(1, 3, 2, 2)})()


class Watermark:
    def apply_watermark(self, images: torch.Tensor) -> torch.Tensor:
        return images * 0.5


def engine_image(pipeline: Any) -> torch.Tensor:
    engine = StepEngine(pipeline)
    ticket = engine.submit(ONE)
    engine.run()
    return engine.image(ticket)


def stock_image(pipeline: Any) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(ONE.seed)
    options = {"num_inference_steps": 2, "guidance_scale": 4.0, "height": 32, "width": 32}
    image: torch.Tensor = pipeline(ONE.prompt, generator=generator, output_type="pt", **options).images
    return image


def test_an_image_that_the_checker_flags_is_blank_as_in_stock() -> None:
    pipeline = build("takeup/tiny-sd15")
    pipeline.safety_checker, pipeline.feature_extractor = Flagging(), Features()
    ours = engine_image(pipeline)

    assert torch.equal(ours, stock_image(pipeline))
    assert not ours.any()


def test_the_watermark_of_the_pipeline_is_applied_as_in_stock() -> None:
    pipeline = build("takeup/tiny-sdxl")
    plain = engine_image(pipeline)
    pipeline.watermark = Watermark()
    marked = engine_image(pipeline)

    assert (marked - stock_image(pipeline)).abs().max() < 1e-5
    assert not torch.allclose(marked, plain, atol=1e-3)


@pytest.mark.parametrize("checks_safety", [True, False])
def test_a_server_runs_the_checker_unless_it_is_told_not_to(
    checks_safety: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = build("takeup/tiny-sd15")
    pipeline.safety_checker, pipeline.feature_extractor = Flagging(), Features()
    monkeypatch.setattr("takeup.serving.server.backends.local.open_model", lambda *_: pipeline)
    backend = ServingPlan("takeup/tiny-sd15", checks_safety=checks_safety).build()
    pictures = [backend.start(ImageJob(ONE), lambda *_: None).done.result(60) for _ in range(2)]
    backend.close()

    assert pictures[0] == pictures[1]
    assert (len(pictures[0]) < 200) is checks_safety  # a blank PNG


@pytest.mark.parametrize(
    ("model", "name", "settings"),
    [
        ("takeup/tiny-sd15", "models/dreamy", (30, 7.5)),
        ("takeup/tiny-sdxl", "owner/sdxl", (30, 5.0)),
        ("takeup/tiny-sdxl", "stabilityai/sdxl-turbo", (4, 0.0)),
        ("takeup/tiny-sdxl-controlnet", "owner/SDXL-Lightning", (4, 0.0)),
        ("takeup/tiny-sd3", "owner/sd3", (28, 7.0)),
        ("takeup/tiny-flux", "owner/flux-dev", (28, 3.5)),
    ],
)
def test_steps_and_guidance_that_are_left_out_are_those_of_the_model(
    model: str, name: str, settings: tuple[int, float]
) -> None:
    assert usual_settings(build(model), name) == settings


def test_a_flux_without_guidance_inputs_is_a_distilled_one() -> None:
    pipeline = build("takeup/tiny-flux")
    pipeline.transformer.register_to_config(guidance_embeds=False)

    assert usual_settings(pipeline, "models/flux") == (4, 0.0)
