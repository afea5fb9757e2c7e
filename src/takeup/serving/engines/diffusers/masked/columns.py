"""U-Nets whose convolutions compute masked pixels only: the feature maps between modules are columns of these pixels.

How it works. The masked pixels form a feature map of their own number in height, and of width one. Pointwise products,
sums and channel concatenation work on it unchanged. These modules get a replacement forward:

    convolutions    gather nine neighbours of each pixel, computed or cached (`neighbours`)
    group norms     use the statistics of the template, so that they are pointwise too
    conv_in         makes a column of the whole map; conv_out scatters it into the cached output

Attention needs no gather: columns hold only the masked tokens already.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import torch
from torch.nn.functional import linear, silu

from takeup.errors import BadInput
from takeup.serving.engines.diffusers.masked.gather import Affine, gathered
from takeup.serving.engines.diffusers.masked.neighbours import Resampling

BLOCKS = frozenset(
    {"DownBlock2D", "CrossAttnDownBlock2D", "UNetMidBlock2DCrossAttn", "CrossAttnUpBlock2D", "UpBlock2D"}
)
ConvolutionInputs = tuple[torch.Tensor, torch.Tensor]
"""Kept pixels of the rim, and the table of neighbours."""


class ActivationSource(Protocol):
    """Cached activations and index tables for the current call."""

    def enter(self, size: tuple[int, int]) -> torch.Tensor:
        """Gather table of the first convolution, for a map of this size: indices of all pixels, or zero padding."""

    def around(self, name: str, move: Resampling) -> ConvolutionInputs:
        """Rim pixels and gather table of the convolution of this name."""

    def affine(self, name: str) -> Affine:
        """Scale and shift of the norm of this name."""

    def leave(self, tokens: torch.Tensor) -> torch.Tensor:
        """The whole output map, with the computed pixels scattered into the cached ones."""


class MaskedConvolutions:
    """Replaces forwards of a U-Net from `put` to `remove`: every call in between computes columns."""

    def __init__(self, network: Any, source: ActivationSource) -> None:
        self.network, self.source = network, source
        if not supports_masked_convolutions(network):
            raise BadInput("this network has blocks that mask-aware convolutions do not know; leave them off")
        self._resnets = [one for _, one in _named(network, "ResnetBlock2D")]
        self._forwards = dict(self._all_forwards())
        self._before: dict[Any, Any] = {}
        self._convolutions = list(_convolutions(network))

    @property
    def is_exact(self) -> bool:
        """Whether no convolution has forward hooks, such as unmerged LoRAs: columns use the weights only."""
        return not any(one._forward_hooks for one in self._convolutions)

    def put(self) -> None:
        """Install the forwards over those the modules have now."""
        for module, forward in self._forwards.items():
            self._before[module] = vars(module).get("forward")
            module.__dict__["forward"] = forward

    def remove(self) -> None:
        """Restore the previous forwards."""
        for module, before in self._before.items():
            del module.__dict__["forward"]
            if before is not None:
                module.__dict__["forward"] = before
        self._before = {}

    def _all_forwards(self) -> Iterator[tuple[Any, Any]]:
        kinds: dict[str, Any] = {
            "ResnetBlock2D": self._resnet,
            "Downsample2D": self._down,
            "Upsample2D": self._up,
            "GroupNorm": self._norm,
            "Transformer2DModel": self._transformer,
        }
        for kind, forward in kinds.items():
            yield from ((module, partial(forward, name, module)) for name, module in _named(self.network, kind))
        yield self.network.conv_in, partial(self._first, self.network.conv_in)
        yield self.network.conv_out, partial(self._last, self.network.conv_out)

    # Forwards -------------------------------------------------------------------------------------------------------

    def _first(self, module: Any, sample: torch.Tensor) -> torch.Tensor:
        table = self.source.enter((sample.shape[2], sample.shape[3]))
        pixels = sample.permute(0, 2, 3, 1).flatten(1, 2)
        return column(
            _product(gathered(pixels, pixels.new_empty(0, pixels.shape[2]), table, None), module, len(pixels))
        )

    def _last(self, module: Any, sample: torch.Tensor) -> torch.Tensor:
        return self.source.leave(self._convolved("conv_out", module, tokens_of(sample), "same"))

    def _resnet(self, name: str, module: Any, sample: torch.Tensor, temb: torch.Tensor, *_: Any) -> torch.Tensor:
        tokens = tokens_of(sample)
        first = self.source.affine(f"{name}.norm1")
        made = self._convolved(f"{name}.conv1", module.conv1, tokens, "same", first)
        scale, shift = self.source.affine(f"{name}.norm2")
        second = scale, torch.addcmul(shift, self._time(module, temb), scale)
        made = self._convolved(f"{name}.conv2", module.conv2, made, "same", second)
        if module.conv_shortcut is not None:
            tokens = linear(tokens, module.conv_shortcut.weight.flatten(1), module.conv_shortcut.bias)
        return column(tokens + made)

    def _down(self, name: str, module: Any, sample: torch.Tensor, *others: Any) -> torch.Tensor:
        return column(self._convolved(f"{name}.conv", module.conv, tokens_of(sample), "down"))

    def _up(self, name: str, module: Any, sample: torch.Tensor, *others: Any) -> torch.Tensor:
        return column(self._convolved(f"{name}.conv", module.conv, tokens_of(sample), "up"))

    def _norm(self, name: str, module: Any, sample: torch.Tensor) -> torch.Tensor:
        scale, shift = self.source.affine(name)
        return column(torch.addcmul(shift[:, None], tokens_of(sample), scale[:, None]).to(sample.dtype))

    def _transformer(self, name: str, module: Any, sample: torch.Tensor, *others: Any, **named: Any) -> Any:
        """Avoid the feature-map copies of the stock forward."""
        if not isinstance(module.proj_in, torch.nn.Linear):
            return type(module).forward(module, sample, *others, **named)
        text = others[0] if others else named.get("encoder_hidden_states")
        tokens = module.proj_in(tokens_of(module.norm(sample)))
        for block in module.transformer_blocks:
            tokens = block(tokens, encoder_hidden_states=text)
        return (column(module.proj_out(tokens)) + sample,)

    # ---------------------------------------------------------------------------------------------------------------

    def _convolved(
        self, name: str, module: Any, tokens: torch.Tensor, move: Resampling, norm: Affine | None = None
    ) -> torch.Tensor:
        rim, table = self.source.around(name, move)
        return _product(gathered(tokens, rim, table, norm), module, len(tokens))

    def _time(self, module: Any, temb: torch.Tensor) -> torch.Tensor:
        """Time embedding that a block adds."""
        if module is self._resnets[0]:
            self._active = silu(temb)
        added: torch.Tensor = module.time_emb_proj(self._active)
        return added


def _product(rows: torch.Tensor, module: Any, num_rows: int) -> torch.Tensor:
    weight = module.weight.permute(0, 2, 3, 1).flatten(1)
    return linear(rows, weight, module.bias).view(num_rows, -1, len(weight))


def _named(network: Any, kind: str) -> Iterator[tuple[str, Any]]:
    return ((name, one) for name, one in network.named_modules() if type(one).__name__ == kind)


def _convolutions(network: Any) -> Iterator[Any]:
    """Convolutions whose own forward is bypassed here."""
    for name in ("ResnetBlock2D", "Downsample2D", "Upsample2D"):
        for _, module in _named(network, name):
            yield from (one for one in module.modules() if isinstance(one, torch.nn.Conv2d))
    yield from (network.conv_in, network.conv_out)


def supports_masked_convolutions(network: Any) -> bool:
    """Whether all blocks of a network are supported: those of Stable Diffusion 1, 2 and XL are."""
    if type(network).__name__ != "UNet2DConditionModel":
        return False
    blocks = [*network.down_blocks, network.mid_block, *network.up_blocks]
    same_size = all(one.kernel_size == (3, 3) and one.padding == (1, 1) for one in (network.conv_in, network.conv_out))
    return same_size and all(map(_is_known, blocks)) and all(map(_is_plain, network.modules()))


def _is_known(block: Any) -> bool:
    """Blocks that filter whole feature maps (FreeU) are not supported."""
    return type(block).__name__ in BLOCKS and not getattr(block, "s1", None)


def _is_plain(module: Any) -> bool:
    kind = type(module).__name__
    if kind == "ResnetBlock2D":
        is_usual = module.time_embedding_norm == "default" and module.output_scale_factor == 1
        return bool(is_usual and module.time_emb_proj is not None and isinstance(module.nonlinearity, torch.nn.SiLU))
    if kind in {"Downsample2D", "Upsample2D"}:
        conv = module.conv
        return bool(isinstance(conv, torch.nn.Conv2d) and conv.padding == (1, 1) and module.norm is None)
    return True


def column(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens as a feature map of width one, without a copy."""
    return tokens.transpose(1, 2)[..., None]


def tokens_of(sample: torch.Tensor) -> torch.Tensor:
    """The pixels of a feature map as tokens; for columns without a copy."""
    return sample.flatten(2).transpose(1, 2)


def affine_of(norm: Any, sample: torch.Tensor) -> torch.Tensor:
    """Group norm of this map as an affine per channel, shape (rows, 1, 2 x channels): scales, then shifts."""
    groups = sample.float().reshape(len(sample), norm.num_groups, -1)
    spread, mean = torch.var_mean(groups, dim=2, correction=0)
    each = sample.shape[1] // norm.num_groups
    scale = (spread + norm.eps).rsqrt().repeat_interleave(each, 1) * norm.weight.float()
    shift = norm.bias.float() - mean.repeat_interleave(each, 1) * scale
    return torch.cat([scale, shift], dim=1)[:, None]
