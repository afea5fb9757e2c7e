"""Similarity of accelerated and lossless images, generated from the same requests and seeds.

Three metrics per image. The *cosine* of the latents shows whether the sampling trajectory is the same. *PSNR* is the
mean squared error of pixels in decibels. *SSIM* (Wang et al. 2004: Gaussian windows of width 1.5, 11 pixels)
compares brightness, contrast and structure around every pixel. LPIPS and CLIP scores need trained networks, which are
not shipped; the report says that they were not measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter

from takeup.core.report import Check, Column, Report, Table
from takeup.errors import BadInput
from takeup.serving.model import Request

Pixels: TypeAlias = npt.NDArray[np.float64]
SIGMA, RADIUS = 1.5, 5
BRIGHTNESS, CONTRAST = 0.01**2, 0.03**2  # the constants of the paper, for values from 0 to 1


NOT_MEASURED = "LPIPS and CLIP scores were not measured: they need trained weights, and none are shipped."


@dataclass(frozen=True, slots=True)
class ImageSample:
    """One image: its latents, and its pixels, channels first, from 0 to 1."""

    latents: Pixels
    pixels: Pixels


ImageMaker: TypeAlias = Callable[[Request], ImageSample]


@dataclass(frozen=True, slots=True)
class ImageSimilarity:
    """Similarity of two images of one request."""

    request: Request
    cosine: float
    psnr_db: float
    ssim: float


@dataclass(frozen=True, slots=True)
class QualityThresholds:
    """Thresholds that the means over all images must reach."""

    cosine: float = 0.99
    ssim: float = 0.9


def cosine(first: Pixels, second: Pixels) -> float:
    """Cosine similarity of two tensors; 1 if both are zero, 0 if only one is."""
    a, b = first.ravel(), second.ravel()
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / norms) if norms else float(not (a.any() or b.any()))


def psnr_db(first: Pixels, second: Pixels) -> float:
    """Peak signal to noise, in decibels; infinite for equal images."""
    error = float(np.mean((first - second) ** 2))
    return -10 * float(np.log10(error)) if error else inf


def ssim(first: Pixels, second: Pixels) -> float:
    """Structural similarity, mean over pixels and channels."""
    if first.shape != second.shape:
        raise BadInput(f"the images have shapes {first.shape} and {second.shape}; compare images of one size")
    return fmean(_ssim(a, b) for a, b in zip(first, second, strict=True))


def _ssim(a: Pixels, b: Pixels) -> float:
    mean_a, mean_b = _blurred(a), _blurred(b)
    spread_a, spread_b = _blurred(a * a) - mean_a**2, _blurred(b * b) - mean_b**2
    both = _blurred(a * b) - mean_a * mean_b
    above = (2 * mean_a * mean_b + BRIGHTNESS) * (2 * both + CONTRAST)
    below = (mean_a**2 + mean_b**2 + BRIGHTNESS) * (spread_a + spread_b + CONTRAST)
    return float(np.mean(above / below))


def _blurred(channel: Pixels) -> Pixels:
    blurred: Pixels = gaussian_filter(channel, SIGMA, radius=RADIUS)
    return blurred


def compare_images(lossless: ImageMaker, accelerated: ImageMaker, requests: Sequence[Request]) -> list[ImageSimilarity]:
    """Generate every image with both makers and compare them."""
    if not requests:
        raise BadInput("there is nothing to compare; give at least one prompt")
    return [_similarity(one, lossless(one), accelerated(one)) for one in requests]


def _similarity(request: Request, first: ImageSample, second: ImageSample) -> ImageSimilarity:
    pixels = first.pixels, second.pixels
    return ImageSimilarity(request, cosine(first.latents, second.latents), psnr_db(*pixels), ssim(*pixels))


def quality_report(name: str, results: Sequence[ImageSimilarity], bars: QualityThresholds) -> Report:
    """A report with one row per image, and checks of the means against `bars`."""
    columns = Column("prompt"), Column("seed"), Column("cosine", "", 5), Column("PSNR", "dB", 1), Column("SSIM", "", 4)
    rows = tuple((one.request.prompt, one.request.seed, one.cosine, _finite(one.psnr_db), one.ssim) for one in results)
    return Report(
        title=f"{name} beside lossless",
        domain="serving",
        scenario={"accelerated": name, "images": len(results)},
        seed=results[0].request.seed,
        tables=(Table("Images both ways", columns, rows, "PSNR is missing where the images are equal."),),
        checks=(
            Check.at_least("latents, cosine in the mean", fmean(one.cosine for one in results), bars.cosine),
            Check.at_least("images, SSIM in the mean", fmean(one.ssim for one in results), bars.ssim),
        ),
        notes=(NOT_MEASURED,),
    )


def _finite(decibels: float) -> float | None:
    return None if decibels == inf else decibels
