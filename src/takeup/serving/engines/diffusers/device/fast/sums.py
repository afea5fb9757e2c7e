"""The weighted sum of a few tensors in one pass over memory."""

# ruff: noqa: PLR0913, PLR0917  kernels take numbers, and branch when they are compiled
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from collections.abc import Sequence

import torch

from takeup.serving.engines.diffusers.device.fast.language import tl, triton

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
