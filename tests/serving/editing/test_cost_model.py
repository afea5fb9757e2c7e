"""Fitted devices predict the steps they were fitted to, those between, and on a real device those that were left out.

What was measured is from H200s: boxes of a share of the image with packed pages of a long edit; squares with exact
pages, which take longer to come than steps to compute, of an edit of eight steps; and squares whose smaller pages come
beside the steps, so that a short edit shows what it takes to start, beside a usual and beside a slow processor.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.support.device_fit import MeasuredStep, fitted, predicted_s
from takeup.errors import BadInput
from takeup.serving.editing.planner.block_formats import step_s
from takeup.serving.editing.planner.cost_model import FLUX, H200, SDXL, SDXL_COLUMNS, NetworkShape, costs_of, flop_of

MASKS = (0.05, 0.2, 0.5)
SDXL_TOKENS = [(832, 224, 64), (1664, 448, 128), (3296, 832, 224), (5760, 1472, 384), (8192, 2080, 544)]
FLUX_TOKENS = [224, 416, 832, 1440, 2048]
SDXL_STEPS = [
    MeasuredStep(dict(zip((16384, 4096, 1024), tokens, strict=True)), 1e-3 * step_ms, page_bytes)
    for page_bytes, steps_ms in (
        (0.0, (9.03, 10.68, 14.45, 17.25, 23.82)),
        (0.45e9, (9.25, 10.75, 14.73, 17.44, 23.87)),
    )
    for tokens, step_ms in zip(SDXL_TOKENS, steps_ms, strict=True)
]
FLUX_PAGE_BYTES = 57 * 2 * (4096 + 512) * 3072 * (1 + 2 / 64)
FLUX_STEPS = [
    MeasuredStep({4096: tokens}, 1e-3 * step_ms, page_bytes)
    for page_bytes, steps_ms in (
        (0.0, (30.14, 35.77, 45.41, 63.10, 78.52)),
        (FLUX_PAGE_BYTES, (33.58, 37.51, 46.97, 64.86, 80.17)),
    )
    for tokens, step_ms in zip(FLUX_TOKENS, steps_ms, strict=True)
]
SQUARES = [(1152, 320, 128), (1920, 512, 192), (3840, 1024, 320), (6144, 1664, 448), (9216, 2304, 640)]
SDXL_EXACT = [
    MeasuredStep(dict(zip((16384, 4096, 1024), tokens, strict=True)), 1e-3 * step_ms, page_bytes, 8)
    for page_bytes, steps_ms in (
        (0.0, (8.96, 9.90, 13.31, 16.60, 21.86)),
        (1.42e9, (29.98, 30.18, 30.45, 30.85, 31.87)),
    )
    for tokens, step_ms in zip(SQUARES, steps_ms, strict=True)
]
FLUX_EXACT = [
    MeasuredStep({4096: tokens}, 1e-3 * step_ms, page_bytes, 8)
    for page_bytes, steps_ms in (
        (0.0, (30.21, 33.42, 49.90, 72.29, 85.20)),
        (2.87e9, (58.98, 58.97, 60.78, 78.76, 91.06)),
    )
    for tokens, step_ms in zip((320, 512, 1024, 1664, 2304), steps_ms, strict=True)
]
START_TOKENS = [(1280, 384, 128), (2048, 576, 192), (4096, 1088, 320), (7168, 1856, 512), (10240, 2624, 704)]


def with_starts(near_ms: tuple[float, ...], far_ms: tuple[float, ...]) -> list[MeasuredStep]:
    """Of fifty steps with pages on the device, and of eight with pages from the host."""
    return [
        MeasuredStep(dict(zip((16384, 4096, 1024), tokens, strict=True)), 1e-3 * step_ms, page_bytes, num_steps)
        for page_bytes, num_steps, steps_ms in ((0.0, 50, near_ms), (0.84e9, 8, far_ms))
        for tokens, step_ms in zip(START_TOKENS, steps_ms, strict=True)
    ]


SDXL_USUAL = with_starts((8.88, 9.75, 13.25, 18.08, 23.90), (18.96, 18.63, 19.21, 22.07, 28.00))
SDXL_SLOW = with_starts((9.10, 9.91, 13.35, 18.13, 23.89), (20.59, 19.00, 20.52, 25.32, 28.11))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([SDXL, SDXL_COLUMNS, FLUX]), st.floats(100e12, 800e12), st.floats(0, 2e-4), st.floats(0.05, 0.9))
def test_a_device_that_is_as_the_model_says_is_found(
    network: NetworkShape, flop_per_s: float, launch_s: float, share: float
) -> None:
    true = replace(H200, flop_per_s=flop_per_s, launch_s=launch_s)
    found = fitted(network, [MeasuredStep(one, predicted_s(network, one, true)) for one in MASKS], H200)

    assert predicted_s(network, share, found) == pytest.approx(predicted_s(network, share, true), rel=1e-3)


def test_a_step_waits_for_its_page_or_its_computation() -> None:
    computed_s = predicted_s(FLUX, 0.1, H200)
    slow = replace(H200, link_bytes_per_s=1e9)

    assert predicted_s(FLUX, 0.1, H200, page_bytes=1.0) == pytest.approx(computed_s)
    assert predicted_s(FLUX, 0.1, slow, page_bytes=1e9) == pytest.approx(1.0)


@given(st.floats(0.05, 0.9), st.floats(0, 10e9))
def test_a_long_edit_is_as_the_planner_says(share: float, page_bytes: float) -> None:
    blocks, page_s = costs_of(FLUX, [share], H200), page_bytes / H200.link_bytes_per_s
    loading = [replace(block, kv_load_s=page_s / len(blocks)) for block in blocks]
    planned_s = step_s(["kv"] * len(blocks), loading, ahead_s=page_s)

    assert predicted_s(FLUX, share, H200, page_bytes) == pytest.approx(planned_s)


def test_the_first_page_is_awaited() -> None:
    computed_s, page_s = predicted_s(FLUX, 0.1, H200), 0.5
    whole_s = page_s + 3 * max(computed_s, page_s) + computed_s

    assert predicted_s(FLUX, 0.1, H200, page_s * H200.link_bytes_per_s, 4) == pytest.approx(whole_s / 4)


@pytest.mark.parametrize(
    ("network", "steps"),
    [
        (SDXL_COLUMNS, SDXL_STEPS),
        (FLUX, FLUX_STEPS),
        (SDXL_COLUMNS, SDXL_EXACT),
        (FLUX, FLUX_EXACT),
        (SDXL_COLUMNS, SDXL_USUAL),
        (SDXL_COLUMNS, SDXL_SLOW),
    ],
)
@pytest.mark.parametrize("number", range(5))
def test_steps_of_a_mask_are_predicted_from_those_of_other_masks(
    network: NetworkShape, steps: list[MeasuredStep], number: int
) -> None:
    judged = [one for one in steps if one.mask == steps[number].mask]
    device = fitted(network, [one for one in steps if one not in judged], H200)

    for one in judged:
        predicted = predicted_s(network, one.mask, device, one.page_bytes, one.num_steps)
        assert predicted == pytest.approx(one.step_s, rel=0.1)


def test_tokens_are_computed_in_whole_tiles() -> None:
    tiled = replace(H200, tile_tokens=128)
    (tokens,) = {block.num_tokens for block in FLUX.blocks}

    assert predicted_s(FLUX, {tokens: 1}, tiled) == pytest.approx(predicted_s(FLUX, {tokens: 128}, tiled))
    assert predicted_s(FLUX, {tokens: 129}, tiled) == pytest.approx(predicted_s(FLUX, {tokens: 256}, H200))
    assert costs_of(FLUX, [0.5], tiled)[0].full_s == costs_of(FLUX, [0.5], H200)[0].full_s


def test_a_mask_is_what_it_is_on_every_grid() -> None:
    share = {16384: 1639, 4096: 410, 1024: 103}

    assert flop_of(SDXL_COLUMNS, "kv", share) == pytest.approx(flop_of(SDXL_COLUMNS, "kv", 0.1), rel=1e-3)
    assert flop_of(SDXL_COLUMNS, "kv", {**share, 1024: 206}) > 1.4 * flop_of(SDXL_COLUMNS, "kv", share)


def test_pages_that_steps_waited_for_say_how_fast_the_link_is() -> None:
    true, num_bytes = replace(H200, link_bytes_per_s=20e9), 1e9
    steps = [MeasuredStep(share, predicted_s(FLUX, share, true)) for share in MASKS]
    slower = [MeasuredStep(one, predicted_s(FLUX, one, true, num_bytes, 8), num_bytes, 8) for one in MASKS]

    assert fitted(FLUX, steps + slower, H200).link_bytes_per_s == pytest.approx(20e9, rel=0.01)
    assert fitted(FLUX, steps, H200).link_bytes_per_s == H200.link_bytes_per_s


@settings(max_examples=10, deadline=None)
@given(st.floats(0, 0.05), st.floats(45e9, 60e9))
def test_short_edits_say_what_it_takes_to_start(start_s: float, link_bytes_per_s: float) -> None:
    true = replace(H200, start_s=start_s, link_bytes_per_s=link_bytes_per_s, launch_s=8e-5)
    cases = [(one, size, num) for one in (*MASKS, 0.7, 0.9) for size, num in ((0.0, 50), (0.84e9, 8))]
    steps = [MeasuredStep(one, predicted_s(SDXL_COLUMNS, one, true, *how), *how) for one, *how in cases]

    found = fitted(SDXL_COLUMNS, steps, H200)

    assert found.start_s == pytest.approx(start_s, abs=2e-3)
    assert found.link_bytes_per_s == pytest.approx(link_bytes_per_s, rel=0.05)


def test_a_start_is_part_of_an_edit_not_of_every_step() -> None:
    slow = replace(H200, start_s=1.0)

    assert predicted_s(FLUX, 0.1, slow, num_steps=10) == pytest.approx(predicted_s(FLUX, 0.1, H200) + 0.1)
    assert predicted_s(FLUX, 0.1, slow) == predicted_s(FLUX, 0.1, H200)


def test_masked_convolutions_cost_their_share() -> None:
    saved = flop_of(SDXL, "kv", 0.1) - flop_of(SDXL_COLUMNS, "kv", 0.1)

    assert saved == pytest.approx(0.9 * SDXL.num_rows * SDXL.other_flop)
    assert flop_of(SDXL, "full", 1.0) == flop_of(SDXL_COLUMNS, "full", 1.0)


@pytest.mark.parametrize(
    "measured",
    [
        [],
        [MeasuredStep(0.1, 1.0)],
        [MeasuredStep(0.1, 1.0), MeasuredStep(0.2, 0.0)],
        [MeasuredStep(0.1, 1.0), MeasuredStep(0.2, 1.0, page_bytes=1.0)],
    ],
)
def test_too_little_to_fit_is_refused(measured: list[MeasuredStep]) -> None:
    with pytest.raises(BadInput, match="two masks or more"):
        fitted(SDXL, measured, H200)
