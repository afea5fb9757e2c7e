"""Residual blocks of U-Nets with fewer passes over memory.

An up block concatenates its input with a skip, normalizes it, and adds a bias and the time embedding to every channel
before the next norm. Separately, each of these reads and writes the whole image. Here one norm kernel takes the two
images and the per-channel values unmodified. The results are those of diffusers; rounding differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch.nn.functional import conv2d

from takeup.serving.engines.diffusers.device.forwards import ReplacedForwards
from takeup.serving.engines.diffusers.device.ops import joined_norm
from takeup.serving.engines.diffusers.device.stacks import WeightStacks
from takeup.serving.engines.diffusers.device.times import TimeProjections, time_projection

UP_BLOCKS = ("UpBlock2D", "CrossAttnUpBlock2D")


class FusedResidualBlocks:
    """A network whose plain residual blocks fuse concatenation and norm, and whose up blocks pass skips to them.

    With the `stacks` of the network, the time projections of all blocks are computed at once.
    """

    def __init__(self, network: Any, stacks: WeightStacks | None = None) -> None:
        blocks = [one for one in network.modules() if _is_plain_resnet(one)]
        ups = [one for one in network.modules() if type(one).__name__ in UP_BLOCKS and _can_fuse_skips(one)]
        self._times = TimeProjections(network, blocks, stacks) if stacks is not None and blocks else None
        forwards = {one: MethodType(_resnet, one) for one in blocks}
        forwards |= {one: MethodType(_up, one) for one in ups}
        forwards |= {one.norm: MethodType(_group_norm, one.norm) for one in network.modules() if _has_group_norm(one)}
        if hasattr(network, "conv_norm_out") and isinstance(getattr(network, "conv_act", None), torch.nn.SiLU):
            forwards[network.conv_norm_out] = MethodType(_norm_and_silu, network.conv_norm_out)
            forwards[network.conv_act] = MethodType(_nothing, network.conv_act)
        self._forwards = ReplacedForwards(forwards)

    @property
    def num_blocks(self) -> int:
        """The number of modules with a replaced forward."""
        return len(self._forwards)

    @contextmanager
    def separate(self) -> Iterator[None]:
        """Inside, every layer is called separately, as hooks on layers require."""
        self._let_time(False)
        try:
            with self._forwards.separate():
                yield
        finally:
            self._let_time(True)

    def _let_time(self, is_on: bool) -> None:
        if self._times is not None:
            self._times.is_on = is_on


def _normed(norm: Any, *images: torch.Tensor | None, has_silu: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    image, skip, added = images
    found: tuple[torch.Tensor, torch.Tensor] = joined_norm(
        image, skip, added, norm.weight, norm.bias, norm.num_groups, norm.eps, has_silu
    )
    return found


def _resnet(self: Any, image: torch.Tensor, temb: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor:
    """A `ResnetBlock2D` of an image, or of an image and a skip to be concatenated."""
    hidden, joined = _normed(self.norm1, image, skip, None)
    source = image if skip is None else joined
    hidden = conv2d(hidden, self.conv1.weight, None, padding=self.conv1.padding)  # the next norm adds its bias
    hidden, _ = _normed(self.norm2, hidden, None, time_projection(self, temb))
    if self.conv_shortcut is not None:
        source = self.conv_shortcut(source)
    bias = getattr(self, "raised_bias", self.conv2.bias)
    hidden = conv2d(hidden, self.conv2.weight, bias, padding=self.conv2.padding)
    return (source + hidden) / self.output_scale_factor  # type: ignore[no-any-return]


def _group_norm(self: Any, image: torch.Tensor) -> torch.Tensor:
    return _normed(self, image, None, None, has_silu=False)[0]


def _norm_and_silu(self: Any, image: torch.Tensor) -> torch.Tensor:
    return _normed(self, image, None, None)[0]


def _nothing(self: Any, image: torch.Tensor) -> torch.Tensor:
    return image


def _up(
    self: Any,
    hidden_states: torch.Tensor,
    res_hidden_states_tuple: Sequence[torch.Tensor],
    temb: torch.Tensor | None = None,
    encoder_hidden_states: torch.Tensor | None = None,
    upsample_size: int | None = None,
    **_: Any,
) -> torch.Tensor:
    """An up block without the copies that concatenate images and skips."""
    attentions = getattr(self, "attentions", [None] * len(self.resnets))
    skips = reversed(res_hidden_states_tuple[-len(self.resnets) :])
    for resnet, attention, skip in zip(self.resnets, attentions, skips, strict=True):
        hidden_states = resnet(hidden_states, temb, skip)
        if attention is not None:
            (hidden_states,) = attention(hidden_states, encoder_hidden_states=encoder_hidden_states, return_dict=False)
    for upsampler in self.upsamplers or ():
        hidden_states = upsampler(hidden_states, upsample_size)
    return hidden_states


def can_add_bias(module: Any) -> bool:
    """Whether this residual block is fused, and can add a `raised_bias` to its output without rescaling."""
    return _is_plain_resnet(module) and module.output_scale_factor == 1 and module.conv2.bias is not None


def _is_plain_resnet(module: Any) -> bool:
    if type(module).__name__ != "ResnetBlock2D" or module.time_emb_proj is None or module.skip_time_act:
        return False
    usual = module.time_embedding_norm == "default" and module.upsample is None and module.downsample is None
    return usual and isinstance(module.nonlinearity, torch.nn.SiLU) and module.conv1.bias is not None


def _has_group_norm(module: Any) -> bool:
    return type(module).__name__ == "Transformer2DModel" and isinstance(module.norm, torch.nn.GroupNorm)


def _can_fuse_skips(block: Any) -> bool:
    return all(_is_plain_resnet(resnet) for resnet in block.resnets) and not any(
        getattr(block, s, None) for s in ("s1", "b1")
    )
