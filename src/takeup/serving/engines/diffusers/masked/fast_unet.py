"""U-Nets of masked pixels for accelerators: fixed buffers, few kernels, nothing that a recorded graph could not repeat.

The same computation as with hooks and mask-aware convolutions. Here a network is bound to one number of rows and
tokens: what is kept lies in fixed memory, filled for every step; queries, keys and values are one product; keys and
values of the text are computed once for a request. Blocks read their tensors from their own modules, so equal blocks
can share compiled code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.functional import linear

from takeup.serving.engines.diffusers.device.ops import text_attention, token_attention
from takeup.serving.engines.diffusers.masked.call import Places
from takeup.serving.engines.diffusers.masked.columns import Columns
from takeup.serving.engines.diffusers.masked.flat import compile_modules, put, release_modules
from takeup.serving.engines.diffusers.masked.kept_columns import KeptColumns, Tables
from takeup.serving.engines.diffusers.masked.pages import Page
from takeup.serving.engines.diffusers.masked.tokens import Grid

__all__ = ["BoundUnet"]

COMPILED = frozenset({"BasicTransformerBlock"})


class _KeptAttention:
    """Self-attention of some tokens. Reads `packed_qkv`, `kept_k`, `kept_v` and `kept_places` of the module."""

    def __call__(self, module: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        num_rows, num_tokens, width = hidden_states.shape
        packed = linear(hidden_states, module.packed_qkv).view(num_rows * num_tokens, 3, width)
        key, value = module.kept_k, module.kept_v
        put(key, module.kept_places, packed[:, 1])
        put(value, module.kept_places, packed[:, 2])
        heads = (num_rows, -1, module.heads, width // module.heads)
        query, key, value = (part.reshape(heads) for part in (packed[:, 0], key, value))
        projected: torch.Tensor = module.to_out[0](token_attention(query, key, value))
        return projected


class _TextAttention:
    """Attention to a text whose keys and values are there. Reads `kept_text` of the module, and which rows it is of:

    every `heard_step`-th from `first_heard` on. The text of all others is nothing but zeros, and adds the last bias.
    """

    def __call__(self, module: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        heard = hidden_states[module.first_heard :: module.heard_step]
        attended = text_attention(module.to_q(heard), module.kept_text, module.heads)
        projected: torch.Tensor = module.to_out[0](attended)
        if len(heard) == len(hidden_states):
            return projected
        bias = module.to_out[0].bias
        every = torch.zeros_like(hidden_states) if bias is None else bias.expand_as(hidden_states).clone()
        every[module.first_heard :: module.heard_step] = projected
        return every


class BoundUnet:
    """A U-Net bound to the pixels of a call until `release`. `page` says what is kept, and under which names.

    What is kept can lie in several places (`flats`), so that one is filled while another is read: see `use`.
    """

    def __init__(self, network: Any, page: Page, places: Mapping[int, Places], size: Grid, num_flats: int = 1) -> None:
        self.network = network
        tables = Tables(places, size)
        self.flats = [KeptColumns(page, tables) for _ in range(num_flats)]
        self._processors = dict(network.attn_processors)
        self._columns = Columns(network, self.flats[0])
        self._columns.put()
        self._blocks = list(_blocks(network))
        self._compiled: list[Any] = []
        for name, block in self._blocks:
            attention = block.attn1
            weights = (attention.to_q.weight, attention.to_k.weight, attention.to_v.weight)
            attention.packed_qkv = torch.cat([weight.detach() for weight in weights])
            attention.kept_places = places[self.flats[0].views[f"{name}.k"].shape[1]].flat
            attention.processor, block.attn2.processor = _KeptAttention(), _TextAttention()
        self.use(0)

    def use(self, number: int) -> None:
        """From now on calls read what is kept there."""
        self._columns.source = self.flats[number]
        for name, block in self._blocks:
            block.attn1.kept_k, block.attn1.kept_v = (self.flats[number].views[f"{name}.{part}"] for part in "kv")

    @torch.no_grad()
    def tell(self, text: torch.Tensor) -> bool:
        """The text of all rows, once for a request. Whether it lies where that before lay: else record calls anew."""
        has_bias = any(block.attn2.to_v.bias is not None for _, block in self._blocks)
        first, step = (0, 1) if has_bias else _heard(text)
        is_same = True
        for _, block in self._blocks:
            layer = block.attn2
            keys = torch.stack([one(text[first::step]) for one in (layer.to_k, layer.to_v)])
            old = getattr(layer, "kept_text", None)
            if old is not None and old.shape == keys.shape and (layer.first_heard, layer.heard_step) == (first, step):
                old.copy_(keys)
            else:
                layer.kept_text, layer.first_heard, layer.heard_step, is_same = keys, first, step, False
        return is_same

    def compile_blocks(self, options: dict[str, Any] | None = None) -> None:
        """Compile what repeats, when it is first called."""
        self._compiled = compile_modules(self.network, COMPILED, options or {})

    def release(self) -> None:
        """Leave the network as it was."""
        release_modules(self._compiled)
        self._columns.remove()
        for _, block in self._blocks:
            del block.attn1.kept_k, block.attn1.kept_v, block.attn1.kept_places, block.attn1.packed_qkv
            for name in ("kept_text", "first_heard", "heard_step"):
                vars(block.attn2).pop(name, None)
        self.network.set_attn_processor(self._processors)


def _heard(text: torch.Tensor) -> tuple[int, int]:
    """The first row whose text is more than zeros, and how far apart such rows are: negative branches often have none.

    Those stand before each row that has one, or all of them before all others.
    """
    is_heard = text.flatten(1).any(1).tolist()
    half = len(is_heard) // 2
    if half and is_heard == [False, True] * half:
        return 1, 2
    return (half, 1) if half and is_heard == [False] * half + [True] * half else (0, 1)


def _blocks(network: Any) -> Iterator[tuple[str, Any]]:
    """Blocks under the names of what is kept of them."""
    for name, module in network.named_modules():
        if type(module).__name__ == "Transformer2DModel":
            yield from ((f"{name}.{number}", block) for number, block in enumerate(module.transformer_blocks))
