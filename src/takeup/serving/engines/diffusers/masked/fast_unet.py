"""U-Nets of masked tokens for accelerators: fixed buffers, few kernels, nothing that a recorded graph could not repeat.

The same computation as with hooks. Here a network is bound to one number of rows and tokens: what is kept lies in one
block of memory, filled for every step by one kernel; queries, keys and values are one product; keys and values of the
text are computed once for a request. Blocks read their tensors from their own modules, so equal blocks can share
compiled code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MethodType
from typing import Any

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from takeup.errors import BadInput
from takeup.serving.engines.diffusers.masked.call import Places
from takeup.serving.engines.diffusers.masked.flat import Flat, compile_modules, put, release_modules
from takeup.serving.engines.diffusers.masked.pages import Page

__all__ = ["BoundUnet"]

COMPILED = frozenset({"BasicTransformerBlock", "ResnetBlock2D"})


class _KeptAttention:
    """Self-attention of some tokens. Reads `packed_qkv`, `kept_k`, `kept_v` and `kept_places` of the module."""

    def __call__(self, module: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        num_rows, num_tokens, width = hidden_states.shape
        packed = linear(hidden_states, module.packed_qkv).view(num_rows * num_tokens, 3, width)
        key, value = module.kept_k, module.kept_v
        put(key, module.kept_places, packed[:, 1])
        put(value, module.kept_places, packed[:, 2])
        heads = (num_rows, -1, module.heads, width // module.heads)
        query, key, value = (part.reshape(heads).transpose(1, 2) for part in (packed[:, 0], key, value))
        return _projected(module, scaled_dot_product_attention(query, key, value))


class _TextAttention:
    """Attention to a text whose keys and values are there. Reads `kept_text` of the module."""

    def __call__(self, module: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        num_rows, num_tokens, width = hidden_states.shape
        query = module.to_q(hidden_states).view(num_rows, num_tokens, module.heads, -1).transpose(1, 2)
        key, value = module.kept_text.view(2, num_rows, -1, module.heads, width // module.heads).transpose(2, 3)
        return _projected(module, scaled_dot_product_attention(query, key, value))


def _projected(module: Any, attended: torch.Tensor) -> torch.Tensor:
    projected: torch.Tensor = module.to_out[0](attended.transpose(1, 2).flatten(2))
    return projected


def _masked_forward(self: Any, hidden_states: torch.Tensor, *_: Any, **others: Any) -> tuple[torch.Tensor]:
    """A `Transformer2DModel` of masked tokens; the rest of what it adds is kept."""
    num_rows, channels, height, width = hidden_states.shape
    tokens = self.proj_in(self.kept_enter(self.norm, hidden_states, self.kept_places))
    for block in self.transformer_blocks:
        tokens = block(tokens, encoder_hidden_states=others.get("encoder_hidden_states"))
    added = self.kept_out
    put(added, self.kept_places, self.proj_out(tokens))
    return (added.view(num_rows, height, width, channels).permute(0, 3, 1, 2) + hidden_states,)


def _entered(norm: Any, hidden_states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Masked tokens of a map, normalized by all of it."""
    num_rows, channels = hidden_states.shape[:2]
    tokens: torch.Tensor = norm(hidden_states).permute(0, 2, 3, 1).reshape(-1, channels)
    return tokens.index_select(0, places).view(num_rows, -1, channels)


class BoundUnet:
    """A U-Net bound to the tokens of a call until `release`. `page` says what is kept, and under which names."""

    def __init__(self, network: Any, page: Page, places: Mapping[int, Places]) -> None:
        self.network, self.flat = network, Flat(page)
        self._processors = dict(network.attn_processors)
        self._transformers = list(_transformers(network))
        self._places = places
        self._compiled: list[Any] = []
        for name, module in self._transformers:
            self._bind(name, module)

    def _bind(self, name: str, module: Any) -> None:
        if not isinstance(module.proj_in, torch.nn.Linear):
            raise BadInput("only U-Nets with linear projections (SDXL, SD 2) have a fast path; use the hooks")
        module.kept_out = self.flat.views[f"{name}.out"]
        module.kept_places = self._places[module.kept_out.shape[1]].flat
        module.kept_enter = _entered
        module.forward = MethodType(_masked_forward, module)
        for number, block in enumerate(module.transformer_blocks):
            attention = block.attn1
            attention.kept_k, attention.kept_v = (self.flat.views[f"{name}.{number}.{part}"] for part in "kv")
            attention.kept_places = module.kept_places
            weights = (attention.to_q.weight, attention.to_k.weight, attention.to_v.weight)
            attention.packed_qkv = torch.cat([weight.detach() for weight in weights])
            attention.processor, block.attn2.processor = _KeptAttention(), _TextAttention()

    @torch.no_grad()
    def tell(self, text: torch.Tensor) -> None:
        """The text of all rows, once for a request: into the same memory every time."""
        for attention in self._text_attentions():
            keys = torch.stack([attention.to_k(text), attention.to_v(text)])
            if hasattr(attention, "kept_text") and attention.kept_text.shape == keys.shape:
                attention.kept_text.copy_(keys)
            else:
                attention.kept_text = keys

    def compile_blocks(self, options: dict[str, Any] | None = None) -> None:
        """Compile what repeats, when it is first called."""
        self._compiled = compile_modules(self.network, COMPILED, options or {})
        enter = torch.compile(_entered, dynamic=False, options=options or {})
        for _, module in self._transformers:
            module.kept_enter = enter

    def release(self) -> None:
        """Leave the network as it was."""
        release_modules(self._compiled)
        for _, module in self._transformers:
            del module.forward, module.kept_out, module.kept_places, module.kept_enter
            for block in module.transformer_blocks:
                del block.attn1.kept_k, block.attn1.kept_v, block.attn1.kept_places, block.attn1.packed_qkv
        for attention in self._text_attentions():
            del attention.kept_text
        self.network.set_attn_processor(self._processors)

    def _text_attentions(self) -> Iterator[Any]:
        return (block.attn2 for _, module in self._transformers for block in module.transformer_blocks)


def _transformers(network: Any) -> Iterator[tuple[str, Any]]:
    return ((name, one) for name, one in network.named_modules() if type(one).__name__ == "Transformer2DModel")
