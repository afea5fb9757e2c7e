"""Transformer blocks of U-Nets that write their tokens once for every layer.

How it works. A block adds three layers to its tokens, one after the other, with a norm before each. Separately, a layer
is computed, written, read, added and written again. Here

    matmuls accumulate into the tokens, which stay in the same buffer for all blocks;
    biases of those matmuls are not added: the bias of the input projection includes all of them from the start, and
    every norm subtracts those not due yet (`shifts`);
    the last matmul accumulates into the input image, which has no other reader, and its bias is already in that image:
    the preceding residual block adds it with its own bias;
    where every second row is silent (all-zero text), only the others are normalized, projected and added to in
    cross-attention: silent rows get only the bias, which they have like all others.

The results are those of diffusers; rounding differs. These modules are not compiled by TorchInductor: a block is a few
kernels, each chosen by measurement (`layers`, `attending`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any

import torch
from torch.nn.functional import linear

from takeup.serving.engines.diffusers.device.attention import SelfAttention, TextAttention
from takeup.serving.engines.diffusers.device.blocks import can_add_bias
from takeup.serving.engines.diffusers.device.forwards import ReplacedForwards
from takeup.serving.engines.diffusers.device.layers import add_matmul, geglu_matmul, shifted_layer_norm
from takeup.serving.engines.diffusers.device.ops import joined_norm, self_attention, text_attention

LOG = logging.getLogger(__name__)
BLOCKS = ("CrossAttnDownBlock2D", "UNetMidBlock2DCrossAttn", "CrossAttnUpBlock2D")
"""In these every transformer has a residual block just before it."""


class InPlaceTransformers:
    """A network whose packed plain transformers compute like this. Construct it after `Packed` and `Joined`."""

    def __init__(self, network: Any) -> None:
        self.modules = frozenset(one for one in network.modules() if _is_plain_transformer(one))
        for one in self.modules:
            one.is_lean, one.raised_bias, one.lacking = True, _note_shifts(one), None
        for one, resnet in _resnets_before(network):
            if one in self.modules and can_add_bias(resnet):
                one.lacking = _raise_bias(resnet, one.proj_out)
        self._forwards = ReplacedForwards({one: MethodType(_transformer, one) for one in self.modules})

    def separate(self) -> AbstractContextManager[None]:
        """Inside, every layer is called separately, as hooks on layers require."""
        return self._forwards.separate()


def _transformer(self: Any, hidden_states: torch.Tensor, *others: Any, **named: Any) -> Any:
    """A `Transformer2DModel`; attention layers already have the text. After a failure it uses the original forward."""
    if self.is_lean:
        try:
            return (_advanced(self, hidden_states),)
        except Exception as problem:  # only its own tokens were written
            LOG.warning("a transformer computes as usual from now on: %s", problem)
            self.is_lean = False
    usual = hidden_states if self.lacking is None else hidden_states + self.lacking[:, None, None]
    return type(self).forward(self, usual, *others, **named)


def _advanced(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    tokens = linear(_pixels(_normed_image(self, hidden_states)), self.proj_in.weight.flatten(1), self.raised_bias)
    for block in self.transformer_blocks:
        advance_block(block, tokens)
    return _answer(self, tokens, hidden_states)


def _answer(self: Any, tokens: torch.Tensor, came_in: torch.Tensor) -> torch.Tensor:
    """Tokens as an image, added to the input: in place, if the input already includes the bias."""
    if self.lacking is None:
        num_rows, _, height, width = came_in.shape
        image: torch.Tensor = self._get_output_for_continuous_inputs(
            tokens, came_in, num_rows, height, width, tokens.shape[-1]
        )
        return image
    image = came_in.contiguous(memory_format=torch.channels_last)
    add_matmul(_pixels(image), tokens, self.proj_out.weight.flatten(1))
    return image


def _normed_image(self: Any, image: torch.Tensor) -> torch.Tensor:
    norm, lacking = self.norm, None if self.lacking is None else self.lacking.expand(len(image), -1)
    found: torch.Tensor = joined_norm(image, None, lacking, norm.weight, norm.bias, norm.num_groups, norm.eps, False)[0]
    return found


def _pixels(image: torch.Tensor) -> torch.Tensor:
    """The pixels of a channels-last image as tokens, without a copy."""
    return image.permute(0, 2, 3, 1).flatten(1, 2)


def _to_each_other(attention: Any, packed: torch.Tensor) -> torch.Tensor:
    attended: torch.Tensor = self_attention(packed, attention.heads)
    return attended


def advance_block(
    block: Any, tokens: torch.Tensor, attended: Callable[[Any, torch.Tensor], torch.Tensor] = _to_each_other
) -> None:
    """Apply one block in place; `attended` is self-attention, given concatenated queries, keys and values."""
    first, second, third = block.shifts
    attention = block.attn1
    packed = linear(_shifted_norm(block.norm1, tokens, first), attention.packed_qkv)
    add_matmul(tokens, attended(attention, packed), attention.to_out[0].weight)
    attention = block.attn2
    heard = tokens[1::2] if attention.is_silent else tokens
    query = linear(_shifted_norm(block.norm2, heard, second), attention.to_q.weight)
    add_matmul(heard, text_attention(query, attention.packed_text, attention.heads), attention.to_out[0].weight)
    gates, _, last = block.ff.net
    hidden = geglu_matmul(_shifted_norm(block.norm3, tokens, third), gates.proj.weight, gates.proj.bias)
    add_matmul(tokens, hidden, last.weight)


def _shifted_norm(norm: Any, tokens: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return shifted_layer_norm(tokens, shift, norm.weight, norm.bias, norm.eps)


def _note_shifts(transformer: Any) -> torch.Tensor:
    """The first bias plus all later ones; sets in every block what to subtract before each of its norms."""
    layers = [[one.attn1.to_out[0], one.attn2.to_out[0], one.ff.net[2]] for one in transformer.transformer_blocks]
    biases = [[_bias(layer) for layer in of_block] for of_block in layers]
    first = _bias(transformer.proj_in)
    raised = (first + sum(sum(of_block) for of_block in biases)).to(transformer.proj_in.weight.dtype)
    surplus = raised.float() - first
    for block, of_block in zip(transformer.transformer_blocks, biases, strict=True):
        shifts = []
        for bias in of_block:
            shifts.append(-surplus)
            surplus = surplus - bias
        block.shifts = tuple(shifts)
    return raised


def _resnets_before(network: Any) -> Iterator[tuple[Any, Any]]:
    """Each transformer with the residual block whose output is its input."""
    for block in network.modules():
        if type(block).__name__ in BLOCKS:
            yield from zip(block.attentions, block.resnets, strict=False)  # the mid block ends with a residual block


def _raise_bias(resnet: Any, last: Any) -> torch.Tensor:
    """Make the residual block add the bias of `last` too. Returns the correction that restores its original output."""
    own, dtype = _bias(resnet.conv2), resnet.conv2.weight.dtype
    raised = (own + _bias(last)).to(dtype)
    resnet.raised_bias = raised
    return (own - raised.float()).to(dtype)


def _bias(layer: Any) -> torch.Tensor:
    """The bias in single precision; zeros if there is none."""
    if layer.bias is None:
        return torch.zeros(len(layer.weight), device=layer.weight.device)
    bias: torch.Tensor = layer.bias.detach().float()
    return bias


def _is_plain_transformer(module: Any) -> bool:
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
