"""Masked tokens come out as if all had been computed, in every family, for every kind of mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.editing.networks import FAMILY_NAMES, Network, block_mask, scattered_mask
from serving.stock import ENGINE_MARKS, gap
from takeup.errors import BadInput
from takeup.serving.editing.masked.hooks import MaskingHooks

pytestmark = ENGINE_MARKS

EXACT = 1e-5
Draw = Callable[[tuple[int, int], float, int], torch.Tensor]


@pytest.fixture(params=FAMILY_NAMES)
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    with Network(request.param) as opened:
        yield opened


@pytest.fixture(params=FAMILY_NAMES)
def three(request: pytest.FixtureRequest) -> Iterator[Network]:
    with Network(request.param, num_requests=3) as opened:
        yield opened


@pytest.mark.parametrize("draw", [scattered_mask, block_mask])
def test_masked_tokens_are_those_of_the_whole_run(network: Network, draw: Draw) -> None:
    whole = network.whole()
    for share in (0.05, 0.2, 0.5, 1.0):
        mask = draw(network.grid, share, 0)
        masked = network.masked([mask])

        assert gap(network.at(masked, mask), network.at(whole, mask)) < EXACT


def test_recording_changes_nothing(network: Network) -> None:
    network.call.mode = "off"
    before = network.family.predict(network.rows)

    assert gap(network.whole(), before) < 1e-6


def test_off_and_removed_hooks_change_nothing_bit_for_bit(network: Network) -> None:
    network.call.mode = "off"
    hooked = network.family.predict(network.rows)
    network.close()

    assert torch.equal(network.family.predict(network.rows), hooked)


def test_different_masks_share_a_call(three: Network) -> None:
    whole = three.whole()
    masks = [
        draw(three.grid, share, 1) for draw, share in ((block_mask, 0.3), (scattered_mask, 0.1), (block_mask, 0.7))
    ]
    masked = three.masked(masks, multiple=8)
    sizes = [run.num_rows for run in three.runs]
    for ours, theirs, mask in zip(torch.split(masked, sizes), torch.split(whole, sizes), masks, strict=True):
        assert gap(three.at(ours, mask), three.at(theirs, mask)) < EXACT


def test_fewer_tokens_are_computed(network: Network) -> None:
    network.whole()
    seen: list[int] = []
    feed_forward = next(m for name, m in network.family.network.named_modules() if type(m).__name__ == "FeedForward")
    handle = feed_forward.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape[1]))
    whole_tokens = next(iter(network.call.recorded.values())).shape[1]
    network.masked([block_mask(network.grid, 0.1)])
    handle.remove()

    assert seen[0] < 0.35 * whole_tokens


def test_another_latent_in_the_mask_changes_the_masked_tokens_only_in_transformers() -> None:
    for name in ("takeup/tiny-sd3", "takeup/tiny-flux"):
        with Network(name) as network:
            mask = block_mask(network.grid, 0.2)
            whole = network.whole()
            latents = network.runs[0].latents
            if latents.ndim == 3:
                latents[:, mask.flatten()] += 1.0
            else:
                latents[:, :, mask] += 1.0
            masked = network.masked([mask])

            assert torch.equal(network.at(masked, ~mask), network.at(whole, ~mask))
            assert gap(network.at(masked, mask), network.at(whole, mask)) > 0.01


def test_the_template_is_not_written_to(network: Network) -> None:
    network.whole()
    before = {name: kept.clone() for name, kept in network.call.recorded.items()}
    network.runs[0].latents = network.runs[0].latents + 1.0
    network.masked([block_mask(network.grid, 0.5)])

    assert all(torch.equal(before[name], kept) for name, kept in network.call.recorded.items())


def test_other_networks_are_refused() -> None:
    with pytest.raises(BadInput, match="a Linear cannot compute masked tokens only"):
        MaskingHooks(torch.nn.Linear(1, 1))
