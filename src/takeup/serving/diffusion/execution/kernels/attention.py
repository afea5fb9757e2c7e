"""Attention kernels for few keys (a short text, or an image of few tokens), and a kernel that combines split keys.

All keys of a text fit into one block. For images of about a thousand tokens, small blocks of queries balance the load
on a device better than the large ones of its libraries, which are made for longer sequences.
"""

# ruff: noqa: PLR0913, PLR0917  kernels take numbers, and branch when they are compiled
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch

from takeup.serving.diffusion.execution.kernels import tl, triton

TOKENS = 64
JOINED_TOKENS = 16
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
    query,
    keys,
    values,
    out,
    scale,
    num_tokens,
    query_row,
    query_token,
    key_row,
    key_token,
    num_keys: tl.constexpr,
    num_heads: tl.constexpr,
    width: tl.constexpr,
    tokens: tl.constexpr,
    step: tl.constexpr,
):
    row, head = tl.program_id(1) // num_heads, tl.program_id(1) % num_heads
    all_heads: tl.constexpr = num_heads * width
    lane = tl.arange(0, width)
    token = tl.program_id(0) * tokens + tl.arange(0, tokens)
    inside = token[:, None] < num_tokens
    own = query + row.to(tl.int64) * query_row + head * width
    q = tl.load(own + token[:, None] * query_token + lane[None, :], mask=inside, other=0.0)
    base = row.to(tl.int64) * key_row + head * width
    best = tl.full((tokens,), float("-inf"), tl.float32)
    total = tl.zeros((tokens,), tl.float32)
    answer = tl.zeros((tokens, width), tl.float32)
    factor = scale * LOG2_E
    for start in range(0, num_keys, step):
        at = (start + tl.arange(0, step)) * key_token
        k = tl.load(keys + base + at[None, :] + lane[:, None])
        v = tl.load(values + base + at[:, None] + lane[None, :])
        score = tl.dot(q, k)
        better = tl.maximum(best, tl.max(score, 1) * factor)
        weight = tl.exp2(score * factor - better[:, None])
        shrink = tl.exp2(best - better)
        total = total * shrink + tl.sum(weight, 1)
        answer = tl.dot(weight.to(v.dtype), v, answer * shrink[:, None])
        best = better
    place = (row.to(tl.int64) * num_tokens + token[:, None]) * all_heads + head * width + lane[None, :]
    tl.store(out + place, (answer / total[:, None]).to(q.dtype), mask=inside)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocks: tuple[int, int, int, int, int | None] = (64, 128, 4, 2, None),
) -> torch.Tensor:
    """Attention over tensors of shape (rows, tokens, heads, width), with contiguous heads.

    `blocks`: queries per block, keys per block (must divide all keys), warps, stages, most registers per thread.
    """
    num_rows, num_tokens, num_heads, width = query.shape
    tokens, step, num_warps, num_stages, most_registers = blocks
    out = query.new_empty((num_rows, num_tokens, num_heads * width))
    _attend_to_all[(triton.cdiv(num_tokens, tokens), num_rows * num_heads)](
        query,
        key,
        value,
        out,
        width**-0.5,
        num_tokens,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        num_keys=key.shape[1],
        num_heads=num_heads,
        width=width,
        tokens=tokens,
        step=step,
        num_warps=num_warps,
        num_stages=num_stages,
        maxnreg=most_registers,
    )
    return out


@triton.jit
def _join(
    answers,
    logs,
    out,
    num_tokens,
    part_step,
    token_step,
    head_step,
    num_parts: tl.constexpr,
    num_heads: tl.constexpr,
    width: tl.constexpr,
    tokens: tl.constexpr,
):
    row, head = tl.program_id(1) // num_heads, tl.program_id(1) % num_heads
    token = tl.program_id(0) * tokens + tl.arange(0, tokens)
    is_token = token < num_tokens
    inside = is_token[:, None]
    lane = tl.arange(0, width)
    first = row * num_parts
    best = tl.full((tokens,), float("-inf"), tl.float32)
    for part in tl.static_range(num_parts):
        at = logs + ((first + part) * num_heads + head) * num_tokens + token
        best = tl.maximum(best, tl.load(at, mask=is_token, other=0.0))
    total = tl.zeros((tokens,), tl.float32)
    answer = tl.zeros((tokens, width), tl.float32)
    for part in tl.static_range(num_parts):
        at = logs + ((first + part) * num_heads + head) * num_tokens + token
        weight = tl.exp2((tl.load(at, mask=is_token, other=0.0) - best) * LOG2_E)
        place = (first + part).to(tl.int64) * part_step + token[:, None] * token_step + head * head_step + lane[None, :]
        answer += tl.load(answers + place, mask=inside, other=0.0).to(tl.float32) * weight[:, None]
        total += weight
    place = (row.to(tl.int64) * num_tokens + token[:, None]) * (num_heads * width) + head * width + lane[None, :]
    tl.store(out + place, (answer / total[:, None]).to(out.dtype.element_ty), mask=inside)


def joined(answers: torch.Tensor, logs: torch.Tensor, num_parts: int) -> torch.Tensor:
    """Combine partial outputs (rows x parts, tokens, heads, width) by `logs` (rows x parts, heads, tokens)."""
    num_all, num_tokens, num_heads, width = answers.shape
    num_rows = num_all // num_parts
    out = answers.new_empty((num_rows, num_tokens, num_heads * width))
    _join[(triton.cdiv(num_tokens, JOINED_TOKENS), num_rows * num_heads)](
        answers,
        logs.contiguous(),
        out,
        num_tokens,
        answers.stride(0),
        answers.stride(1),
        answers.stride(2),
        num_parts=num_parts,
        num_heads=num_heads,
        width=width,
        tokens=JOINED_TOKENS,
    )
    return out
