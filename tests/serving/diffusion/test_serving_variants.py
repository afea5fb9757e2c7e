"""What real checkpoints bring with them: 16 bit, distilled guidance, other decoders, shifts, noise in every step."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from PIL import Image

from serving.lora_cases import UNET
from serving.lora_files import factors, peft_style, save
from serving.stock import ENGINE_MARKS, gap, stock_latents
from takeup.errors import BadInput
from takeup.serving.diffusion.addons.controlnet.addon import Controls
from takeup.serving.diffusion.addons.lora.file_format import read_lora
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.model import ControlUse, Request

pytestmark = ENGINE_MARKS

EXACT = 1e-5


def request(seed: int = 0, **others: Any) -> Request:
    return Request("a cat", **({"num_steps": 3, "seed": seed, "height_px": 32, "width_px": 32} | others))


def alone(pipeline: Any, one: Request, **options: Any) -> torch.Tensor:
    """The latents of one request, while another one is there."""
    engine = StepEngine(pipeline, **options)
    ticket = engine.submit(one)
    engine.submit(request(99))
    engine.run()
    return ticket.result().latents


@pytest.mark.parametrize("name", ["takeup/tiny-sd15", "takeup/tiny-sdxl", "takeup/tiny-sd3", "takeup/tiny-flux"])
def test_in_bfloat16_images_are_bit_for_bit_those_of_stock_diffusers(name: str) -> None:
    pipeline = build(name).to(torch.bfloat16)
    ours = alone(pipeline, request(1), deterministic=True)

    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, stock_latents(pipeline, request(1)))


@pytest.mark.parametrize(("scheduler", "eta"), [("ddim", 0.5), ("ddim", 1.0), ("ddpm", 0.0), ("euler_ancestral", 0.0)])
def test_noise_in_every_step_is_drawn_from_the_generator_of_the_request(scheduler: str, eta: float) -> None:
    pipeline, one = tiny("takeup/tiny-sd15"), request(3, scheduler=scheduler, eta=eta)
    first, other = alone(pipeline, one), alone(pipeline, request(4, scheduler=scheduler, eta=eta))

    assert gap(first, stock_latents(pipeline, one)) < EXACT
    assert gap(first, other) > 0.1


def test_models_distilled_for_guidance_are_told_its_strength() -> None:
    pipeline, diffusers = build("takeup/tiny-sdxl"), import_module("diffusers")
    torch.manual_seed(0)
    config = {key: value for key, value in pipeline.unet.config.items() if not key.startswith("_")}
    unet = diffusers.UNet2DConditionModel(**(config | {"time_cond_proj_dim": 32})).eval()
    pipeline.register_modules(unet=unet)
    strong, weak = request(1, scheduler="lcm", guidance=8.0), request(1, scheduler="lcm", guidance=2.0)
    ours = alone(pipeline, strong)

    assert family_of(pipeline).prepare(strong).num_rows == 1
    assert gap(ours, stock_latents(pipeline, strong)) < EXACT
    assert gap(ours, alone(pipeline, weak)) > EXACT


def test_decoders_with_a_mean_and_a_spread_are_used_as_in_stock_diffusers() -> None:
    pipeline = build("takeup/tiny-sdxl")
    pipeline.vae.register_to_config(latents_mean=[0.1, -0.2, 0.3, 0.0], latents_std=[1.5, 0.5, 2.0, 1.0])
    engine = StepEngine(pipeline)
    ticket = engine.submit(request(2))
    engine.run()
    options = {"num_inference_steps": 3, "guidance_scale": 5.0, "height": 32, "width": 32, "output_type": "pt"}
    theirs = pipeline("a cat", generator=torch.Generator().manual_seed(2), **options).images

    assert (engine.image(ticket) - theirs).abs().max() < EXACT


def test_schedulers_that_shift_with_the_size_are_told_it() -> None:
    pipeline = build("takeup/tiny-sd3")
    kind = import_module("diffusers").FlowMatchEulerDiscreteScheduler
    pipeline.scheduler = kind(use_dynamic_shifting=True, base_image_seq_len=64, max_image_seq_len=512)
    small, large = request(1), request(1, height_px=64)
    pairs = [(alone(pipeline, one), stock_latents(pipeline, one)) for one in (small, large)]
    times = [family_of(pipeline).prepare(one).timesteps[1] for one in (small, large)]

    assert max(gap(*pair) for pair in pairs) < EXACT
    assert times[0] != times[1]


def test_flux_without_an_input_for_guidance_is_served_too() -> None:
    pipeline, diffusers = build("takeup/tiny-flux"), import_module("diffusers")
    torch.manual_seed(0)
    config = {**pipeline.transformer.config, "guidance_embeds": False}
    pipeline.register_modules(transformer=diffusers.FluxTransformer2DModel.from_config(config).eval())

    assert "guidance" not in family_of(pipeline).prepare(request()).inputs
    assert gap(alone(pipeline, request(5)), stock_latents(pipeline, request(5))) < EXACT


def test_flux_has_a_negative_branch_only_if_both_are_asked_for() -> None:
    family = family_of(tiny("takeup/tiny-flux"))
    asked: list[dict[str, Any]] = [
        {"true_guidance": 2.0},
        {"negative_prompt": "x"},
        {"true_guidance": 2.0, "negative_prompt": "x"},
    ]

    assert [family.prepare(request(**one)).num_rows for one in asked] == [1, 1, 2]


def test_stable_diffusion_1_5_has_controlnets_as_well() -> None:
    plain, diffusers = build("takeup/tiny-sd15"), import_module("diffusers")
    torch.manual_seed(0)
    net = diffusers.ControlNetModel.from_unet(plain.unet, conditioning_embedding_out_channels=(16, 32)).eval()
    for block in (*net.controlnet_down_blocks, net.controlnet_mid_block):
        torch.nn.init.normal_(block.weight, std=0.1)
    parts = {**plain.components, "controlnet": net, "requires_safety_checker": False}
    pipeline = diffusers.StableDiffusionControlNetPipeline(**parts)
    pipeline.set_progress_bar_config(disable=True)
    image = Image.new("RGB", (32, 32), "red")
    one = request(1, controls=(ControlUse("red", image, scale=0.7),))
    ours = alone(pipeline, one, add_ons=[Controls(family_of(pipeline), {"red": net})], deterministic=True)

    assert torch.equal(ours, stock_latents(pipeline, one, image=image, controlnet_conditioning_scale=0.7))
    assert gap(ours, alone(pipeline, request(1))) > 0.001


def test_what_a_file_tells_about_itself_must_be_readable(tmp_path: Path) -> None:
    pipeline = tiny("takeup/tiny-sdxl")
    tensors = peft_style(factors(pipeline, UNET[:1]))
    file = save(tensors, tmp_path / "a.safetensors", lora_adapter_metadata="{not json")

    with pytest.raises(BadInput, match="is not JSON"):
        read_lora(file, LoraTargets.of(pipeline))


def test_the_configuration_that_peft_writes_beside_a_file_counts(tmp_path: Path) -> None:
    pipeline = tiny("takeup/tiny-sdxl")
    file = save(peft_style(factors(pipeline, UNET[:1])), tmp_path / "a.safetensors")
    plain = read_lora(file, LoraTargets.of(pipeline)).changes[UNET[0]].factor
    (tmp_path / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 12}')

    assert (plain, read_lora(file, LoraTargets.of(pipeline)).changes[UNET[0]].factor) == (1.0, 3.0)
