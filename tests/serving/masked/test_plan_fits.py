"""Fitted devices predict the steps they were fitted to, and those between."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.serving.policies.masks import FLUX, H200, SDXL, SDXL_COLUMNS, Network, costs_of, flop_of
from takeup.serving.policies.plan_fits import fitted, predicted_s, with_pages

MASKS = (0.05, 0.2, 0.5)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([SDXL, SDXL_COLUMNS, FLUX]), st.floats(100e12, 800e12), st.floats(0, 2e-4), st.floats(0.05, 0.9))
def test_a_device_that_is_as_the_model_says_is_found(
    network: Network, flop_per_s: float, launch_s: float, share: float
) -> None:
    true = replace(H200, flop_per_s=flop_per_s, launch_s=launch_s)
    found = fitted(network, {one: predicted_s(network, one, true) for one in MASKS}, H200)

    assert predicted_s(network, share, found) == pytest.approx(predicted_s(network, share, true), rel=1e-3)


def test_a_step_waits_for_its_page_or_its_computation() -> None:
    computed_s = predicted_s(FLUX, 0.1, H200)
    slow = replace(H200, link_bytes_per_s=1e9)

    assert predicted_s(FLUX, 0.1, H200, page_bytes=1.0) == pytest.approx(computed_s)
    assert predicted_s(FLUX, 0.1, slow, page_bytes=1e9) == pytest.approx(1.0)


def test_blocks_load_their_part_of_a_page() -> None:
    blocks = with_pages(costs_of(SDXL, [0.1], H200), 55e9, H200)

    assert sum(block.kv_load_s for block in blocks) == pytest.approx(1.0)
    assert blocks[0].kv_load_s == pytest.approx(
        2 * blocks[10].kv_load_s, rel=0.01
    )  # four times the tokens, half the width


def test_masked_convolutions_cost_their_share() -> None:
    saved = flop_of(SDXL, "kv", 0.1) - flop_of(SDXL_COLUMNS, "kv", 0.1)

    assert saved == pytest.approx(0.9 * SDXL.num_rows * SDXL.other_flop)
    assert flop_of(SDXL, "full", 1.0) == flop_of(SDXL_COLUMNS, "full", 1.0)


@pytest.mark.parametrize("measured", [{}, {0.1: 1.0}, {0.1: 1.0, 0.2: 0.0}])
def test_too_little_to_fit_is_refused(measured: dict[float, float]) -> None:
    with pytest.raises(BadInput, match="two masks or more"):
        fitted(SDXL, measured, H200)
