"""Attention where few tokens are looked at: a short text, or an image of few tokens.

All keys of a text fit into one block. For images of about a thousand tokens, small blocks of queries share a device
more evenly than the large ones of its libraries, which are made for longer sequences.
"""

# ruff: noqa: PLR0913, PLR0917  kernels take numbers, and branch when they are compiled
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch

from takeup.serving.engines.diffusers.device.fast.language import tl, triton

__all__ = ["self_attention", "text_attention"]

TOKENS, KEYS = 64, 128
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _attend(
    query,
    keys,
    values,
    out,
    num_tokens,
    num_text,
    scale,
    query_row,
    query_token,
    text_row,
    text_token,
    num_heads: tl.constexpr,
    width: tl.constexpr,
    tokens: tl.constexpr,
    texts: tl.constexpr,
):
    row, head = tl.program_id(1) // num_heads, tl.program_id(1) % num_heads
    token = tl.program_id(0) * tokens + tl.arange(0, tokens)
    text = tl.arange(0, texts)
    lane = head * width + tl.arange(0, width)
    inside = token[:, None] < num_tokens
    place = row * query_row + token[:, None] * query_token + lane[None, :]
    q = tl.load(query + place, mask=inside, other=0.0)
    at = row * text_row + text * text_token
    k = tl.load(keys + at[None, :] + lane[:, None], mask=text[None, :] < num_text, other=0.0)
    v = tl.load(values + at[:, None] + lane[None, :], mask=text[:, None] < num_text, other=0.0)
    score = tl.where(text[None, :] < num_text, tl.dot(q, k) * (scale * LOG2_E), float("-inf"))
    weight = tl.exp2(score - tl.max(score, 1)[:, None])
    answer = tl.dot(weight.to(v.dtype), v) / tl.sum(weight, 1)[:, None]
    tl.store(out + place, answer.to(q.dtype), mask=inside)


def text_attention(query: torch.Tensor, text: torch.Tensor, num_heads: int) -> torch.Tensor:
    """`query`: rows, tokens, heads x width. `text`: keys and values, rows, tokens, heads x width."""
    num_rows, num_tokens, all_heads = query.shape
    width, num_text = all_heads // num_heads, text.shape[2]
    out = torch.empty_like(query)
    _attend[(triton.cdiv(num_tokens, TOKENS), num_rows * num_heads)](
        query,
        text[0],
        text[1],
        out,
        num_tokens,
        num_text,
        width**-0.5,
        query.stride(0),
        query.stride(1),
        text.stride(1),
        text.stride(2),
        num_heads=num_heads,
        width=width,
        tokens=TOKENS,
        texts=max(16, triton.next_power_of_2(num_text)),
    )
    return out


@triton.jit
def _attend_to_all(
    packed,
    out,
    scale,
    row_step,
    token_step,
    num_tokens: tl.constexpr,
    num_heads: tl.constexpr,
    width: tl.constexpr,
    tokens: tl.constexpr,
    keys: tl.constexpr,
):
    row, head = tl.program_id(1) // num_heads, tl.program_id(1) % num_heads
    all_heads: tl.constexpr = num_heads * width
    lane = tl.arange(0, width)
    token = tl.program_id(0) * tokens + tl.arange(0, tokens)
    base = packed + row * row_step + head * width
    q = tl.load(base + token[:, None] * token_step + lane[None, :])
    best = tl.full((tokens,), float("-inf"), tl.float32)
    total = tl.zeros((tokens,), tl.float32)
    answer = tl.zeros((tokens, width), tl.float32)
    factor = scale * LOG2_E
    for start in range(0, num_tokens, keys):
        at = (start + tl.arange(0, keys)) * token_step
        k = tl.load(base + all_heads + at[None, :] + lane[:, None])
        v = tl.load(base + 2 * all_heads + at[:, None] + lane[None, :])
        score = tl.dot(q, k)
        better = tl.maximum(best, tl.max(score, 1) * factor)
        weight = tl.exp2(score * factor - better[:, None])
        shrink = tl.exp2(best - better)
        total = total * shrink + tl.sum(weight, 1)
        answer = tl.dot(weight.to(v.dtype), v, answer * shrink[:, None])
        best = better
    place = (row * num_tokens + token[:, None]) * all_heads + head * width + lane[None, :]
    tl.store(out + place, (answer / total[:, None]).to(q.dtype))


def self_attention(packed: torch.Tensor, num_heads: int) -> torch.Tensor:
    """`packed`: rows, tokens, then queries, keys and values of all heads. The tokens divide by `KEYS`."""
    num_rows, num_tokens, three = packed.shape
    width = three // 3 // num_heads
    out = packed.new_empty((num_rows, num_tokens, three // 3))
    _attend_to_all[(num_tokens // TOKENS, num_rows * num_heads)](
        packed,
        out,
        width**-0.5,
        packed.stride(0),
        packed.stride(1),
        num_tokens=num_tokens,
        num_heads=num_heads,
        width=width,
        tokens=TOKENS,
        keys=KEYS,
        num_stages=2,
    )
    return out
