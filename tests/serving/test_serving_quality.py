"""Images both ways: what the numbers mean, and what the command says."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.serving.model import Request
from takeup.serving.quality import (
    ImageSample,
    QualityThresholds,
    compare_images,
    cosine,
    psnr_db,
    quality_report,
    ssim,
)


def picture(seed: int, height: int = 24, width: int = 16) -> Any:
    return np.random.default_rng(seed).random((3, height, width))


def test_equal_images_are_perfectly_alike() -> None:
    image = picture(1)

    assert cosine(image, image) == pytest.approx(1)
    assert psnr_db(image, image) == inf
    assert ssim(image, image) == pytest.approx(1)


def test_psnr_of_a_tenth_everywhere_is_twenty_decibels() -> None:
    grey = np.full((3, 8, 8), 0.5)

    assert psnr_db(grey, grey + 0.1) == pytest.approx(20)


@pytest.mark.parametrize(("first", "second", "expected"), [([1, 0], [0, 2], 0), ([1, 2], [-2, -4], -1), ([3], [5], 1)])
def test_the_cosine_is_that_of_the_angle(first: list[int], second: list[int], expected: float) -> None:
    assert cosine(np.array(first, float), np.array(second, float)) == pytest.approx(expected)


def test_nothing_is_like_nothing_and_unlike_something() -> None:
    nothing, something = np.zeros(4), np.ones(4)

    assert cosine(nothing, nothing) == 1
    assert cosine(nothing, something) == 0


def test_ssim_of_flat_images_is_what_its_formula_says() -> None:
    dark, light = np.full((1, 20, 20), 0.2), np.full((1, 20, 20), 0.6)
    expected = (2 * 0.2 * 0.6 + 1e-4) / (0.2**2 + 0.6**2 + 1e-4)  # no contrast: only brightness is left

    assert ssim(dark, light) == pytest.approx(expected)


def test_ssim_at_one_pixel_is_that_of_its_window_computed_by_hand() -> None:
    first, second = picture(3, 11, 11)[:1], picture(4, 11, 11)[:1]
    steps = np.arange(-5, 6)
    weights = np.exp(-(steps**2) / (2 * 1.5**2))
    window = np.outer(weights, weights) / weights.sum() ** 2
    a, b = first[0], second[0]
    mean_a, mean_b = (window * a).sum(), (window * b).sum()
    spread_a, spread_b = (window * (a - mean_a) ** 2).sum(), (window * (b - mean_b) ** 2).sum()
    both = (window * (a - mean_a) * (b - mean_b)).sum()
    expected = ((2 * mean_a * mean_b + 1e-4) * (2 * both + 9e-4)) / (
        (mean_a**2 + mean_b**2 + 1e-4) * (spread_a + spread_b + 9e-4)
    )
    inside = np.pad(first, ((0, 0), (20, 20), (20, 20))), np.pad(second, ((0, 0), (20, 20), (20, 20)))
    far = (51 * 51 - 21 * 21) / (51 * 51)  # pixels whose window sees nothing of either: equal, so 1

    assert ssim(*inside) > far * 0.9
    assert -1 <= expected < ssim(*inside)


@given(st.integers(0, 1000), st.floats(0.01, 0.3))
def test_more_noise_is_never_more_alike(seed: int, strength: float) -> None:
    image = picture(seed)
    noise = picture(seed + 1) - 0.5

    assert ssim(image, image + strength * noise) > ssim(image, image + 3 * strength * noise)
    assert psnr_db(image, image + strength * noise) > psnr_db(image, image + 3 * strength * noise)


@given(st.integers(0, 1000))
def test_likeness_has_no_direction(seed: int) -> None:
    first, second = picture(seed), picture(seed + 1)

    assert ssim(first, second) == pytest.approx(ssim(second, first))
    assert cosine(first, second) == pytest.approx(cosine(second, first))


def test_images_of_different_sizes_are_refused() -> None:
    with pytest.raises(BadInput, match="one size"):
        ssim(picture(1, 8), picture(1, 16))


def test_every_request_is_made_both_ways_and_judged_by_its_means() -> None:
    asked: list[Request] = []

    def lossless(request: Request) -> ImageSample:
        asked.append(request)
        return ImageSample(picture(request.seed), picture(request.seed))

    def accelerated(request: Request) -> ImageSample:
        made = lossless(request)
        return replace(made, pixels=made.pixels + 0.001)

    results = compare_images(lossless, accelerated, [Request("a cat", seed=seed) for seed in (3, 4)])
    report = quality_report("faster", results, QualityThresholds(cosine=0.99, ssim=0.99))
    strict = quality_report("faster", results, QualityThresholds(ssim=1.1))

    assert [one.seed for one in asked] == [3, 3, 4, 4]
    assert [row[1] for row in report.tables[0].rows] == [3, 4]
    assert report.holds
    assert not strict.holds
    assert any("LPIPS" in note and "not measured" in note for note in report.notes)


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(BadInput, match="at least one prompt"):
        compare_images(
            lambda one: ImageSample(picture(1), picture(1)), lambda one: ImageSample(picture(1), picture(1)), []
        )
