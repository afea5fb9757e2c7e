"""Convolutions of U-Nets: channels-last memory format throughout, and fused upsampling."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.functional import conv2d, linear, pad

# Replacement forwards of modules, and the original ones while hooks on layers need them -------------------------------


class ReplacedForwards:
    """The replacement forward of each module."""

    def __init__(self, forwards: Mapping[Any, Any]) -> None:
        self._forwards = dict(forwards)
        self._use()

    def __len__(self) -> int:
        return len(self._forwards)

    @contextmanager
    def separate(self) -> Iterator[None]:
        """Inside, every module uses its original forward."""
        for module in self._forwards:
            del module.forward
        try:
            yield
        finally:
            self._use()

    def _use(self) -> None:
        for module, forward in self._forwards.items():
            module.forward = forward


# Channels-last memory format, from the first convolution to the last --------------------------------------------------
#
# Convolutions on accelerators are fastest with channels last, and tokens are channels-last anyway. But the blocks that
# convert images into tokens and back copy the result into channels-first format, so a channels-last network pays for
# two copies at each of them. Here that copy is omitted. With channels last a 1x1 convolution is a matmul, which can
# add its bias; as a convolution, the bias is one more pass over the image. The first convolution has so few channels
# that libraries pad them: here they are padded with ones, and the weight of one of these is the bias.

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


# Fused 2x nearest-neighbour upsampling and 3x3 convolution, for four ninths of the multiplications --------------------
#
# In the upsampled image every pixel occurs four times, so a 3x3 window sees at most 2x2 different ones. Which they are
# depends on the quarter of the pixel that the window is centred on. So there are four 2x2 convolutions over the
# original image, one for each quarter, and their outputs are interleaved. Weights that apply to the same pixel are
# summed beforehand.

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
