"""The fast path of Flux computes what the hooks compute; full-size networks have the operations of the real ones."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.masked.networks import Network, block_mask, scattered_mask
from serving.stock import ENGINE_MARKS, gap
from takeup.serving.engines.diffusers.masked.fast_flux import BoundFlux
from takeup.serving.engines.diffusers.masked.flat import Flat, flatten
from takeup.serving.engines.diffusers.masked.full_size import FULL_SIZE, box_mask, count_flop
from takeup.serving.engines.diffusers.masked.graphs import Repeated
from takeup.serving.engines.diffusers.masked.pages import working_copy

pytestmark = ENGINE_MARKS


@pytest.mark.parametrize("num_requests", [1, 2])
def test_the_fast_path_of_flux_is_that_of_the_hooks(num_requests: int) -> None:
    with Network("takeup/tiny-flux", num_requests) as network:
        before = network.whole()
        masks = [block_mask(network.grid, 0.2), scattered_mask(network.grid, 0.1)][:num_requests]
        for run, mask in zip(network.runs, masks, strict=True):
            run.latents[:, mask.flatten()] += 1.0
        hooked = network.masked(masks, multiple=4)
        network.hooks.remove()
        page = working_copy(network.call.recorded, network.hooks.fronted, network.call.num_front)
        fast = BoundFlux(network.family.network, page, network.call.places, network.runs[0].shared, 2)
        for flat in fast.flats:
            for name, kept in page.items():
                flat.views[name].copy_(kept)
        ours = network.family.predict(network.rows).clone()
        fast.use(1)
        again = network.family.predict(network.rows)
        fast.release()
        for run, mask in zip(network.runs, masks, strict=True):
            run.latents[:, mask.flatten()] -= 1.0
        after = network.family.predict(network.rows)

    assert gap(ours, hooked) < 1e-5
    assert torch.equal(ours, again)
    assert gap(after, before) < 1e-5


def test_a_flat_page_is_filled_with_what_was_flattened() -> None:
    page = {"a": torch.randn(2, 4, 64), "b": torch.randn(2, 8, 128)}
    flat = Flat(page)
    flat.fill(*flatten(page))

    assert all(gap(flat.views[name], kept) < 0.01 for name, kept in page.items())
    assert flat.views["a"].data_ptr() == flat.values.data_ptr()


def test_without_an_accelerator_a_call_is_made_again() -> None:
    numbers = torch.zeros(2)
    repeated = Repeated(lambda number: number + 1, {"number": numbers})
    first = repeated()
    numbers += 1

    assert torch.equal(first, torch.ones(2))
    assert torch.equal(repeated(), torch.full((2,), 2.0))


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
