"""Mask-aware convolutions compute masked pixels as if all had been computed, and nothing but them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from torch.nn.functional import conv2d, group_norm, interpolate, silu

from serving.editing.networks import Network, block_mask, scattered_mask
from serving.stock import ENGINE_MARKS, gap
from takeup.errors import BadInput
from takeup.serving.editing.masked.graph_calls import DoubleBuffer
from takeup.serving.editing.masked.kv_cache import ColumnTables
from takeup.serving.editing.masked.masked_convolutions import (
    MaskedConvolutions,
    Resampling,
    affine_of,
    column,
    entry_table,
    gather_table,
    gathered,
    tokens_of,
)
from takeup.serving.editing.masked.tokens import MAP, Page, grids_of, token_indices

pytestmark = ENGINE_MARKS

EXACT = 1e-5
UNETS = ("takeup/tiny-sdxl", "takeup/tiny-sd15")
Draw = Callable[[tuple[int, int], float, int], torch.Tensor]


@pytest.fixture(params=UNETS)
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    with Network(request.param, convolutions=True) as opened:
        yield opened


@pytest.fixture(params=UNETS)
def two(request: pytest.FixtureRequest) -> Iterator[Network]:
    with Network(request.param, num_requests=2, convolutions=True) as opened:
        yield opened


# Tables ---------------------------------------------------------------------------------------------------------------


def whole_convolution(
    pixels: torch.Tensor, weight: torch.Tensor, move: Resampling, wide: tuple[int, int]
) -> torch.Tensor:
    if move == "up":
        pixels = interpolate(pixels, size=wide, mode="nearest")
    return conv2d(pixels, weight, padding=1, stride=2 if move == "down" else 1)


@pytest.mark.parametrize("move", ["same", "down", "up"])
@pytest.mark.parametrize("grid", [(8, 8), (7, 5), (6, 9)])
@pytest.mark.parametrize("multiple", [1, 16])
def test_a_product_of_neighbours_is_the_convolution(move: Resampling, grid: tuple[int, int], multiple: int) -> None:
    random = torch.Generator().manual_seed(1)
    fine, coarse = grids_of(grid, 2)
    source, target = {"same": (fine, fine), "down": (fine, coarse), "up": (coarse, fine)}[move]
    masks = [block_mask(fine, 0.2), scattered_mask(fine, 0.3)]
    places = token_indices(masks, [fine, coarse], multiple=4)
    pixels = torch.randn(2, 6, *source, generator=random)
    weight = torch.randn(5, 6, 3, 3, generator=random)

    found = gather_table(places, source, move, target, multiple)
    every = tokens_of(pixels)
    own = places[source[0] * source[1]]
    fresh = every.reshape(-1, 6)[own.flat].view(2, -1, 6)
    rim = every.reshape(-1, 6)[found.rim]
    ours = gathered(fresh, rim, found.table, None) @ weight.permute(0, 2, 3, 1).flatten(1).T

    whole = tokens_of(whole_convolution(pixels, weight, move, target)).reshape(-1, 5)
    assert len(found.rim) % multiple == 0
    assert gap(ours, whole[places[target[0] * target[1]].flat]) < EXACT


def test_the_rim_is_what_lies_beside_the_mask() -> None:
    mask = torch.zeros(6, 6, dtype=torch.bool)
    mask[2:4, 2:4] = True
    places = token_indices([mask], [(6, 6)])
    found = gather_table(places, (6, 6), "same", (6, 6))

    beside = {y * 6 + x for y in range(1, 5) for x in range(1, 5)} - {y * 6 + x for y in (2, 3) for x in (2, 3)}
    assert set(found.rim.tolist()) == beside


def test_the_first_convolution_sees_every_pixel() -> None:
    pixels, weight = torch.randn(2, 3, 5, 7), torch.randn(4, 3, 3, 3)
    places = token_indices([block_mask((5, 7), 0.3), scattered_mask((5, 7), 0.2)], [(5, 7)])[35]
    rows = gathered(tokens_of(pixels), torch.empty(0, 3), entry_table(places, (5, 7)), None)

    whole = tokens_of(conv2d(pixels, weight, padding=1)).reshape(-1, 4)[places.flat]
    assert gap(rows @ weight.permute(0, 2, 3, 1).flatten(1).T, whole) < EXACT


def test_a_norm_with_known_statistics_is_the_norm() -> None:
    norm = torch.nn.GroupNorm(4, 8).requires_grad_(False)
    norm.weight.normal_()
    norm.bias.normal_()
    pixels = torch.randn(2, 8, 5, 5) * 3 + 1
    scale, shift = affine_of(norm, pixels)[:, 0].chunk(2, dim=1)

    table = torch.arange(50)[:, None]
    ours = gathered(tokens_of(pixels), torch.empty(0, 8), table, (scale, shift))
    theirs = silu(group_norm(pixels, 4, norm.weight, norm.bias))
    assert gap(ours, tokens_of(theirs).reshape(-1, 8)) < EXACT


def test_a_column_and_its_tokens_share_their_memory() -> None:
    tokens = torch.randn(2, 5, 3)

    assert column(tokens).shape == (2, 3, 5, 1)
    assert tokens_of(column(tokens)).data_ptr() == tokens.data_ptr()
    assert column(tokens).is_contiguous(memory_format=torch.channels_last)


# Networks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [scattered_mask, block_mask])
def test_masked_pixels_are_those_of_the_whole_run(network: Network, draw: Draw) -> None:
    whole = network.whole()
    for share in (0.05, 0.2, 0.5, 1.0):
        masked = network.masked([draw(network.grid, share, 0)])

        assert gap(masked, whole) < EXACT


def test_different_masks_share_a_call_with_columns(two: Network) -> None:
    whole = two.whole()
    masked = two.masked([block_mask(two.grid, 0.3), scattered_mask(two.grid, 0.1)], multiple=8)

    assert gap(masked, whole) < EXACT


def test_what_is_outside_the_mask_stays_bit_for_bit(network: Network) -> None:
    mask = block_mask(network.grid, 0.2)
    whole = network.whole()
    network.runs[0].latents[:, :, mask] += 1.0
    masked = network.masked([mask])

    assert torch.equal(masked[:, :, ~mask], whole[:, :, ~mask])
    assert gap(masked[:, :, mask], whole[:, :, mask]) > 0.01


def test_convolutions_compute_the_masked_pixels_only(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    network.whole()
    sizes: list[int] = []
    stock = torch.nn.functional.linear

    def counted(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        sizes.append(rows.shape[0] if rows.ndim == 2 else 0)
        return stock(rows, weight, bias)

    monkeypatch.setattr("takeup.serving.editing.masked.masked_convolutions.linear", counted)
    mask = block_mask(network.grid, 0.1)
    network.masked([mask])

    assert max(sizes) == 2 * int(mask.sum())
    assert max(sizes) < 0.2 * 2 * mask.numel()


def test_columns_off_and_removed_change_nothing_bit_for_bit(network: Network) -> None:
    network.call.mode = "off"
    hooked = network.family.predict(network.rows)
    network.close()

    assert torch.equal(network.family.predict(network.rows), hooked)
    assert not any("forward" in vars(module) for module in network.family.network.modules())


def test_blocks_of_another_kind_are_refused(network: Network) -> None:
    resnet = next(one for one in network.family.network.modules() if type(one).__name__ == "ResnetBlock2D")
    network.close()
    resnet.output_scale_factor = 2.0
    try:
        with pytest.raises(BadInput, match="leave them off"):
            MaskedConvolutions(network.family.network, ColumnTables.__new__(ColumnTables))  # type: ignore[arg-type]
    finally:
        resnet.output_scale_factor = 1.0
    assert not any("forward" in vars(module) for module in network.family.network.modules())


# In fixed memory ------------------------------------------------------------------------------------------------------


def tables_of(top: int, num_rows: int = 4) -> ColumnTables:
    """Of squares, each row with another one."""
    masks = [torch.zeros(16, 16, dtype=torch.bool) for _ in range(num_rows)]
    for row, mask in enumerate(masks):
        mask[top : top + 4, row : row + 4] = True
    return ColumnTables(token_indices(masks, grids_of((16, 16), 2), 16), (16, 16), 16)


def test_tables_take_what_others_say_and_stay_where_they_are() -> None:
    first, second = tables_of(2), tables_of(6)
    mine = first.copied()
    where = [one.data_ptr() for one in mine.tensors()]
    mine.take(second)

    assert mine.sizes == first.sizes == second.sizes
    assert [one.data_ptr() for one in mine.tensors()] == where
    assert all(torch.equal(one, other) for one, other in zip(mine.tensors(), second.tensors(), strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(first.tensors(), second.tensors(), strict=True))


@pytest.mark.parametrize("sizes", [[4], [2, 2], [1, 2, 1]])
def test_rims_are_the_pixels_beside_the_mask_wherever_rows_come_from(sizes: list[int]) -> None:
    tables, name = tables_of(3), f"mid_block.conv{MAP}"
    whole = torch.randn(4, 256, 8)
    found = torch.full((len(tables.of(name, 256).rim), 8), torch.nan)
    first = 0
    for size in sizes:
        rows = range(first, first + size)
        own, places = tables.part(name, 256, rows)
        found[own] = whole[rows.start : rows.stop].flatten(0, 1)[places]
        first = rows.stop

    assert torch.equal(found, whole.flatten(0, 1)[tables.of(name, 256).rim])


# Two places that take turns -------------------------------------------------------------------------------------------


class Slot:
    """A place that remembers what was brought there."""

    def __init__(self) -> None:
        self.pages: list[float] = []

    def load(self, pages: Sequence[Page]) -> None:
        self.pages.append(float(pages[0]["a"]))


def read(number: float) -> Callable[[], list[Page]]:
    return lambda: [{"a": torch.tensor(number)}]


def test_what_was_expected_is_not_brought_again() -> None:
    slots = Slot(), Slot()
    turns = DoubleBuffer(slots, None)
    first = turns.now("first", read(1.0))
    turns.soon(1 - first, "second", read(2.0))
    second = turns.now("second", read(3.0))

    assert (first, second) == (0, 1)
    assert [one.pages for one in slots] == [[1.0], [2.0]]


def test_what_was_brought_can_be_let_go_of() -> None:
    slots = Slot(), Slot()
    turns = DoubleBuffer(slots, None)
    pages = read(1.0)()
    turns.now("first", pages.copy)
    page = weakref.ref(pages.pop()["a"])
    assert page() is not None

    turns.let_go()
    assert page() is None
    assert turns.now("first", read(2.0)) == 0
    assert slots[0].pages == [1.0, 2.0]


def test_what_was_not_expected_is_brought_when_it_is_needed() -> None:
    slots = Slot(), Slot()
    turns = DoubleBuffer(slots, None)
    turns.soon(1, "second", read(2.0))
    turns.forget()
    number = turns.now("second", read(3.0))

    assert slots[number].pages[-1] == 3.0
