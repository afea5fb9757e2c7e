"""Transformer blocks of U-Nets that write their tokens once for every layer.

How it works. A block adds three layers to its tokens, one after the other, and norms them before each. One by one, a
layer is computed, written, read, added and written again. Here

    products add to the tokens themselves, which stay where they are for all blocks;
    biases of those products are not added: a norm is told what the tokens lack (`shifts`, sums of biases), and the end
    of the last block adds all of it at once;
    where every second row is silent, only the others are normed, projected and added to for the text: what silent rows
    get from it is the bias, which they lack like all others.

The numbers are those of diffusers; rounding differs. Nothing in here is compiled by others: on a device the kernels of
a block are few, and each was chosen by measuring (`layers`, `attending`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch.nn.functional import linear

from takeup.serving.engines.diffusers.device.attention import SelfAttention, TextAttention
from takeup.serving.engines.diffusers.device.layers import add_product, gated_product, normed, product
from takeup.serving.engines.diffusers.device.ops import self_attention, text_attention

__all__ = ["Lean"]

LOG = logging.getLogger(__name__)


class Lean:
    """A network whose packed transformers of plain blocks compute like this. Make it after `Packed`."""

    def __init__(self, network: Any) -> None:
        self.modules = frozenset(one for one in network.modules() if _is_plain(one))
        for one in self.modules:
            one.is_lean, one.lacking = True, _note_shifts(one.transformer_blocks)
        self._use()

    @contextmanager
    def separate(self) -> Iterator[None]:
        """Inside, every layer is called for itself, as hooks on layers need it."""
        for one in self.modules:
            del one.forward
        try:
            yield
        finally:
            self._use()

    def _use(self) -> None:
        for one in self.modules:
            one.forward = MethodType(_transformer, one)


def _transformer(self: Any, hidden_states: torch.Tensor, *others: Any, **named: Any) -> Any:
    """A `Transformer2DModel`; the text was told to its attention layers before. One that fails is as usual again."""
    if self.is_lean:
        try:
            return (_advanced(self, hidden_states),)
        except Exception as problem:  # nothing but tokens of its own was written
            LOG.warning("a transformer computes as usual from now on: %s", problem)
            self.is_lean = False
    return type(self).forward(self, hidden_states, *others, **named)


def _advanced(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    num_rows, _, height, width = hidden_states.shape
    tokens, inner_width = self._operate_on_continuous_inputs(hidden_states)
    tokens = tokens.contiguous()
    for block in self.transformer_blocks:
        _advance(block, tokens)
    if self.lacking is not None:
        tokens += self.lacking
    image: torch.Tensor = self._get_output_for_continuous_inputs(
        tokens, hidden_states, num_rows, height, width, inner_width
    )
    return image


def _advance(block: Any, tokens: torch.Tensor) -> None:
    """One block further, in place."""
    first, second, third = block.shifts
    attention = block.attn1
    packed = linear(_norm(block.norm1, tokens, first), attention.packed_qkv)
    add_product(tokens, self_attention(packed, attention.heads), attention.to_out[0].weight)
    attention = block.attn2
    heard = tokens[1::2] if attention.is_silent else tokens
    query = product(_norm(block.norm2, heard, second), attention.to_q.weight)
    add_product(heard, text_attention(query, attention.packed_text, attention.heads), attention.to_out[0].weight)
    gates, _, last = block.ff.net
    hidden = gated_product(_norm(block.norm3, tokens, third), gates.proj.weight, gates.proj.bias)
    add_product(tokens, hidden, last.weight)


def _norm(norm: Any, tokens: torch.Tensor, shift: torch.Tensor | None) -> torch.Tensor:
    return normed(tokens, shift, norm.weight, norm.bias, norm.eps)


def _note_shifts(blocks: Sequence[Any]) -> torch.Tensor | None:
    """Tell every block what its tokens lack before each of its norms; what they lack at the end."""
    lacking: torch.Tensor | None = None
    for block in blocks:
        shifts = []
        for layer in (block.attn1.to_out[0], block.attn2.to_out[0], block.ff.net[2]):
            shifts.append(lacking)
            if layer.bias is not None:
                bias = layer.bias.detach().float()
                lacking = bias if lacking is None else lacking + bias
        block.shifts = tuple(shifts)
    return lacking


def _is_plain(module: Any) -> bool:
    if type(module).__name__ != "Transformer2DModel" or not module.is_input_continuous:
        return False
    return all(map(_is_plain_block, module.transformer_blocks))


def _is_plain_block(block: Any) -> bool:
    if type(block).__name__ != "BasicTransformerBlock" or block.norm_type != "layer_norm" or hasattr(block, "fuser"):
        return False
    norms = block.norm1, block.norm2, block.norm3
    usual = all(type(one) is torch.nn.LayerNorm and one.bias is not None for one in norms)
    usual = usual and block.pos_embed is None and block._chunk_size is None and _is_gated(block.ff.net)
    packed = isinstance(block.attn1.processor, SelfAttention)
    return usual and packed and block.attn2 is not None and _takes_text(block.attn2)


def _is_gated(layers: Any) -> bool:
    return len(layers) == 3 and type(layers[0]).__name__ == "GEGLU" and layers[0].proj.bias is not None


def _takes_text(attention: Any) -> bool:
    return isinstance(attention.processor, TextAttention) and attention.to_q.bias is None
