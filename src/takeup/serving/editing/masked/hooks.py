"""Hooks that let a network compute a subset of its tokens: no code of it is changed, and with mode off they do nothing.

In U-Nets tokens are gathered and scattered around every `Transformer2DModel`; convolutions and norms between them see
the whole map. In SD3 and Flux they are gathered after the patch embedding and scattered before unpatchifying. Keys and
values are filled in right after their projections, before any QK norm; in Flux, whose keys have rotary embeddings,
after these, by a custom attention processor. With `convolutions`, U-Nets compute masked pixels everywhere (`columns`):
inputs of convolutions and statistics of norms are recorded too.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from takeup.errors import BadInput
from takeup.serving.editing.masked.masked_convolutions import (
    Affine,
    ConvolutionInputs,
    GatherTable,
    MaskedConvolutions,
    Resampling,
    affine_of,
    entry_table,
    gather_tables,
    tokens_of,
)
from takeup.serving.editing.masked.tokens import MAP, NORM, OUT, Grid, HookState, TokenIndices, grids_of
from takeup.serving.editing.masked.transformer_blocks import RotaryProcessor

# Columns in calls with hooks: record the activations that they need, and read them from the template ------------------


class HookSource:
    """Source of columns that reads the cached activations of a `HookState`. Tables are rebuilt for a new mask."""

    def __init__(self, call: HookState) -> None:
        self._call = call
        self._places: Mapping[int, TokenIndices] = {}
        self._arounds: dict[tuple[int, Resampling], GatherTable] = {}
        self._size: Grid = (0, 0)

    def enter(self, size: Grid) -> torch.Tensor:
        if self._places is not self._call.places or size != self._size:
            grids = [grid for grid in grids_of(size) if grid[0] * grid[1] in self._call.places]
            self._arounds = gather_tables(self._call.places, grids)
            self._places, self._size = self._call.places, size
        return entry_table(self._call.places[size[0] * size[1]], size)

    def around(self, name: str, move: Resampling) -> ConvolutionInputs:
        kept = self._call.kept[name + MAP]
        found = self._arounds[kept.shape[1], move]
        return kept.reshape(-1, kept.shape[2])[found.rim], found.table

    def affine(self, name: str) -> Affine:
        scale, shift = self._call.kept[name + NORM][:, 0].chunk(2, dim=1)
        return scale, shift

    def leave(self, tokens: torch.Tensor) -> torch.Tensor:
        every = self._call.fill(OUT, tokens)
        return every.transpose(1, 2).view(len(every), -1, *self._size)


def recorders(network: Any, call: HookState) -> list[Any]:
    """Register hooks that record the activations that columns need; returns their handles."""
    handles = [
        module.register_forward_pre_hook(partial(_record, call, name, make))
        for name, module, make in _kept_modules(network)
    ]
    return [*handles, network.conv_out.register_forward_hook(partial(_record_output, call))]


def _kept_modules(network: Any) -> Iterator[tuple[str, Any, Callable[[Any, torch.Tensor], torch.Tensor]]]:
    """Names, modules whose input is recorded, and the function applied to that input."""
    for name, module in network.named_modules():
        kind = type(module).__name__
        if kind == "GroupNorm":
            yield name + NORM, module, affine_of
        elif kind == "ResnetBlock2D":
            yield from ((f"{name}.{one}{MAP}", getattr(module, one), _pixels) for one in ("conv1", "conv2"))
        elif kind == "Downsample2D":
            yield f"{name}.conv{MAP}", module.conv, _pixels
        elif kind == "Upsample2D":
            yield f"{name}.conv{MAP}", module, _pixels
    yield f"conv_out{MAP}", network.conv_out, _pixels


def _pixels(module: Any, sample: torch.Tensor) -> torch.Tensor:
    return tokens_of(sample).contiguous()


def _record(call: HookState, name: str, make: Any, module: Any, inputs: tuple[Any, ...]) -> None:
    call.recorded[name] = make(module, inputs[0]).detach()


def _record_output(call: HookState, module: Any, inputs: Any, output: torch.Tensor) -> None:
    call.recorded[OUT] = _pixels(module, output).detach()


SELF_ATTENTION = "attn1"


class MaskingHooks:
    """Installed on a network until `remove`. `fronted`: names of tensors with text tokens before those of the image."""

    def __init__(self, network: Any, call: HookState | None = None, *, convolutions: bool = False) -> None:
        self.network, self.call = network, call or HookState()
        self._columns: MaskedConvolutions | None = None
        self.fronted: frozenset[str] = frozenset()
        self._handles: list[Any] = []
        self._recorders: list[Any] = []
        self._processors: dict[str, Any] | None = None
        kind = type(network).__name__
        installers: dict[str, Callable[[], None]] = {
            "UNet2DConditionModel": self._into_columns if convolutions else self._into_unet,
            "SD3Transformer2DModel": self._into_sd3,
            "FluxTransformer2DModel": self._into_flux,
        }
        if kind not in installers:
            raise BadInput(f"a {kind} cannot compute masked tokens only; use one of {', '.join(installers)}")
        self._install = installers[kind]
        self.install()

    def install(self) -> None:
        """Register the hooks; no effect if they are registered already."""
        if not self._handles:
            self._install()

    def remove(self) -> None:
        """Remove the hooks and restore the attention processors."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._processors is not None:
            self.network.set_attn_processor(dict(self._processors))
            self._processors = None

    def _into_unet(self) -> None:
        for name, module in _named(self.network, "Transformer2DModel"):
            if isinstance(module.proj_in, torch.nn.Linear):
                self._enter(module.proj_in)
                self._fill(module.proj_out, f"{name}.out")
            else:  # a convolution: it needs whole feature maps
                self._enter(module.transformer_blocks[0])
                self._fill(module.transformer_blocks[-1], f"{name}.out")
            for number, block in enumerate(module.transformer_blocks):
                self._fill_attention(getattr(block, SELF_ATTENTION), f"{name}.{number}")

    def _into_columns(self) -> None:
        self._columns = self._columns or MaskedConvolutions(self.network, HookSource(self.call))
        self._handles.append(self.network.register_forward_pre_hook(self._begin))
        self._handles.append(self.network.register_forward_hook(self._end, always_call=True))
        for name, module in _named(self.network, "Transformer2DModel"):
            for number, block in enumerate(module.transformer_blocks):
                self._fill_attention(getattr(block, SELF_ATTENTION), f"{name}.{number}")

    def _into_sd3(self) -> None:
        self._handles.append(self.network.pos_embed.register_forward_hook(partial(_taken_behind, self.call)))
        self._fill(self.network.proj_out, "out")
        for number, block in enumerate(self.network.transformer_blocks):
            self._fill_attention(block.attn, f"{number}")
            if getattr(block, "attn2", None) is not None:
                self._fill_attention(block.attn2, f"{number}.second")

    def _into_flux(self) -> None:
        self._handles.append(self.network.x_embedder.register_forward_hook(partial(_taken_behind, self.call)))
        self._fill(self.network.proj_out, "out")
        self._processors = dict(self.network.attn_processors)
        numbered = enumerate(self._processors.items())
        ours = {name: RotaryProcessor(f"{number}", self.call, stock) for number, (name, stock) in numbered}
        self.fronted = frozenset(f"{number}.{part}" for number in range(len(ours)) for part in "kv")
        self.network.set_attn_processor(ours)  # this empties the dict it receives

    def _begin(self, network: Any, _: Any) -> None:
        """Install as late as possible: other code replaces forwards too, and restores them before a call with hooks."""
        assert self._columns is not None
        if self.call.mode == "masked":
            self._columns.put()
        elif self.call.mode == "record":
            self._recorders = recorders(network, self.call)

    def _end(self, *_: Any) -> None:
        assert self._columns is not None
        self._columns.remove()
        for handle in self._recorders:
            handle.remove()
        self._recorders = []

    def _fill_attention(self, attention: Any, name: str) -> None:
        self._fill(attention.to_k, f"{name}.k")
        self._fill(attention.to_v, f"{name}.v")

    def _enter(self, module: Any) -> None:
        self._handles.append(module.register_forward_pre_hook(partial(_taken_before, self.call)))

    def _fill(self, module: Any, name: str) -> None:
        self._handles.append(module.register_forward_hook(partial(_filled_behind, self.call, name)))


def _named(network: Any, kind: str) -> Iterator[tuple[str, Any]]:
    return ((name, module) for name, module in network.named_modules() if type(module).__name__ == kind)


def _taken_before(call: HookState, module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return call.take(inputs[0]), *inputs[1:]


def _taken_behind(call: HookState, module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return call.take(output)


def _filled_behind(call: HookState, name: str, module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return call.fill(name, output)
