"""U-Nets whose convolutions compute masked pixels only: all that passes between their modules is a column of these.

How it works. Masked pixels of a map are themselves a map: as high as there are pixels, one wide. Products for single
pixels, sums and joined channels do not notice. What does gets a forward of its own here:

    convolutions    take nine neighbours of each pixel, computed or kept (`neighbours`)
    group norms     use the statistics of the template, so that they are products for single pixels too
    the first one   makes a column of the whole map, and the last one puts it back into the kept one

Tokens of attention need nothing: columns hold the masked ones already. Where nothing is masked, all is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import torch
from torch.nn.functional import linear, silu

from takeup.errors import BadInput
from takeup.serving.engines.diffusers.masked.gather import Affine, gathered
from takeup.serving.engines.diffusers.masked.neighbours import Move

__all__ = ["Columns", "Source", "affine_of", "column", "tokens_of"]

Found = tuple[torch.Tensor, torch.Tensor]
"""Kept pixels of the rim, and the table of neighbours."""


class Source(Protocol):
    """What is kept of a template, for the call that is under way."""

    @property
    def is_masked(self) -> bool:
        """Whether columns are computed now."""

    def enter(self, size: tuple[int, int]) -> torch.Tensor:
        """For a map of this size, the table of neighbours of the first convolution: among all pixels, or nothing."""

    def around(self, name: str, move: Move) -> Found:
        """Of the convolution of this name."""

    def affine(self, name: str) -> Affine:
        """The norm of this name."""

    def leave(self, tokens: torch.Tensor) -> torch.Tensor:
        """All pixels of the last map, of those that were computed."""


class Columns:
    """On a U-Net until `remove`."""

    def __init__(self, network: Any, source: Source) -> None:
        self.network, self.source = network, source
        self._changed: list[Any] = []
        self._resnets = [one for _, one in _named(network, "ResnetBlock2D")]
        if not all(map(_is_plain, self._resnets)):
            raise BadInput("this U-Net has blocks that mask-aware convolutions do not know; leave them off")
        self._override("ResnetBlock2D", self._resnet)
        self._override("Downsample2D", self._down)
        self._override("Upsample2D", self._up)
        self._override("GroupNorm", self._norm)
        self._override("Transformer2DModel", self._transformer)
        self._change(network.conv_in, partial(self._first, network.conv_in))
        self._change(network.conv_out, partial(self._last, network.conv_out))

    def remove(self) -> None:
        """Leave the network as it was."""
        for module in self._changed:
            del module.forward
        self._changed = []

    def _override(self, kind: str, forward: Any) -> None:
        for name, module in _named(self.network, kind):
            self._change(module, partial(forward, name, module))

    def _change(self, module: Any, forward: Any) -> None:
        module.forward = forward
        self._changed.append(module)

    # Forwards -------------------------------------------------------------------------------------------------------

    def _first(self, module: Any, sample: torch.Tensor) -> torch.Tensor:
        if not self.source.is_masked:
            return _stock_map(module, sample)
        table = self.source.enter((sample.shape[2], sample.shape[3]))
        pixels = sample.permute(0, 2, 3, 1).flatten(1, 2)
        return column(
            _product(gathered(pixels, pixels.new_empty(0, pixels.shape[2]), table, None), module, len(pixels))
        )

    def _last(self, module: Any, sample: torch.Tensor) -> torch.Tensor:
        if not self.source.is_masked:
            return _stock_map(module, sample)
        return self.source.leave(self._convolved("conv_out", module, tokens_of(sample), "same"))

    def _resnet(self, name: str, module: Any, sample: torch.Tensor, temb: torch.Tensor, *_: Any) -> torch.Tensor:
        if not self.source.is_masked:
            return _stock_map(module, sample, temb)
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
        if not self.source.is_masked:
            return _stock_map(module, sample, *others)
        return column(self._convolved(f"{name}.conv", module.conv, tokens_of(sample), "down"))

    def _up(self, name: str, module: Any, sample: torch.Tensor, *others: Any) -> torch.Tensor:
        if not self.source.is_masked:
            return _stock_map(module, sample, *others)
        return column(self._convolved(f"{name}.conv", module.conv, tokens_of(sample), "up"))

    def _norm(self, name: str, module: Any, sample: torch.Tensor) -> torch.Tensor:
        if not self.source.is_masked:
            return _stock_map(module, sample)
        scale, shift = self.source.affine(name)
        return column(torch.addcmul(shift[:, None], tokens_of(sample), scale[:, None]).to(sample.dtype))

    def _transformer(self, name: str, module: Any, sample: torch.Tensor, *others: Any, **named: Any) -> Any:
        """Without the copies that the stock one makes of maps."""
        if not (self.source.is_masked and isinstance(module.proj_in, torch.nn.Linear)):
            return _stock(module, sample, *others, **named)
        text = others[0] if others else named.get("encoder_hidden_states")
        tokens = module.proj_in(tokens_of(module.norm(sample)))
        for block in module.transformer_blocks:
            tokens = block(tokens, encoder_hidden_states=text)
        return (column(module.proj_out(tokens)) + sample,)

    # ---------------------------------------------------------------------------------------------------------------

    def _convolved(
        self, name: str, module: Any, tokens: torch.Tensor, move: Move, norm: Affine | None = None
    ) -> torch.Tensor:
        rim, table = self.source.around(name, move)
        return _product(gathered(tokens, rim, table, norm), module, len(tokens))

    def _time(self, module: Any, temb: torch.Tensor) -> torch.Tensor:
        """What a block adds for the time of the step."""
        if module is self._resnets[0]:
            self._active = silu(temb)
        added: torch.Tensor = module.time_emb_proj(self._active)
        return added


def _stock(module: Any, *inputs: Any, **named: Any) -> Any:
    return type(module).forward(module, *inputs, **named)


def _stock_map(module: Any, *inputs: Any) -> torch.Tensor:
    made: torch.Tensor = _stock(module, *inputs)
    return made


def _product(rows: torch.Tensor, module: Any, num_rows: int) -> torch.Tensor:
    weight = module.weight.permute(0, 2, 3, 1).flatten(1)
    return linear(rows, weight, module.bias).view(num_rows, -1, len(weight))


def _named(network: Any, kind: str) -> Iterator[tuple[str, Any]]:
    return ((name, one) for name, one in network.named_modules() if type(one).__name__ == kind)


def _is_plain(resnet: Any) -> bool:
    same = resnet.time_embedding_norm == "default" and resnet.output_scale_factor == 1
    return bool(same and resnet.upsample is None and resnet.downsample is None and resnet.time_emb_proj is not None)


def column(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens as a map one wide, without a copy."""
    return tokens.transpose(1, 2)[..., None]


def tokens_of(sample: torch.Tensor) -> torch.Tensor:
    """The pixels of a map as tokens: those of a column without a copy."""
    return sample.flatten(2).transpose(1, 2)


def affine_of(norm: Any, sample: torch.Tensor) -> torch.Tensor:
    """What the norm does to every channel of this map: rows, one, scales and then shifts."""
    groups = sample.float().reshape(len(sample), norm.num_groups, -1)
    spread, mean = torch.var_mean(groups, dim=2, correction=0)
    each = sample.shape[1] // norm.num_groups
    scale = (spread + norm.eps).rsqrt().repeat_interleave(each, 1) * norm.weight.float()
    shift = norm.bias.float() - mean.repeat_interleave(each, 1) * scale
    return torch.cat([scale, shift], dim=1)[:, None]
