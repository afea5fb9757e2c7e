"""LoRAs of all kinds on a tiny pipeline, requests that want them, and what diffusers makes of these."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import torch

from serving.lora_files import LAYERS, factors, kohya, peft_style, save
from serving.stock import stock_latents
from takeup.serving.diffusion.addons.lora.weights import Lora
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.model import LoraUse, Request

__all__ = ["EXACT", "SDXL", "UNET", "SlowLoader", "images", "request", "stock", "write_loras"]

SDXL = "takeup/tiny-sdxl"
EXACT = 1e-5
UNET = [("unet", path) for path in LAYERS]
TEXT = [
    ("text_encoder", "encoder.layers.0.self_attn.q_proj"),
    ("text_encoder_2", "text_model.encoder.layers.1.self_attn.v_proj"),
]


def write_loras(folder: Path) -> dict[str, Path]:
    """Files by name: linear layers and convolutions, text encoders, another kind of change; one fits nowhere."""
    made, random = tiny(SDXL), torch.Generator().manual_seed(9)
    layer = f"lora_unet_{LAYERS[0].replace('.', '_')}"
    tensors = {
        "paper": peft_style(factors(made, UNET[:6], seed=1)),
        "film": kohya(factors(made, UNET[2:], rank=2, seed=2), alpha=1.0),
        "words": peft_style(factors(made, [*UNET[:3], *TEXT], seed=3)),
        "loha": {
            f"{layer}.hada_w{number}_{side}": torch.randn(64, 64, generator=random) * 0.2
            for number in "12"
            for side in "ab"
        },
        "foreign": {"unet.nowhere.lora_A.weight": torch.ones(4, 4)},
    }
    return {name: save(values, folder / f"{name}.safetensors") for name, values in tensors.items()}


def request(seed: int = 0, *uses: tuple[str, float], num_steps: int = 3, late_steps: int = 0) -> Request:
    names = tuple(LoraUse(name, scale) for name, scale in uses)
    return Request(
        "a cat", num_steps=num_steps, seed=seed, height_px=32, width_px=32, loras=names, late_steps=late_steps
    )


def stock(files: dict[str, Path], one: Request) -> torch.Tensor:
    """The image of a pipeline of its own, with the LoRAs loaded and fused by diffusers."""
    pipeline = build(SDXL)
    names = [use.name for use in one.loras]
    for name in names:
        pipeline.load_lora_weights(files[name], adapter_name=name)
    if names:
        pipeline.set_adapters(names, [use.scale for use in one.loras])
        pipeline.fuse_lora(components=["unet", "text_encoder", "text_encoder_2"])
        pipeline.unload_lora_weights()
    return stock_latents(pipeline, one)


class SlowLoader:
    """Gives LoRAs when the test says so."""

    def __init__(self) -> None:
        self.asked: dict[str, Future[Lora]] = {}

    def load(self, name: str) -> Future[Lora]:
        return self.asked.setdefault(name, Future())

    def release(self, name: str) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing runs."""


def images(engine: StepEngine, requests: list[Request]) -> list[torch.Tensor]:
    tickets = [engine.submit(one) for one in requests]
    engine.run()
    return [ticket.result().latents for ticket in tickets]
