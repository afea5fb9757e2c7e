"""Kernels over feature maps: channels-last group norm of two concatenated images, and weighted sums of tensors."""

# ruff: noqa: PLR0913, PLR0917, SIM102  kernels take numbers, and branch when they are compiled
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from collections.abc import Sequence

import torch

from takeup.serving.diffusion.execution.kernels import tl, triton

# The weighted sum of a few tensors in one pass over memory ------------------------------------------------------------

MOST_SOURCES, NUMBERS = 4, 1024


@triton.jit
def _add_up(
    into,
    first,
    second,
    third,
    fourth,
    first_scale,
    second_scale,
    third_scale,
    fourth_scale,
    num_numbers,
    num_sources: tl.constexpr,
    numbers: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * numbers + tl.arange(0, numbers)
    inside = place < num_numbers
    total = tl.load(first + place, mask=inside).to(tl.float32) * first_scale
    if num_sources > 1:
        total += tl.load(second + place, mask=inside).to(tl.float32) * second_scale
    if num_sources > 2:
        total += tl.load(third + place, mask=inside).to(tl.float32) * third_scale
    if num_sources > 3:
        total += tl.load(fourth + place, mask=inside).to(tl.float32) * fourth_scale
    tl.store(into + place, total.to(into.dtype.element_ty), mask=inside)


def add_up(into: torch.Tensor, sources: Sequence[torch.Tensor], scales: Sequence[float]) -> None:
    """Write the sum of one to `MOST_SOURCES` tensors, all with the strides of `into` and without gaps."""
    num_missing = MOST_SOURCES - len(sources)
    _add_up[(triton.cdiv(into.numel(), NUMBERS),)](
        into,
        *sources,
        *[sources[0]] * num_missing,
        *scales,
        *[0.0] * num_missing,
        into.numel(),
        num_sources=len(sources),
        numbers=NUMBERS,
    )


# Channels-last group norm: two images concatenated, a value added to each channel, optional SiLU ----------------------
#
# Three kernels. The first sums every channel over parts of the image, the second turns the sums of a group into a
# factor and a shift for each of its channels, the third applies them. The order of summation is fixed, so that equal
# inputs give bit-identical outputs.

MOST_PROGRAMS = 1056  # eight on each multiprocessor
PLACES, SUMMED_PLACES, SUMMING_WARPS = 64, 32, 2
"""Places that a program norms, and that it sums at once. A sum waits for memory: few warps wait less for each other."""


@triton.jit
def _source(
    first_image, second_image, row, first, channels, num_places, num_first, num_second, has_second: tl.constexpr
):
    """Address of these channels at the first pixel, and the stride between pixels."""
    base = first_image + row.to(tl.int64) * num_places * num_first + channels
    step = num_first
    if has_second:
        if first >= num_first:
            base = second_image + row.to(tl.int64) * num_places * num_second + (channels - num_first)
            step = num_second
    return base, step


@triton.jit
def _sum(
    first_image,
    second_image,
    added,
    sums,
    num_places,
    num_first,
    num_second,
    added_step,
    num_loops: tl.constexpr,
    places: tl.constexpr,
    width: tl.constexpr,
    has_second: tl.constexpr,
    has_added: tl.constexpr,
):
    row, part, first = tl.program_id(2), tl.program_id(1), tl.program_id(0) * width
    channels = first + tl.arange(0, width)
    num_channels = num_first + num_second
    base, step = _source(first_image, second_image, row, first, channels, num_places, num_first, num_second, has_second)
    shift = tl.zeros((width,), tl.float32)
    if has_added:
        shift = tl.load(added + row * added_step + channels).to(tl.float32)
    total = tl.zeros((places, width), tl.float32)
    square = tl.zeros((places, width), tl.float32)
    for loop in range(num_loops):
        place = (part * num_loops + loop) * places + tl.arange(0, places)
        inside = place[:, None] < num_places
        x = tl.load(base[None, :] + place[:, None] * step, mask=inside, other=0.0).to(tl.float32)
        x = tl.where(inside, x + shift[None, :], 0.0)
        total += x
        square += x * x
    at = (row * tl.num_programs(1) + part) * 2 * num_channels + channels
    tl.store(sums + at, tl.sum(total, 0))
    tl.store(sums + at + num_channels, tl.sum(square, 0))


@triton.jit
def _finish(
    sums,
    weight,
    bias,
    scales,
    num_places,
    num_channels,
    num_parts,
    eps,
    size: tl.constexpr,
    num_loops: tl.constexpr,
    parts: tl.constexpr,
    width: tl.constexpr,
):
    row = tl.program_id(1)
    lane = tl.arange(0, width)
    channels = tl.program_id(0) * size + lane
    total = tl.zeros((parts, width), tl.float32)
    square = tl.zeros((parts, width), tl.float32)
    for loop in range(num_loops):
        part = loop * parts + tl.arange(0, parts)
        inside = (lane < size)[None, :] & (part[:, None] < num_parts)
        at = sums + (row * num_parts + part[:, None]) * 2 * num_channels + channels[None, :]
        total += tl.load(at, mask=inside, other=0.0)
        square += tl.load(at + num_channels, mask=inside, other=0.0)
    count = num_places * size
    mean = tl.sum(total) / count
    variance = tl.sum(square) / count - mean * mean
    factor = tl.load(weight + channels, mask=lane < size).to(tl.float32) / tl.sqrt(variance + eps)
    shift = tl.load(bias + channels, mask=lane < size).to(tl.float32) - mean * factor
    tl.store(scales + row * 2 * num_channels + channels, factor, mask=lane < size)
    tl.store(scales + (row * 2 + 1) * num_channels + channels, shift, mask=lane < size)


@triton.jit
def _apply(
    first_image,
    second_image,
    added,
    scales,
    normed,
    joined,
    num_places,
    num_first,
    num_second,
    added_step,
    places: tl.constexpr,
    width: tl.constexpr,
    has_second: tl.constexpr,
    has_added: tl.constexpr,
    has_silu: tl.constexpr,
):
    row, first = tl.program_id(2), tl.program_id(0) * width
    channels = first + tl.arange(0, width)
    num_channels = num_first + num_second
    base, step = _source(first_image, second_image, row, first, channels, num_places, num_first, num_second, has_second)
    place = tl.program_id(1) * places + tl.arange(0, places)
    inside = place[:, None] < num_places
    raw = tl.load(base[None, :] + place[:, None] * step, mask=inside)
    factor = tl.load(scales + row * 2 * num_channels + channels)
    shift = tl.load(scales + (row * 2 + 1) * num_channels + channels)
    x = raw.to(tl.float32)
    if has_added:
        x += tl.load(added + row * added_step + channels).to(tl.float32)[None, :]
    y = x * factor[None, :] + shift[None, :]
    if has_silu:
        y = y * tl.sigmoid(y)
    at = row.to(tl.int64) * num_places * num_channels + place[:, None] * num_channels + channels[None, :]
    tl.store(normed + at, y.to(raw.dtype), mask=inside)
    if has_second:
        tl.store(joined + at, raw, mask=inside)


def group_norm(
    image: torch.Tensor,
    skip: torch.Tensor | None,
    added: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor,
    num_groups: int,
    eps: float,
    has_silu: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of both images concatenated, and the concatenated image itself; empty without a second image."""
    num_rows, num_first, height, breadth = image.shape
    num_second = 0 if skip is None else skip.shape[1]
    num_channels, num_places = num_first + num_second, height * breadth
    width = _width(num_first, num_second)
    wanted = max(1, MOST_PROGRAMS // (num_rows * num_channels // width))
    num_loops = triton.cdiv(triton.cdiv(num_places, wanted), SUMMED_PLACES)
    num_parts = triton.cdiv(num_places, num_loops * SUMMED_PLACES)
    sums = image.new_empty((num_rows, num_parts, 2, num_channels), dtype=torch.float32)
    scales = image.new_empty((num_rows, 2, num_channels), dtype=torch.float32)
    shape = (num_rows, num_channels, height, breadth)
    normed = torch.empty(shape, dtype=image.dtype, device=image.device, memory_format=torch.channels_last)
    joined = image.new_empty(0) if skip is None else torch.empty_like(normed)
    images = image, image if skip is None else skip, image if added is None else added
    sizes = num_places, num_first, num_second, 0 if added is None else added.stride(0)
    kinds = {"width": width, "has_second": skip is not None, "has_added": added is not None}
    _sum[(num_channels // width, num_parts, num_rows)](
        *images, sums, *sizes, num_loops=num_loops, places=SUMMED_PLACES, num_warps=SUMMING_WARPS, **kinds
    )
    size, parts = num_channels // num_groups, min(32, triton.next_power_of_2(num_parts))
    _finish[(num_groups, num_rows)](
        sums,
        weight,
        bias,
        scales,
        num_places,
        num_channels,
        num_parts,
        eps,
        size=size,
        num_loops=triton.cdiv(num_parts, parts),
        parts=parts,
        width=triton.next_power_of_2(size),
        num_warps=2,
    )
    _apply[(num_channels // width, triton.cdiv(num_places, PLACES), num_rows)](
        *images, scales, normed, joined, *sizes, places=PLACES, has_silu=has_silu, **kinds
    )
    return normed, joined


def _width(num_first: int, num_second: int) -> int:
    """Channels per program: the largest power of two that divides both channel counts, at most 64."""
    return next(width for width in (64, 32, 16, 8, 4, 2, 1) if num_first % width == 0 and num_second % width == 0)
