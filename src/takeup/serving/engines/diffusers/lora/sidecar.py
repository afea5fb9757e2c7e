"""Unmerged LoRAs: each row of a call can use different ones, or none.

A layer y = W x that a LoRA changes becomes y = W x + factor * up (down x) for the rows that use it. Rows with the same
LoRA are computed together, so a call costs as many low-rank products as there are different LoRAs in it, not rows.
Changes that are not low-rank products (DoRA, LoHa, LoKr) are added as the difference of the weights, for those rows
only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from takeup.serving.engines.diffusers.lora.changes import Lora, patched
from takeup.serving.engines.diffusers.lora.targets import Layer, LayerId
from takeup.serving.engines.diffusers.lora.weights import LoraSet

Groups = list[tuple[LoraSet, torch.Tensor]]
Parts = dict[LayerId, dict[str, torch.Tensor]]
"""The thin matrices of one LoRA by layer, where the layer is and in its type."""


class Sidecar:
    """Adds LoRAs to the layers of a denoiser through hooks, registered only during calls that need them.

    The tensors of the `max_kept` most recently used LoRAs stay on the device.
    """

    def __init__(self, layers: Mapping[LayerId, Layer], max_kept: int = 8) -> None:
        self._layers, self._max_kept = layers, max_kept
        self._kept: OrderedDict[int, tuple[Lora, Parts]] = OrderedDict()

    @contextmanager
    def applied(self, sets: Sequence[LoraSet]) -> Iterator[None]:
        """Inside, row i of the network's input is computed with the LoRAs of `sets[i]`."""
        groups = _groups(sets, next(iter(self._layers.values())).weight.device)
        changed = {layer for loras, _ in groups for lora, _ in loras for layer in lora.changes if layer in self._layers}
        parts = self._parts({id(lora): lora for loras, _ in groups for lora, _ in loras})
        hooks = [  # first, so that other hooks see the layer's complete output
            self._layers[layer].register_forward_hook(_adding(layer, groups, parts), prepend=True) for layer in changed
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _parts(self, loras: Mapping[int, Lora]) -> Mapping[int, Parts]:
        """The device tensors cached for these LoRAs; hooks fill them lazily, layer by layer."""
        for number, lora in loras.items():
            self._kept.setdefault(number, (lora, {}))
            self._kept.move_to_end(number)
        while len(self._kept) > max(self._max_kept, len(loras)):
            self._kept.popitem(last=False)
        return {number: self._kept[number][1] for number in loras}


def _groups(sets: Sequence[LoraSet], device: torch.device) -> Groups:
    """The rows of every distinct set; rows without LoRAs are in none."""
    rows: dict[tuple[tuple[int, float], ...], tuple[LoraSet, list[int]]] = {}
    for row, loras in enumerate(sets):
        key = tuple((id(lora), scale) for lora, scale in loras)
        if key:
            rows.setdefault(key, (loras, []))[1].append(row)
    return [(loras, torch.tensor(members, device=device)) for loras, members in rows.values()]


def _adding(layer: LayerId, groups: Groups, parts: Mapping[int, Parts]) -> Any:
    def add(module: Layer, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        for loras, rows in groups:
            if any(layer in lora.changes for lora, _ in loras):
                change = _change(module, layer, loras, inputs[0][rows], parts)
                output = output.index_add(0, rows, change.to(output.dtype))
        return output

    return add


def _change(module: Layer, layer: LayerId, loras: LoraSet, x: torch.Tensor, parts: Mapping[int, Parts]) -> torch.Tensor:
    """The change of the layer's output by these LoRAs for the input `x`."""
    own = [(lora, scale) for lora, scale in loras if layer in lora.changes]
    if all(lora.changes[layer].is_low_rank for lora, _ in own):
        changes = [
            _low_rank_product(module, _parts_on_device(layer, lora, x, parts), lora.changes[layer].factor * scale, x)
            for lora, scale in own
        ]
        return torch.stack(changes).sum(0) if len(changes) > 1 else changes[0]
    weight = module.weight
    difference = patched(weight, layer, loras) - weight.float()
    return _apply(module, difference.to(x.dtype), x)


def _parts_on_device(
    layer: LayerId, lora: Lora, x: torch.Tensor, parts: Mapping[int, Parts]
) -> dict[str, torch.Tensor]:
    own = parts[id(lora)]
    if layer not in own or own[layer]["down"].dtype != x.dtype or own[layer]["down"].device != x.device:
        own[layer] = {name: part.to(x) for name, part in lora.parts(layer).items()}
    return own[layer]


def _low_rank_product(module: Layer, parts: Mapping[str, torch.Tensor], factor: float, x: torch.Tensor) -> torch.Tensor:
    if isinstance(module, torch.nn.Conv2d):
        down, up = (part if part.ndim == 4 else part[:, :, None, None] for part in (parts["down"], parts["up"]))
        return torch.conv2d(_apply(module, down, x), up) * factor
    return (x @ parts["down"].flatten(1).T) @ parts["up"].flatten(1).T * factor


def _apply(module: Layer, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Apply the layer with other weights and without its bias."""
    if isinstance(module, torch.nn.Conv2d):
        return torch.conv2d(x, weight, None, module.stride, module.padding, module.dilation)
    return torch.nn.functional.linear(x, weight)
