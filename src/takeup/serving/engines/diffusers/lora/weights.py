"""Weights into which LoRAs are merged and from which they are removed exactly.

How it works. Of every layer that a LoRA changes, a pristine copy is kept from before the first change. Patched weights
are always computed from that copy, in single precision, and rounded once; a patch is never subtracted, so nothing
drifts, however often sets change. `stage` computes a set into a separate buffer, concurrently with the running network;
`use` copies it over the weights. It writes into the storage of the parameters and never replaces them, since a CUDA
graph holds the addresses of weights: after `use` a captured graph computes with the new ones.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from takeup.serving.engines.diffusers.lora.changes import Lora, patched
from takeup.serving.engines.diffusers.lora.targets import Layer, LayerId

LoraSet = tuple[tuple[Lora, float], ...]
"""LoRAs in the order in which they are applied, each with its scale."""

LoraSetKey = tuple[tuple[str, int, float], ...]


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """The patched weights of one set, ready to be copied over those of the network."""

    loras: LoraSet
    weights: Mapping[LayerId, torch.Tensor] = field(repr=False)


NO_LORAS = StagedWeights((), {})


def key_of(loras: LoraSet) -> LoraSetKey:
    """Equal for equal sets. A LoRA that was reloaded under an old name has a different key."""
    return tuple((lora.name, id(lora), scale) for lora, scale in loras)


class PatchedWeights:
    """The layers of some components of a pipeline. Call `stage` from any thread, the rest from the computing one."""

    def __init__(self, layers: Mapping[LayerId, Layer]) -> None:
        self._layers = layers
        self._pristine: dict[LayerId, torch.Tensor] = {}
        self._lock = threading.Lock()
        self._current = NO_LORAS

    @property
    def key(self) -> LoraSetKey:
        """The key of the set that is merged now."""
        return key_of(self._current.loras)

    def stage(self, loras: LoraSet) -> StagedWeights:
        """Compute the patched weights of every layer that one of `loras` changes, without modifying the network."""
        return StagedWeights(loras, self._patched(loras, self._changed(loras)))

    def use(self, staged: StagedWeights = NO_LORAS) -> None:
        """Merge this set and remove the previous one. Without an argument: restore the original weights."""
        if staged is self._current:
            return
        self._take_out(staged)
        self._put_in(staged)
        self._current = staged

    @contextmanager
    def using(self, loras: LoraSet) -> Iterator[None]:
        """Patched inside, restored on exit, also after an exception."""
        before = self._current
        self.use(self.stage(loras))
        try:
            yield
        finally:
            self.use(before)

    def _take_out(self, next_one: StagedWeights) -> None:
        for layer in self._current.weights.keys() - next_one.weights.keys():
            self._write(layer, self._clean(layer))

    def _put_in(self, staged: StagedWeights) -> None:
        for layer, weight in staged.weights.items():
            self._write(layer, weight)

    def _changed(self, loras: LoraSet) -> set[LayerId]:
        return {layer for lora, _ in loras for layer in lora.changes if layer in self._layers}

    def _patched(self, loras: LoraSet, layers: set[LayerId]) -> dict[LayerId, torch.Tensor]:
        clean = {layer: self._clean(layer) for layer in sorted(layers)}
        return {layer: patched(weight, layer, loras).to(weight.dtype) for layer, weight in clean.items()}

    def _clean(self, layer: LayerId) -> torch.Tensor:
        with self._lock:
            if layer not in self._pristine:  # then it is not patched yet
                self._pristine[layer] = self._parameter(layer).detach().clone()
            return self._pristine[layer]

    @torch.no_grad()
    def _write(self, layer: LayerId, weight: torch.Tensor) -> None:
        self._parameter(layer).copy_(weight)

    def _parameter(self, layer: LayerId) -> torch.Tensor:
        return self._layers[layer].weight
