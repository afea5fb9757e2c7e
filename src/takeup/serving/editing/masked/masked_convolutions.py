"""U-Nets whose convolutions compute masked pixels only: the feature maps between modules are columns of these pixels.

How it works. The masked pixels form a feature map of their own number in height, and of width one. Pointwise products,
sums and channel concatenation work on it unchanged. These modules get a replacement forward:

    convolutions    gather nine neighbours of each pixel, computed or cached (`neighbours`)
    group norms     use the statistics of the template, so that they are pointwise too
    conv_in         makes a column of the whole map; conv_out scatters it into the cached output

Attention needs no gather: columns hold only the masked tokens already.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal, Protocol

import torch
from torch.nn.functional import linear, silu

from takeup.errors import BadInput
from takeup.serving.editing.masked.tokens import Grid, TokenIndices, padded

# Im2col for masked convolutions: nine neighbours of every computed pixel in one row, after norm and activation --------

Affine = tuple[torch.Tensor, torch.Tensor]
"""A norm whose statistics are known: what each channel of each row is multiplied by, and what is added."""


@torch.no_grad()
def gathered(tokens: torch.Tensor, rim: torch.Tensor, table: torch.Tensor, norm: Affine | None) -> torch.Tensor:
    """Gather by `table` from `tokens`, pixels of the `rim` and a zero; the rim is already normalized."""
    if tokens.is_cuda:
        made: torch.Tensor = import_module(f"{__package__}.gather_kernels").gathered(tokens, rim, table, norm)
        return made
    return gather_reference(tokens, rim, table, norm)


def gather_reference(tokens: torch.Tensor, rim: torch.Tensor, table: torch.Tensor, norm: Affine | None) -> torch.Tensor:
    """Reference implementation in PyTorch."""
    if norm is not None:
        scale, shift = norm
        tokens = silu(tokens * scale[:, None] + shift[:, None]).to(tokens.dtype)
    width = tokens.shape[-1]
    every = torch.cat([tokens.reshape(-1, width), rim, rim.new_zeros(1, width)])
    return every[table].flatten(1)


# Gather tables (im2col) of convolutions over masked pixels: computed pixels, a rim of cached ones, or zero padding
#
# How it works. A 3x3 convolution multiplies the nine neighbours of every pixel by the weights. The inputs are
# concatenated: computed pixels of all batch rows, then cached neighbours of the mask, its *rim* (halo), then one zero
# for what is outside the image. A table holds the index of each of the nine neighbours.

USUAL_RIM = 8
Resampling = Literal["same", "down", "up"]
"""A convolution on one grid, from a grid to its half (stride two), or from a grid to its double (pixels repeated)."""


@dataclass(frozen=True, slots=True)
class GatherTable:
    """`table`: nine input indices per output pixel. `rim`: cached pixels, as indices into the flattened batch."""

    table: torch.Tensor
    rim: torch.Tensor


def gather_table(
    places: Mapping[int, TokenIndices], grid: Grid, move: Resampling, wide: Grid, multiple: int = 1
) -> GatherTable:
    """Gather table of a convolution whose input is on `grid` and whose output is on `wide`.

    With a multiple above one the rim is padded: that costs nothing, and gives calls equal shapes.
    """
    inside, outside = places[grid[0] * grid[1]], places[wide[0] * wide[1]]
    num_rows, num_inside = inside.by_row.shape
    tokens, is_pixel = _neighbours(outside.by_row, grid, wide, move)
    first = torch.arange(num_rows, device=tokens.device)[:, None, None]
    position = _positions(inside)[first, tokens]
    flat = tokens + first * inside.num_tokens
    is_kept = is_pixel & (position < 0)
    rim = torch.unique(flat[is_kept])
    num_rim = len(rim) if multiple == 1 else _room(len(rim), num_rows, num_inside)
    table = torch.where(is_kept, num_rows * num_inside + torch.searchsorted(rim, flat), position + first * num_inside)
    table = torch.where(is_pixel, table, num_rows * num_inside + num_rim)
    return GatherTable(table.flatten(0, 1), padded(rim, num_rim))


def gather_tables(
    places: Mapping[int, TokenIndices], grids: list[Grid], multiple: int = 1
) -> dict[tuple[int, Resampling], GatherTable]:
    """Gather tables of all convolutions of a U-Net with these grids, by number of input pixels and move."""
    found: dict[tuple[int, Resampling], GatherTable] = {}
    for fine, coarse in zip(grids, [*grids[1:], None], strict=True):
        found[_size(fine), "same"] = gather_table(places, fine, "same", fine, multiple)
        if coarse is not None:
            found[_size(fine), "down"] = gather_table(places, fine, "down", coarse, multiple)
            found[_size(coarse), "up"] = gather_table(places, coarse, "up", fine, multiple)
    return found


def entry_table(places: TokenIndices, grid: Grid) -> torch.Tensor:
    """Gather table of a convolution whose input has all pixels."""
    tokens, is_pixel = _neighbours(places.by_row, grid, grid, "same")
    num_rows = len(places.by_row)
    first = torch.arange(num_rows, device=tokens.device)[:, None, None] * places.num_tokens
    return torch.where(is_pixel, tokens + first, num_rows * places.num_tokens).flatten(0, 1)


def _room(num_rim: int, num_rows: int, num_inside: int) -> int:
    """Padded rim size: a power of two, at least twice the rim of squares of `num_inside` pixels, so sizes are few."""
    usual = math.ceil(USUAL_RIM * num_rows * math.sqrt(num_inside))
    return 1 << (max(num_rim, usual) - 1).bit_length()


def _size(grid: Grid) -> int:
    return grid[0] * grid[1]


def _positions(places: TokenIndices) -> torch.Tensor:
    """Index of every token of every row among the computed ones, or -1."""
    num_rows, num_inside = places.by_row.shape
    numbers = torch.arange(num_inside, device=places.by_row.device).expand(num_rows, -1)
    return numbers.new_full((num_rows, places.num_tokens), -1).scatter_(1, places.by_row, numbers)


def _neighbours(tokens: torch.Tensor, grid: Grid, wide: Grid, move: Resampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Nine input tokens for each output token, and which of them are inside the image."""
    offsets = torch.arange(-1, 2, device=tokens.device)
    stride = 2 if move == "down" else 1
    rows = (stride * (tokens // wide[1]))[..., None, None] + offsets[:, None]
    columns = (stride * (tokens % wide[1]))[..., None, None] + offsets
    height, width = wide if move == "up" else grid
    is_pixel = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    shrink = 2 if move == "up" else 1
    found = (rows.clamp(0, height - 1) // shrink) * grid[1] + columns.clamp(0, width - 1) // shrink
    return found.flatten(2), is_pixel.flatten(2)


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
