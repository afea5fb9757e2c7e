"""Sums of what ControlNets say: each written once, row by row as requests want them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.stock import ENGINE_MARKS
from takeup.serving.diffusion.addons.controlnet.addon import ControlPart, _SummedResiduals
from takeup.serving.diffusion.execution.ops import _can_sum, weighted_sum

pytestmark = ENGINE_MARKS

SHAPES = ((4, 3, 3), (2, 5, 1))
NUM_ROWS = 6


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def image(*shape: int, seed: int = 0) -> torch.Tensor:
    return drawn(*shape, seed=seed).contiguous(memory_format=torch.channels_last)


def test_a_sum_is_written_over_what_was_there() -> None:
    into, first, second = (drawn(2, 3, seed=seed) for seed in range(3))
    weighted_sum(into, [first, second], [0.5, -2.0])

    torch.testing.assert_close(into, 0.5 * first - 2 * second)


def test_a_sum_of_nothing_is_zero() -> None:
    into = drawn(2, 3)
    weighted_sum(into, [], [])

    assert not into.any()


@pytest.mark.parametrize(
    ("sources", "fits"),
    [
        ([image(2, 4, 3, 3)], True),
        ([image(2, 4, 3, 3)] * 4, True),
        ([image(2, 4, 3, 3)] * 5, False),
        ([], False),
        ([image(2, 4, 3, 3), drawn(2, 4, 3, 3)], False),
        ([image(1, 4, 3, 3)], False),
    ],
)
def test_a_kernel_is_given_only_what_lies_alike(sources: list[torch.Tensor], fits: bool) -> None:
    assert _can_sum(image(2, 4, 3, 3), sources) is fits


def test_a_kernel_is_given_nothing_with_gaps() -> None:
    apart = drawn(4, 4)[:, ::2]

    assert not _can_sum(apart, [apart])


class Said:
    """Residuals of one ControlNet."""

    def __init__(self, num_rows: int, seed: int) -> None:
        self._residuals = [drawn(num_rows, *shape, seed=10 * seed + number) for number, shape in enumerate(SHAPES)]

    def take(self, number: int) -> torch.Tensor:
        return self._residuals[number]


@st.composite
def parts(draw: Any) -> list[ControlPart]:
    found, used = [], dict.fromkeys(("depth", "edges", "pose"), 0)
    for net in draw(st.lists(st.sampled_from(sorted(used)), max_size=5)):
        first = draw(st.integers(0, NUM_ROWS - 1))
        rows = slice(first, draw(st.integers(first + 1, NUM_ROWS)))
        num_rows = rows.stop - rows.start
        scales = [draw(st.sampled_from([0.3, 1.0])), torch.tensor(0.7)]
        found.append(ControlPart(net, rows, slice(used[net], used[net] + num_rows), scales))
        used[net] += num_rows
    return found


@settings(deadline=None, max_examples=60)
@given(parts())
def test_all_sums_at_once_are_those_made_one_by_one(parts: list[ControlPart]) -> None:
    streams: Any = {net: Said(5 * NUM_ROWS, seed) for seed, net in enumerate(("depth", "edges", "pose"))}
    together = _SummedResiduals(parts, streams)
    into = [drawn(NUM_ROWS, *shape, seed=99) for shape in SHAPES]
    together.write(into)

    for number, tensor in enumerate(into):
        torch.testing.assert_close(tensor, together.total(number, tensor))
