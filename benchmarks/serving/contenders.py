"""Both sides of the benchmark on an accelerator: stock pipelines, and step engines over the same networks."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.serving.models import NETS, Models, build_models, write_lora
from takeup.serving.diffusion.addons.controlnet.addon import Controls
from takeup.serving.diffusion.addons.lora.addon import Loras
from takeup.serving.diffusion.addons.lora.loading import LoraStore, ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.execution.executors import Executor
from takeup.serving.model import ControlUse, LoraUse, Request
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES
from takeup.serving.server.backends.local import stacks_for, workers_for

RANK, TFLOPS = 64, 790e12
UNET_FLOP, NET_FLOP = 6.761e12, 3.020e12  # a row of one step at 1024x1024
BEGIN_S = time.perf_counter()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request: how many ControlNets and LoRAs it brings."""

    num_controls: int
    num_loras: int

    @property
    def name(self) -> str:
        return f"{self.num_controls}C/{self.num_loras}L"

    def floor_s(self, num_steps: int, asked_share: float = 1.0) -> float:
        """With ControlNets in this share of the steps."""
        return 2 * num_steps * (UNET_FLOP + self.num_controls * NET_FLOP * asked_share) / TFLOPS


KINDS = Kind(0, 0), Kind(0, 1), Kind(1, 1), Kind(3, 2)
MOST = KINDS[-1]


class Bench:
    """Both sides, on the same networks: stock first, for ours changes how they are laid out."""

    def __init__(self, device: str, is_tiny: bool, num_steps: int, folder: Path) -> None:
        self.models: Models = build_models(device, is_tiny)
        self.is_tiny, self.num_steps = is_tiny, num_steps
        self.files = {name: folder / f"{name}.safetensors" for name in ("paper", "film")}
        rank = 4 if is_tiny else RANK
        sizes = [write_lora(file, self.models.plain.unet, rank, seed) for seed, file in enumerate(self.files.values())]
        self.lora_bytes = sizes[0]
        self._picture = Image.effect_noise((self.models.size_px,) * 2, 64).convert("RGB")
        say("models", f"LoRA of {self.lora_bytes / 2**20:.0f} MiB")

    def request(self, kind: Kind, seed: int = 0, num_steps: int | None = None) -> Request:
        uses = tuple(ControlUse(net, self._picture, 0.5) for net in NETS[: kind.num_controls])
        loras = tuple(LoraUse(name, 0.8) for name in list(self.files)[: kind.num_loras])
        size = self.models.size_px
        steps = num_steps or self.num_steps
        return Request("a cat", num_steps=steps, seed=seed, width_px=size, height_px=size, controls=uses, loras=loras)

    # Stock ------------------------------------------------------------------------------------------------------------

    def stock(self, one: Request) -> tuple[float, float, torch.Tensor]:
        """Seconds for the LoRAs, seconds for the image, and its latents."""
        pipeline = self.models.steered if one.controls else self.models.plain
        begin = now_s()
        for use in one.loras:
            pipeline.load_lora_weights(self.files[use.name], adapter_name=use.name)
        if one.loras:
            pipeline.set_adapters([use.name for use in one.loras], [use.scale for use in one.loras])
            pipeline.fuse_lora(components=["unet"])
        loaded = now_s()
        latents = self._stock_latents(pipeline, one)
        done = now_s()
        if one.loras:
            pipeline.unfuse_lora(components=["unet"])
            pipeline.unload_lora_weights()
        return loaded - begin + now_s() - done, done - loaded, latents

    def _stock_latents(self, pipeline: Any, one: Request) -> torch.Tensor:
        options: dict[str, Any] = {}
        if one.controls:  # all three are there: those that are not wanted would still be computed
            pipeline.controlnet.nets = torch.nn.ModuleList(self.models.nets[use.net] for use in one.controls)
            options["image"] = [use.image for use in one.controls]
            options["controlnet_conditioning_scale"] = [use.scale for use in one.controls]
        latents: torch.Tensor = pipeline(
            one.prompt,
            num_inference_steps=one.num_steps,
            guidance_scale=one.guidance,
            height=one.height_px,
            width=one.width_px,
            generator=torch.Generator("cpu").manual_seed(one.seed),
            output_type="latent",
            **options,
        ).images
        return latents

    # Ours -------------------------------------------------------------------------------------------------------------

    def engine(
        self, compute: Executor, models: Models, *, max_change: float = 0.0, max_rows: int = 2
    ) -> tuple[StepEngine, Loras]:
        """As a server puts it together; LoRAs are kept in memory."""
        pipeline, family = models.plain, family_of(models.plain)
        store = LoraStore(ThreadLoader(self.files, LoraTargets.of(pipeline)), ADAPTER_POLICIES["lru"], 10**10)
        loras = Loras(family, store, stacks=stacks_for(compute, family))
        controls = Controls(family, models.nets, workers_for(compute, models.nets), max_change=max_change)
        return StepEngine(pipeline, max_rows=max_rows, compute=compute, add_ons=[loras, controls]), loras


def copied(models: Models) -> Models:
    """The same networks once more, for another way to prepare them."""
    parts = {name: part for name, part in models.plain.components.items() if name != "unet"}
    plain = type(models.plain)(unet=copy.deepcopy(models.plain.unet), **parts)
    plain.set_progress_bar_config(disable=True)
    return replace(models, plain=plain, nets={name: copy.deepcopy(net) for name, net in models.nets.items()})


def together(engine: StepEngine, requests: Sequence[Request]) -> tuple[float, list[torch.Tensor]]:
    """Seconds for all of them, and their latents."""
    begin = now_s()
    tickets = [engine.submit(one) for one in requests]
    engine.run()
    return now_s() - begin, [ticket.result().latents for ticket in tickets]


def decoded(engine: StepEngine, latents: torch.Tensor) -> torch.Tensor:
    """The image, values from 0 to 1."""
    vae = engine.family.pipeline.vae
    image: torch.Tensor = vae.decode((latents / vae.config.scaling_factor).to(vae.dtype), return_dict=False)[0]
    return (image / 2 + 0.5).clamp(0, 1)


def now_s() -> float:
    """The time when all that was sent is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def say(*words: Any) -> None:
    """Progress, for a run takes minutes."""
    print(f"[{time.perf_counter() - BEGIN_S:6.1f}]", *words, file=sys.stderr, flush=True)
