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

These modules are not compiled by TorchInductor: a block is a few kernels, each chosen by measurement.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MethodType
from typing import Any

import torch
from torch.nn.functional import conv2d, linear

from takeup.serving.diffusion.execution.convolutions import ReplacedForwards
from takeup.serving.diffusion.execution.ops import (
    add_matmul,
    geglu_matmul,
    joined_norm,
    self_attention,
    shifted_layer_norm,
    text_attention,
)
from takeup.serving.diffusion.execution.packed_attention import SelfAttention, TextAttention
from takeup.serving.diffusion.execution.weight_stacks import TimeProjections, WeightStacks, time_projection

# Residual blocks of U-Nets with fewer passes over memory --------------------------------------------------------------
#
# An up block concatenates its input with a skip, normalizes it, and adds a bias and the time embedding to every channel
# before the next norm. Separately, each of these reads and writes the whole image. Here one norm kernel takes the two
# images and the per-channel values unmodified. The results are those of diffusers; rounding differs.

UP_BLOCKS = ("UpBlock2D", "CrossAttnUpBlock2D")


class FusedResidualBlocks:
    """A network whose plain residual blocks fuse concatenation and norm, and whose up blocks pass skips to them.

    With the `stacks` of the network, the time projections of all blocks are computed at once.
    """

    def __init__(self, network: Any, stacks: WeightStacks | None = None) -> None:
        blocks = [one for one in network.modules() if _is_plain_resnet(one)]
        ups = [one for one in network.modules() if type(one).__name__ in UP_BLOCKS and _can_fuse_skips(one)]
        self._times = TimeProjections(network, blocks, stacks) if stacks is not None and blocks else None
        forwards = {one: MethodType(_resnet, one) for one in blocks}
        forwards |= {one: MethodType(_up, one) for one in ups}
        forwards |= {one.norm: MethodType(_group_norm, one.norm) for one in network.modules() if _has_group_norm(one)}
        if hasattr(network, "conv_norm_out") and isinstance(getattr(network, "conv_act", None), torch.nn.SiLU):
            forwards[network.conv_norm_out] = MethodType(_norm_and_silu, network.conv_norm_out)
            forwards[network.conv_act] = MethodType(_nothing, network.conv_act)
        self._forwards = ReplacedForwards(forwards)

    @contextmanager
    def separate(self) -> Iterator[None]:
        """Inside, every layer is called separately, as hooks on layers require."""
        self._let_time(False)
        try:
            with self._forwards.separate():
                yield
        finally:
            self._let_time(True)

    def _let_time(self, is_on: bool) -> None:
        if self._times is not None:
            self._times.is_on = is_on


def _normed(norm: Any, *images: torch.Tensor | None, has_silu: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    image, skip, added = images
    found: tuple[torch.Tensor, torch.Tensor] = joined_norm(
        image, skip, added, norm.weight, norm.bias, norm.num_groups, norm.eps, has_silu
    )
    return found


def _resnet(self: Any, image: torch.Tensor, temb: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor:
    """A `ResnetBlock2D` of an image, or of an image and a skip to be concatenated."""
    hidden, joined = _normed(self.norm1, image, skip, None)
    source = image if skip is None else joined
    hidden = conv2d(hidden, self.conv1.weight, None, padding=self.conv1.padding)  # the next norm adds its bias
    hidden, _ = _normed(self.norm2, hidden, None, time_projection(self, temb))
    if self.conv_shortcut is not None:
        source = self.conv_shortcut(source)
    bias = getattr(self, "raised_bias", self.conv2.bias)
    hidden = conv2d(hidden, self.conv2.weight, bias, padding=self.conv2.padding)
    return (source + hidden) / self.output_scale_factor  # type: ignore[no-any-return]


def _group_norm(self: Any, image: torch.Tensor) -> torch.Tensor:
    return _normed(self, image, None, None, has_silu=False)[0]


def _norm_and_silu(self: Any, image: torch.Tensor) -> torch.Tensor:
    return _normed(self, image, None, None)[0]


def _nothing(self: Any, image: torch.Tensor) -> torch.Tensor:
    return image


def _up(
    self: Any,
    hidden_states: torch.Tensor,
    res_hidden_states_tuple: Sequence[torch.Tensor],
    temb: torch.Tensor | None = None,
    encoder_hidden_states: torch.Tensor | None = None,
    upsample_size: int | None = None,
    **_: Any,
) -> torch.Tensor:
    """An up block without the copies that concatenate images and skips."""
    attentions = getattr(self, "attentions", [None] * len(self.resnets))
    skips = reversed(res_hidden_states_tuple[-len(self.resnets) :])
    for resnet, attention, skip in zip(self.resnets, attentions, skips, strict=True):
        hidden_states = resnet(hidden_states, temb, skip)
        if attention is not None:
            (hidden_states,) = attention(hidden_states, encoder_hidden_states=encoder_hidden_states, return_dict=False)
    for upsampler in self.upsamplers or ():
        hidden_states = upsampler(hidden_states, upsample_size)
    return hidden_states


def can_add_bias(module: Any) -> bool:
    """Whether this residual block is fused, and can add a `raised_bias` to its output without rescaling."""
    return _is_plain_resnet(module) and module.output_scale_factor == 1 and module.conv2.bias is not None


def _is_plain_resnet(module: Any) -> bool:
    if type(module).__name__ != "ResnetBlock2D" or module.time_emb_proj is None or module.skip_time_act:
        return False
    usual = module.time_embedding_norm == "default" and module.upsample is None and module.downsample is None
    return usual and isinstance(module.nonlinearity, torch.nn.SiLU) and module.conv1.bias is not None


def _has_group_norm(module: Any) -> bool:
    return type(module).__name__ == "Transformer2DModel" and isinstance(module.norm, torch.nn.GroupNorm)


def _can_fuse_skips(block: Any) -> bool:
    return all(_is_plain_resnet(resnet) for resnet in block.resnets) and not any(
        getattr(block, s, None) for s in ("s1", "b1")
    )


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
