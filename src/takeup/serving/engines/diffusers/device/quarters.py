"""Fused 2x nearest-neighbour upsampling and 3x3 convolution, for four ninths of the multiplications.

In the upsampled image every pixel occurs four times, so a 3x3 window sees at most 2x2 different ones. Which they are
depends on the quarter of the pixel that the window is centred on. So there are four 2x2 convolutions over the original
image, one for each quarter, and their outputs are interleaved. Weights that apply to the same pixel are summed
beforehand.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import MethodType
from typing import Any

import torch
from torch.nn.functional import conv2d

from takeup.serving.engines.diffusers.device.forwards import ReplacedForwards

# By the half of a pixel that a window is centred on: which of two pixels each of its three weights applies to.
QUARTER_TAPS = ((0, 1, 1), (0, 0, 1))


class FusedUpsampling:
    """A network with fused upsampling and convolution; call `refresh` after weights changed."""

    def __init__(self, network: Any) -> None:
        self._modules = [one for one in network.modules() if _doubles(one)]
        self._versions: dict[Any, int] = {}
        for one in self._modules:
            num_out, num_in = one.conv.weight.shape[:2]
            one.quarters = one.conv.weight.new_empty(4 * num_out, num_in, 2, 2).to(memory_format=torch.channels_last)
            one.quarters_bias = None if one.conv.bias is None else one.conv.bias.detach().repeat(4)
        self.refresh()
        self._forwards = ReplacedForwards({one: MethodType(_doubled, one) for one in self._modules})

    @property
    def num_layers(self) -> int:
        """The number of fused layers."""
        return len(self._modules)

    @torch.no_grad()
    def refresh(self) -> None:
        """Recompute the summed weights of layers whose weights changed."""
        for one in self._modules:
            if self._versions.get(one) != one.conv.weight._version:
                one.quarters.copy_(_quarters(one.conv.weight))
                self._versions[one] = one.conv.weight._version

    def separate(self) -> AbstractContextManager[None]:
        """Inside, upsampling and convolution are separate, as hooks on layers require."""
        return self._forwards.separate()


def _doubles(module: Any) -> bool:
    if type(module).__name__ != "Upsample2D" or module.norm is not None or not module.interpolate:
        return False
    conv = getattr(module, "conv", None)
    return type(conv) is torch.nn.Conv2d and conv.kernel_size == (3, 3) and conv.padding == (1, 1)


def _quarters(weight: torch.Tensor) -> torch.Tensor:
    """Four 2x2 kernels, concatenated along the outputs, from one 3x3 kernel; summed in single precision."""
    meets = torch.nn.functional.one_hot(torch.tensor(QUARTER_TAPS), 2).to(
        weight.device, torch.float32
    )  # half, weight, pixel
    parts = torch.einsum("oiyx,ayp,bxq->aboipq", weight.float(), meets, meets)
    return parts.flatten(0, 2).to(weight.dtype)


def _doubled(self: Any, hidden_states: torch.Tensor, output_size: Any = None, *_: Any, **__: Any) -> torch.Tensor:
    """The forward of an `Upsample2D`."""
    height, width = hidden_states.shape[2:]
    if output_size is not None and tuple(output_size) != (2 * height, 2 * width):
        return type(self).forward(self, hidden_states, output_size)  # type: ignore[no-any-return]
    found = conv2d(hidden_states, self.quarters, self.quarters_bias, padding=1)
    corners = found.permute(0, 2, 3, 1).reshape(len(found), height + 1, width + 1, 2, 2, -1)
    rows = [torch.stack([corners[:, a : a + height, b : b + width, a, b] for b in (0, 1)], dim=3) for a in (0, 1)]
    return torch.stack(rows, dim=2).flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)
