"""Flux of masked tokens for accelerators: the same computation as with hooks, in fixed memory and with fewer kernels.

Keys and values are kept with room for the text in front, which every step computes anew. Blocks read their tensors from
their own modules, so that equal blocks share compiled code.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear

from takeup.serving.engines.diffusers.device.ops import token_attention
from takeup.serving.engines.diffusers.masked.call import Places
from takeup.serving.engines.diffusers.masked.flat import Flat, compile_modules, put, release_modules
from takeup.serving.engines.diffusers.masked.modulations import Modulations
from takeup.serving.engines.diffusers.masked.pages import Page
from takeup.serving.engines.diffusers.masked.rotary import turned

__all__ = ["BoundFlux"]

COMPILED = frozenset({"FluxTransformerBlock", "FluxSingleTransformerBlock"})
KEPT = ("kept_k", "kept_v", "kept_places", "kept_turns", "packed_qkv", "packed_text")
Layer = tuple[torch.Tensor, torch.Tensor | None]


class _KeptAttention:
    """Reads `packed_qkv`, `packed_text`, `kept_k`, `kept_v`, `kept_places` and `kept_turns` of the module."""

    _attention_backend = None
    _parallel_config = None

    def __call__(
        self,
        module: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        query, key, value = _split(hidden_states, module.packed_qkv, module.head_dim)
        query, key = module.norm_q(query), module.norm_k(key)
        if encoder_hidden_states is not None:
            text_query, text_key, text_value = _split(encoder_hidden_states, module.packed_text, module.head_dim)
            query = torch.cat([module.norm_added_q(text_query), query], dim=1)
            key = torch.cat([module.norm_added_k(text_key), key], dim=1)
            value = torch.cat([text_value, value], dim=1)
        query, key = turned(query, module.kept_turns), turned(key, module.kept_turns)
        put(module.kept_k, module.kept_places, key)
        put(module.kept_v, module.kept_places, value)
        attended = token_attention(query, module.kept_k, module.kept_v)
        if encoder_hidden_states is None:
            return attended
        num_text = encoder_hidden_states.shape[1]
        return module.to_out[0](attended[:, num_text:]), module.to_add_out(attended[:, :num_text])


class BoundFlux:
    """Bound to the tokens of a call until `release`. `page` has room for the text, as keys and values want it.

    What is kept can lie in several places (`flats`), so that one is filled while another is read: see `use`.
    """

    def __init__(
        self,
        network: Any,
        page: Page,
        places: Mapping[int, Places],
        ids: Mapping[str, torch.Tensor],
        num_flats: int = 1,
    ) -> None:
        self.network, self.flats = network, [Flat(page) for _ in range(num_flats)]
        self._processors = dict(network.attn_processors)
        self._modulations = Modulations(network)
        self._compiled: list[Any] = []
        num_text, num_image = len(ids["txt_ids"]), len(ids["img_ids"])
        own = places[num_image]
        behind = own.after(num_text)
        table = network.pos_embed(torch.cat([ids["txt_ids"], ids["img_ids"]]))
        turns = table[0][behind.by_row], table[1][behind.by_row]
        blocks = (*network.transformer_blocks, *network.single_transformer_blocks)
        self._attentions = [block.attn for block in blocks]
        for attention in self._attentions:
            attention.kept_places, attention.kept_turns = behind.flat, turns
            attention.packed_qkv = _packed(attention.to_q, attention.to_k, attention.to_v)
            text = ("add_q_proj", "add_k_proj", "add_v_proj")
            has_text = getattr(attention, text[0], None) is not None
            attention.packed_text = _packed(*(getattr(attention, name) for name in text)) if has_text else None
            attention.processor = _KeptAttention()
        self._handles = [
            network.x_embedder.register_forward_hook(partial(_taken, own.flat)),
            network.proj_out.register_forward_hook(self._given),
        ]
        self._own = own.flat
        self.use(0)

    def use(self, number: int) -> None:
        """From now on calls read what is kept there."""
        self._out = self.flats[number].views["out"]
        for place, attention in enumerate(self._attentions):
            attention.kept_k, attention.kept_v = (self.flats[number].views[f"{place}.{part}"] for part in "kv")

    def tell(self, timesteps: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> None:
        """The timesteps of an edit that begins: say `at` before each step. Untold, calls go by their own timestep."""
        self._modulations.tell(timesteps, inputs)

    def at(self, step: int) -> None:
        """The next call is this step of the edit."""
        self._modulations.use(step)

    def _given(self, module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        put(self._out, self._own, output)
        return self._out

    def compile_blocks(self, options: dict[str, Any] | None = None) -> None:
        """Compile what repeats, when it is first called."""
        self._compiled = compile_modules(self.network, COMPILED, options or {})

    def release(self) -> None:
        """Leave the network as it was."""
        release_modules(self._compiled)
        self._modulations.remove()
        for handle in self._handles:
            handle.remove()
        for attention in self._attentions:
            for name in KEPT:
                delattr(attention, name)
        self.network.set_attn_processor(self._processors)


def _packed(*layers: Any) -> Layer:
    """One product instead of three."""
    bias = None if layers[0].bias is None else torch.cat([layer.bias.detach() for layer in layers])
    return torch.cat([layer.weight.detach() for layer in layers]), bias


def _split(tokens: torch.Tensor, layer: Layer, head_dim: int) -> tuple[torch.Tensor, ...]:
    packed = linear(tokens, *layer)
    return packed.view(*packed.shape[:2], 3, -1, head_dim).unbind(2)


def _taken(places: torch.Tensor, module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output.reshape(-1, output.shape[-1]).index_select(0, places).view(len(output), -1, output.shape[-1])
