"""Doubled images, convolved as they were: what comes out, whose weights are in it, and who is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from diffusers.models.upsampling import Upsample2D
from torch.utils.flop_counter import FlopCounterMode

from serving.lora_cases import EXACT, SDXL, images, request, stock
from serving.lora_files import factors, peft_style, save
from serving.stock import ENGINE_MARKS, gap
from takeup.serving.diffusion.addons.lora.addon import Loras
from takeup.serving.diffusion.addons.lora.loading import ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.diffusion.execution.convolutions import FusedUpsampling
from takeup.serving.diffusion.execution.executors import CudaGraphExecutor

pytestmark = ENGINE_MARKS


def layer(bias: bool = True, **options: Any) -> Any:
    torch.manual_seed(0)
    return Upsample2D(6, use_conv=True, out_channels=5, bias=bias, **options)


def image(height: int, width: int, num_rows: int = 2) -> torch.Tensor:
    chance = torch.Generator().manual_seed(1)
    return torch.randn(num_rows, 6, height, width, generator=chance).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 4), (3, 2), (8, 8)])
@torch.no_grad()
def test_the_image_is_that_of_stock_at_its_edges_too(height: int, width: int, bias: bool) -> None:
    stock, ours = layer(bias), layer(bias)

    assert len(FusedUpsampling(ours)._modules) == 1
    expected, found = stock(image(height, width)), ours(image(height, width))

    assert found.shape == expected.shape
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_fewer_products_are_made() -> None:
    stock, ours = layer(), layer()
    FusedUpsampling(ours)
    counts = []
    for one in (stock, ours):
        with FlopCounterMode(display=False) as counter:
            one(image(8, 8))
        counts.append(counter.get_total_flops())

    assert counts[1] / counts[0] == pytest.approx(4 / 9 * (9 / 8) ** 2)  # with a rim of one pixel


@torch.no_grad()
def test_other_sizes_than_the_double_are_made_as_stock_does() -> None:
    stock, ours = layer(), layer()
    FusedUpsampling(ours)

    for size in ((7, 6), (8, 8), (9, 7)):
        torch.testing.assert_close(ours(image(4, 4), size), stock(image(4, 4), size), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_changed_weights_are_felt_after_a_refresh_and_counted_once() -> None:
    stock, ours = layer(), layer()
    quartered = FusedUpsampling(ours)
    before = ours(image(4, 4))

    for one in (stock, ours):
        one.conv.weight.mul_(2.0)
    torch.testing.assert_close(ours(image(4, 4)), before)
    quartered.refresh()

    torch.testing.assert_close(ours(image(4, 4)), stock(image(4, 4)), rtol=1e-5, atol=1e-5)
    ours.quarters.zero_()
    quartered.refresh()
    assert not ours.quarters.any()  # the same weights are not added up again


@torch.no_grad()
def test_inside_separate_the_convolution_itself_is_called() -> None:
    ours = layer()
    quartered = FusedUpsampling(ours)
    seen: list[torch.Size] = []
    ours.conv.register_forward_hook(lambda module, given, made: seen.append(made.shape))

    ours(image(4, 4))
    with quartered.separate():
        ours(image(4, 4))
    ours(image(4, 4))

    assert seen == [torch.Size([2, 5, 8, 8])]


@pytest.mark.parametrize(
    "other",
    [
        Upsample2D(6, use_conv=False),
        Upsample2D(6, use_conv_transpose=True),
        Upsample2D(6, use_conv=True, norm_type="ln_norm", eps=1e-5, elementwise_affine=True),
        Upsample2D(6, use_conv=True, interpolate=False),
        Upsample2D(6, use_conv=True, kernel_size=5, padding=2),
        Upsample2D(6, use_conv=True, name="Conv2d_0"),
    ],
)
def test_other_layers_are_left_alone(other: Any) -> None:
    assert len(FusedUpsampling(other)._modules) == 0
    assert "forward" not in vars(other)


@torch.no_grad()
def test_sums_of_weights_are_rounded_once() -> None:
    ours = layer().to(torch.bfloat16)
    FusedUpsampling(ours)
    weight = ours.conv.weight.float()

    assert torch.equal(ours.quarters[:5, :, 0, 0], weight[:, :, 0, 0].bfloat16())
    assert torch.equal(ours.quarters[:5, :, 1, 1], weight[:, :, 1:, 1:].sum((2, 3)).bfloat16())
    assert torch.equal(ours.quarters[-5:, :, 1, 1], weight[:, :, 2, 2].bfloat16())


def test_a_lora_of_such_a_layer_is_felt_by_recorded_calls_and_gone_after_it(tmp_path: Path) -> None:
    changes = factors(tiny(SDXL), [("unet", "up_blocks.0.upsamplers.0.conv")])
    files = {"up": save(peft_style(changes), tmp_path / "up.safetensors")}
    pipeline, compute = build(SDXL), CudaGraphExecutor()
    family = family_of(pipeline)
    loras = Loras(family, ThreadLoader(files, LoraTargets.of(pipeline)), stacks=compute.prepared(family.network).stacks)
    engine = StepEngine(pipeline, compute=compute, add_ons=[loras])
    requests = [request(1), request(1, ("up", 0.8)), request(1)]
    ours = [images(engine, [one])[0] for one in requests]
    loras.close()

    assert len(compute.prepared(family.network).quartered._modules) == 1
    assert max(gap(one, stock(files, other)) for one, other in zip(ours, requests, strict=True)) < EXACT
    assert gap(ours[0], ours[1]) > 100 * EXACT
    assert torch.equal(ours[0], ours[2])
