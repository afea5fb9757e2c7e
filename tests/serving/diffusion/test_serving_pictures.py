"""Pictures for ControlNets are those of diffusers, number by number; where a network lies is asked once."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import numpy as np
import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

from serving.stock import ENGINE_MARKS
from takeup.serving.diffusion.addons.controlnet.workers import control_image
from takeup.serving.diffusion.execution.convolutions import device_and_dtype

pytestmark = ENGINE_MARKS


class Net(torch.nn.Linear):
    """Says where it is, and counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.num_asked = 0

    @property
    def device(self) -> torch.device:
        self.num_asked += 1
        return self.weight.device

    @property
    def dtype(self) -> torch.dtype:
        self.num_asked += 1
        return self.weight.dtype


def stock(picture: Any, size: tuple[int, int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    make: Any = VaeImageProcessor
    processor = make(vae_scale_factor=8, do_convert_rgb=True, do_normalize=False)
    image: torch.Tensor = processor.preprocess(picture, height=size[0], width=size[1])
    return image.to(dtype)


def noise(mode: str, width: int = 24, height: int = 16) -> Image.Image:
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 4), dtype=np.uint8)
    return Image.fromarray(pixels, "RGBA").convert(mode)


@pytest.mark.parametrize("size", [(16, 24), (32, 48), (8, 16), (19, 27)])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1"])
def test_pictures_of_every_kind_and_size_are_those_of_diffusers(mode: str, size: tuple[int, int]) -> None:
    ours = control_image(noise(mode), size, 8, Net())

    assert torch.equal(ours, stock(noise(mode), size))
    assert ours.is_contiguous()


def test_all_values_of_a_pixel_come_out_as_diffusers_divides_them() -> None:
    ramp = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).convert("RGB")

    assert torch.equal(control_image(ramp, (16, 16), 8, Net()), stock(ramp, (16, 16)))


def test_pictures_have_the_precision_of_the_network() -> None:
    ours = control_image(noise("RGB"), (16, 24), 8, Net().bfloat16())

    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, stock(noise("RGB"), (16, 24), torch.bfloat16))


def test_what_is_no_picture_is_left_to_diffusers() -> None:
    tensor = torch.rand(1, 3, 16, 24, generator=torch.Generator().manual_seed(1))

    assert torch.equal(control_image(tensor, (16, 24), 8, Net()), stock(tensor, (16, 24)))


def test_a_network_is_asked_once_where_it_lies_and_again_when_that_changed() -> None:
    net = Net()
    places = [device_and_dtype(net) for _ in range(3)]
    num_before = net.num_asked
    net.bfloat16()
    moved = device_and_dtype(net)

    assert places == [(torch.device("cpu"), torch.float32)] * 3
    assert num_before == 2
    assert moved == (torch.device("cpu"), torch.bfloat16)
    assert net.num_asked == 4


def test_networks_do_not_share_what_is_known_of_them() -> None:
    assert device_and_dtype(Net())[1] == torch.float32
    assert device_and_dtype(Net().double())[1] == torch.float64
