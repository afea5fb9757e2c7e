"""Channels-last memory format, from the first convolution to the last.

Convolutions on accelerators are fastest with channels last, and tokens are channels-last anyway. But the blocks that
convert images into tokens and back copy the result into channels-first format, so a channels-last network pays for two
copies at each of them. Here that copy is omitted. With channels last a 1x1 convolution is a matmul, which can add its
bias; as a convolution, the bias is one more pass over the image. The first convolution has so few channels that
libraries pad them: here they are padded with ones, and the weight of one of these is the bias.
"""

from __future__ import annotations

from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.functional import conv2d, linear, pad

DeviceAndDtype = tuple[torch.device, torch.dtype]
WIDTH = 8
"""Channels that a convolution on an accelerator has at least."""
_known: WeakKeyDictionary[Any, tuple[DeviceAndDtype, DeviceAndDtype]] = WeakKeyDictionary()


def channels_last(network: Any) -> Any:
    """Convert the network to channels-last, in place, and return it."""
    network.to(memory_format=torch.channels_last)
    for module in network.modules():
        if type(module).__name__ == "Transformer2DModel" and module.is_input_continuous:
            module._get_output_for_continuous_inputs = MethodType(_output, module)
        elif type(module) is torch.nn.Conv2d and _is_of_single_pixels(module):
            module.forward = MethodType(_product, module)  # type: ignore[method-assign]
    if _can_carry(getattr(network, "conv_in", None)):
        _carry_bias(network.conv_in)
    return network


def _can_carry(layer: Any) -> bool:
    """Whether the bias can be the centre weight of an extra channel; the centre is never in the padding."""
    if type(layer) is not torch.nn.Conv2d or layer.bias is None or layer.in_channels >= WIDTH:
        return False
    plain = layer.stride == layer.padding == layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    return plain and layer.kernel_size == (3, 3) and layer.groups == 1


@torch.no_grad()
def _carry_bias(layer: Any) -> None:
    """Make its weight a view of a wider one, so that patching it in place patches both."""
    num_out, num_in = layer.weight.shape[:2]
    wide = layer.weight.new_zeros((num_out, WIDTH, 3, 3)).contiguous(memory_format=torch.channels_last)
    wide[:, :num_in] = layer.weight
    wide[:, num_in, 1, 1] = layer.bias
    layer.wide_weight, layer.weight.data = wide, wide[:, :num_in]
    layer.forward = MethodType(_padded, layer)


def _padded(self: Any, image: torch.Tensor) -> torch.Tensor:
    last = image.contiguous(memory_format=torch.channels_last)
    return conv2d(pad(last, (0, 0, 0, 0, 0, WIDTH - self.in_channels), value=1), self.wide_weight, padding=1)


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
    """Convert tokens to an image and add the residual; like diffusers, but without the copy."""
    if self.use_linear_projection:
        hidden_states = self.proj_out(hidden_states)
    image = hidden_states.reshape(batch_size, height, width, inner_dim).permute(0, 3, 1, 2)
    if not self.use_linear_projection:
        image = self.proj_out(image)
    return image + residual


def device_and_dtype(network: Any) -> DeviceAndDtype:
    """The device and dtype of a network, cached until its first weight moves or changes dtype.

    Networks of diffusers walk all their modules to determine either, which takes milliseconds.
    """
    weight = next(network.parameters())
    first = weight.device, weight.dtype
    if network not in _known or _known[network][0] != first:
        _known[network] = first, (network.device, network.dtype)
    return _known[network][1]
