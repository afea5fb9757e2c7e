"""Numbers and places of tokens that are computed; full-size networks have the operations of the real ones."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.support.full_size import FULL_SIZE, box_mask, count_flop
from serving.stock import ENGINE_MARKS
from takeup.serving.editing.masked.tokens import bucket_size, bucket_sizes, grids_of, token_indices

pytestmark = ENGINE_MARKS


@pytest.mark.parametrize(("count", "multiple", "room"), [(0, 64, 0), (1, 1, 1), (1, 64, 64), (100, 64, 128)])
def test_small_numbers_of_tokens_are_rounded_to_multiples(count: int, multiple: int, room: int) -> None:
    assert bucket_size(count, multiple) == room


def test_large_numbers_of_tokens_come_in_four_sizes_an_octave() -> None:
    sizes = {bucket_size(count, 32) for count in range(1025, 2049)}

    assert len(sizes) == 4
    assert all(bucket_size(count, 32) >= count for count in range(5000))


@given(counts=st.lists(st.integers(0, 16384), min_size=1, max_size=4), multiple=st.sampled_from([1, 16, 64]))
def test_rooms_hold_what_is_needed_and_are_those_of_a_square(counts: list[int], multiple: int) -> None:
    found = bucket_sizes(counts, multiple)

    assert all(room >= count for room, count in zip(found, counts, strict=True))
    assert found == (tuple(counts) if multiple == 1 else bucket_sizes([found[0], *[0] * (len(counts) - 1)], multiple))


def test_squares_anywhere_differ_in_their_room_on_the_first_grid_only() -> None:
    random = np.random.default_rng(1)
    grids, found = grids_of((128, 128), 3), set()
    for side in range(16, 90):
        mask = torch.zeros(128, 128)
        top, left = random.integers(0, 128 - side, 2)
        mask[top : top + side, left : left + side] = 1
        found.add(tuple(one.by_row.shape[1] for one in token_indices([mask], grids, 64).values()))

    assert len(found) == len({one[0] for one in found}) <= 22  # five octaves of tokens


@pytest.mark.parametrize(
    ("name", "share", "tera"),
    [
        *(("sdxl", m, t) for m, t in [(0.1, 4.37), (0.2, 5.39), (0.5, 8.44)]),
        *(("flux", m, t) for m, t in [(0.1, 14.9), (0.2, 21.5), (0.5, 41.3)]),
    ],
)
def test_counted_operations_of_real_networks_are_at_their_floors(name: str, share: float, tera: float) -> None:
    assert count_flop(name, share) / 1e12 == pytest.approx(tera, rel=0.05)


def test_full_size_networks_have_the_size_of_the_real_ones() -> None:
    sizes = {name: sum(one.numel() for one in size.network("meta").parameters()) for name, size in FULL_SIZE.items()}

    assert sizes["sdxl"] == pytest.approx(2.567e9, rel=0.001)
    assert sizes["flux"] == pytest.approx(11.9e9, rel=0.005)


def test_masked_convolutions_leave_their_share_of_operations() -> None:
    assert count_flop("sdxl", 0.1, convolutions=True) / 1e12 == pytest.approx(4.37 - 0.9 * 3.25, rel=0.03)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.35, 0.5, 1.0])
@pytest.mark.parametrize("grid", [(128, 128), (64, 64), (16, 24)])
def test_a_box_has_exactly_its_share_of_the_tokens(share: float, grid: tuple[int, int]) -> None:
    mask = box_mask(grid, share)

    assert mask.shape == grid
    assert int(mask.sum()) == round(share * grid[0] * grid[1])
