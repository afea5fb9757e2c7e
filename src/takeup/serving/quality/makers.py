"""Lossless and accelerated engines for the same model, wrapped as functions from a request to an image.

recorded   the network prepared for a device: packed, padded, captured in CUDA graphs, LoRAs merged by stacks
eight      the same with its widest matmuls in eight bits
bfloat16   the lossless engine in half the precision
late       a LoRA that arrives as late as its bound allows: exactly after `late_steps` steps
reused     ControlNet residuals, recomputed only when they may have changed by more than `max_change`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

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
from takeup.serving.quality.metrics import ImageMaker, ImageSample

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


def engine_maker(engine: StepEngine, loader: _DelayedLoader | None = None, **changes: Any) -> ImageMaker:
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
    add_on = Loras(family, loader or _reader(pipeline, lora), "merged", stacks=stacks)
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
    held = _DelayedLoader(_reader(pipeline, lora), late_steps)
    return engine_maker(_engine(pipeline, lora, held), held, late_steps=late_steps)


def _reader(pipeline: Any, lora: Path) -> ThreadLoader:
    return ThreadLoader({LORA: lora}, LoraTargets.of(pipeline))


@dataclass(slots=True)
class _DelayedLoader:
    """A loader that delivers LoRAs only after `num_steps` steps, to simulate late loads."""

    loader: LoraLoader
    num_steps: int
    _waiting: list[Future[Lora]] = field(default_factory=list)

    def load(self, name: str) -> Future[Lora]:
        answer: Future[Lora] = Future()
        self._waiting.append(answer)
        return answer

    def release(self, name: str) -> None:
        """No-op: nothing is cached."""

    def close(self) -> None:
        self.loader.close()

    def step_made(self, step: int, num_steps: int) -> None:
        """Step callback: complete the pending loads once `num_steps` steps are done."""
        if step >= self.num_steps:
            for answer in self._waiting:
                answer.set_result(self.loader.load(LORA).result())
            self._waiting.clear()


def _numbers(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().double().numpy()
