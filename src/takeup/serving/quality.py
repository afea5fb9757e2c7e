"""Similarity of accelerated and lossless images, generated from the same requests and seeds.

Three metrics per image. The *cosine* of the latents shows whether the sampling trajectory is the same. *PSNR* is the
mean squared error of pixels in decibels. *SSIM* (Wang et al. 2004: Gaussian windows of width 1.5, 11 pixels)
compares brightness, contrast and structure around every pixel. LPIPS and CLIP scores need trained networks, which are
not shipped; the report says that they were not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter

from takeup.core.report import Check, Column, Report, Table
from takeup.errors import BadInput, UnknownName
from takeup.serving.diffusion.addons.controlnet.addon import Controls
from takeup.serving.diffusion.addons.lora.addon import Loras
from takeup.serving.diffusion.addons.lora.loading import LoraLoader, ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.addons.lora.weights import Lora
from takeup.serving.diffusion.contract import AddOn
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.execution.executors import CudaGraphExecutor
from takeup.serving.model import ControlUse, LoraUse, Request

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
        title=f"{name} compared with lossless",
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


# Lossless and accelerated engines for the same model, wrapped as functions from a request to an image -----------------
#
# recorded   the network prepared for a device: packed, padded, captured in CUDA graphs, LoRAs merged by stacks
# eight      the same with its widest matmuls in eight bits
# bfloat16   the lossless engine in half the precision
# late       a LoRA that arrives as late as its bound allows: exactly after `late_steps` steps
# reused     ControlNet residuals, recomputed only when they may have changed by more than `max_change`


ACCELERATIONS = ("recorded", "eight", "bfloat16", "late", "reused")
LORA = "lora"


def makers_of(
    acceleration: str,
    open_pipeline: Callable[[], Any],
    lora: Path | None = None,
    late_steps: int = 0,
    max_change: float = 0.0,
) -> tuple[ImageMaker, ImageMaker]:
    """The lossless and the accelerated maker, each with a separate pipeline and with `lora` in every image."""
    if acceleration not in ACCELERATIONS:
        raise UnknownName("acceleration", acceleration, ACCELERATIONS)
    if acceleration == "late" and (lora is None or late_steps < 1):
        raise BadInput("nothing is late here; give a LoRA, and by how many steps it may be late (at least 1)")
    if acceleration == "reused":
        return _steered_maker(open_pipeline(), lora, 0.0), _steered_maker(open_pipeline(), lora, max_change)
    lossless = engine_maker(_engine(open_pipeline(), lora))
    if acceleration == "late":
        return lossless, _late_maker(open_pipeline(), lora, late_steps)
    pipeline = open_pipeline()
    if acceleration == "bfloat16":
        return lossless, engine_maker(_engine(pipeline.to(torch.bfloat16), lora))
    return lossless, engine_maker(
        _engine(pipeline, lora, compute=CudaGraphExecutor(eight_bits=acceleration == "eight"))
    )


def engine_maker(engine: StepEngine, loader: DelayedLoader | None = None, **changes: Any) -> ImageMaker:
    """A function that makes images with this engine; `changes` override fields of every request."""

    def make(request: Request) -> ImageSample:
        ticket = engine.submit(replace(request, **changes), loader.step_made if loader else None)
        engine.run()
        return ImageSample(_numbers(ticket.result().latents), _numbers(engine.image(ticket)[0]))

    def with_lora(request: Request) -> ImageSample:
        return make(replace(request, loras=(LoraUse(LORA),)))

    return with_lora if any(isinstance(add_on, Loras) for add_on in engine.add_ons) else make


def _engine(
    pipeline: Any,
    lora: Path | None,
    loader: LoraLoader | None = None,
    compute: CudaGraphExecutor | None = None,
    others: Sequence[AddOn] = (),
) -> StepEngine:
    if lora is None:
        return StepEngine(pipeline, deterministic=True, compute=compute, add_ons=others)
    family = family_of(pipeline)
    stacks = compute.prepared(family.network).stacks if compute else None
    add_on = Loras(family, loader or reader_of(pipeline, lora), stacks=stacks)
    return StepEngine(pipeline, deterministic=True, compute=compute, add_ons=[add_on, *others])


def _steered_maker(pipeline: Any, lora: Path | None, max_change: float) -> ImageMaker:
    """A maker that uses all ControlNets of the model, conditioned on a radial gradient."""
    if getattr(pipeline, "controlnet", None) is None:
        raise BadInput("this model has no ControlNets; give one that has, for example takeup/tiny-sdxl-controlnet")
    nets = {str(number): net for number, net in enumerate(getattr(pipeline.controlnet, "nets", [pipeline.controlnet]))}
    uses = tuple(ControlUse(name, Image.radial_gradient("L")) for name in nets)
    controls = Controls(family_of(pipeline), nets, max_change=max_change)
    return engine_maker(_engine(pipeline, lora, others=[controls]), controls=uses)


def _late_maker(pipeline: Any, lora: Path | None, late_steps: int) -> ImageMaker:
    assert lora is not None
    held = DelayedLoader(reader_of(pipeline, lora), late_steps)
    return engine_maker(_engine(pipeline, lora, held), held, late_steps=late_steps)


def reader_of(pipeline: Any, lora: Path) -> ThreadLoader:
    """A loader of this LoRA under the name `LORA`."""
    return ThreadLoader({LORA: lora}, LoraTargets.of(pipeline))


@dataclass(slots=True)
class DelayedLoader:
    """A loader that delivers LoRAs only after `num_steps` steps, to simulate late loads."""

    loader: LoraLoader
    num_steps: int
    _waiting: list[Future[Lora]] = field(default_factory=list)

    def load(self, name: str) -> Future[Lora]:
        """A future that waits for `step_made`."""
        answer: Future[Lora] = Future()
        self._waiting.append(answer)
        return answer

    def release(self, name: str) -> None:
        """No-op: nothing is cached."""

    def close(self) -> None:
        """Close the loader behind it."""
        self.loader.close()

    def step_made(self, step: int, num_steps: int) -> None:
        """Step callback: complete the pending loads once `num_steps` steps are done."""
        if step >= self.num_steps:
            for answer in self._waiting:
                answer.set_result(self.loader.load(LORA).result())
            self._waiting.clear()


def _numbers(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().double().numpy()
