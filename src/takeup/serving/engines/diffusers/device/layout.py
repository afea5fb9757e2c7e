"""Channels last, from the first convolution to the last.

Convolutions on accelerators are fastest with their channels last, and tokens have them last anyway. But the blocks that
turn images into tokens and back copy the result into channels first, and a network that is laid out otherwise then pays
for two copies at each of them. Here they leave it as it is. With channels last a convolution of single pixels is a
product, which adds its bias on the way; as a convolution, the bias is one more pass over the image.
"""

from __future__ import annotations

from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.functional import linear

__all__ = ["Where", "channels_last", "where_of"]

Where = tuple[torch.device, torch.dtype]
_known: WeakKeyDictionary[Any, tuple[Where, Where]] = WeakKeyDictionary()


def channels_last(network: Any) -> Any:
    """The same network, laid out with channels last."""
    network.to(memory_format=torch.channels_last)
    for module in network.modules():
        if type(module).__name__ == "Transformer2DModel" and module.is_input_continuous:
            module._get_output_for_continuous_inputs = MethodType(_output, module)
        elif type(module) is torch.nn.Conv2d and _is_of_single_pixels(module):
            module.forward = MethodType(_product, module)  # type: ignore[method-assign]
    return network


def _is_of_single_pixels(layer: torch.nn.Conv2d) -> bool:
    plain = layer.kernel_size == layer.stride == (1, 1) and layer.padding == (0, 0)
    return plain and layer.groups == 1


def _product(self: Any, image: torch.Tensor) -> torch.Tensor:
    return linear(image.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


def _output(
    self: Any,
    hidden_states: torch.Tensor,
    residual: torch.Tensor,
    batch_size: int,
    height: int,
    width: int,
    inner_dim: int,
) -> torch.Tensor:
    """Tokens as an image again, with what came in added; only the copy is left out."""
    if self.use_linear_projection:
        hidden_states = self.proj_out(hidden_states)
    image = hidden_states.reshape(batch_size, height, width, inner_dim).permute(0, 3, 1, 2)
    if not self.use_linear_projection:
        image = self.proj_out(image)
    return image + residual


def where_of(network: Any) -> Where:
    """The device and the precision of a network, asked once, and again when its first weight is elsewhere.

    Networks of diffusers walk through all their modules to tell either, which takes milliseconds.
    """
    weight = next(network.parameters())
    first = weight.device, weight.dtype
    if network not in _known or _known[network][0] != first:
        _known[network] = first, (network.device, network.dtype)
    return _known[network][1]
