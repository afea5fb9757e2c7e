"""Custom ops with CUDA kernels; on other devices the reference implementation is used."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch.nn.functional import group_norm, scaled_dot_product_attention, silu

from takeup.serving.engines.diffusers.device.attending import tuned_attention

KERNELS = "takeup.serving.engines.diffusers.device.fast"
TEXT_HEAD_WIDTHS, MOST_TEXT = (16, 32, 64, 128), 128

custom_op: Any = torch.library.custom_op  # whose decorators are not annotated


@custom_op("takeup::joined_norm", mutates_args=())
def joined_norm(
    image: torch.Tensor,
    skip: torch.Tensor | None,
    added: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor,
    num_groups: int,
    eps: float,
    has_silu: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Group norm of two concatenated images with `added` per channel, and their concatenation: empty without `skip`."""
    last = torch.channels_last
    joined = image.new_empty(0) if skip is None else torch.cat([image, skip], 1).contiguous(memory_format=last)
    whole = image if skip is None else joined
    shifted = whole if added is None else whole + added[:, :, None, None]
    normed = group_norm(shifted, num_groups, weight, bias, eps)
    return (silu(normed) if has_silu else normed).contiguous(memory_format=last), joined


@joined_norm.register_fake
def _(image: Any, skip: Any, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    num_channels = image.shape[1] + (0 if skip is None else skip.shape[1])
    shape = (image.shape[0], num_channels, *image.shape[2:])
    normed = torch.empty(shape, dtype=image.dtype, device=image.device).contiguous(memory_format=torch.channels_last)
    return normed, image.new_empty(0) if skip is None else torch.empty_like(normed)


@joined_norm.register_kernel("cuda")
def _(image: Any, skip: Any, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    last = torch.channels_last
    second = None if skip is None else skip.contiguous(memory_format=last)
    found: tuple[torch.Tensor, torch.Tensor] = import_module(f"{KERNELS}.norms").group_norm(
        image.contiguous(memory_format=last), second, *others
    )
    return found


@custom_op("takeup::text_attention", mutates_args=())
def text_attention(query: torch.Tensor, text: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Attention of `query` (rows, tokens, width) to `text`, the stacked keys and values."""
    num_rows, num_tokens, _width = query.shape
    heads = query.view(num_rows, num_tokens, num_heads, -1).transpose(1, 2)
    keys, values = text.view(2, num_rows, text.shape[2], num_heads, -1).transpose(2, 3)
    return scaled_dot_product_attention(heads, keys, values).transpose(1, 2).flatten(2).contiguous()


@text_attention.register_fake
def _(query: Any, text: Any, num_heads: int) -> torch.Tensor:
    shape: torch.Tensor = query.new_empty(query.shape)
    return shape


@text_attention.register_kernel("cuda")
def _(query: Any, text: Any, num_heads: int) -> torch.Tensor:
    width = query.shape[2] // num_heads
    if width not in TEXT_HEAD_WIDTHS or text.shape[2] > MOST_TEXT:
        plain: torch.Tensor = text_attention._init_fn(query, text, num_heads)
        return plain
    found: torch.Tensor = import_module(f"{KERNELS}.attention").text_attention(query.contiguous(), text, num_heads)
    return found


@custom_op("takeup::self_attention", mutates_args=())
def self_attention(packed: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Self-attention; queries, keys and values of all heads are concatenated in the last dimension."""
    return tuned_attention(*_unpacked(packed, num_heads))


@self_attention.register_fake
def _(packed: Any, num_heads: int) -> torch.Tensor:
    shape: torch.Tensor = packed.new_empty((*packed.shape[:2], packed.shape[2] // 3))
    return shape


@custom_op("takeup::token_attention", mutates_args=())
def token_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention over tensors of shape (rows, tokens, heads, width); the output flattens heads and width.

    A custom op, because compilers would otherwise fix the choice of a library when they first trace it.
    """
    return tuned_attention(query, key, value)


@token_attention.register_fake
def _(query: Any, key: Any, value: Any) -> torch.Tensor:
    shape: torch.Tensor = query.new_empty((*query.shape[:2], query.shape[2] * query.shape[3]))
    return shape


def _unpacked(packed: torch.Tensor, num_heads: int) -> tuple[torch.Tensor, ...]:
    num_rows, num_tokens, _width = packed.shape
    return packed.contiguous().view(num_rows, num_tokens, 3, num_heads, -1).unbind(2)
