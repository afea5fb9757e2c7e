"""The step engine and stock diffusers: `python -m benchmarks.serving images [--device cpu|cuda] [--requests 8]`.

The same requests, seeds and random weights, in one process with one thread: stock pipelines one image after the other,
each LoRA loaded, fused, and taken out again; the engine with all requests at once, LoRAs read once and kept. Seconds
are those of the processor, medians of alternating rounds. Tiny models on a CPU spend their time between the operations,
not in them: the ratios show what the engine saves there, and say nothing about a GPU. Differences are those of the
latents, as a share of their largest number. Exit code 1 if a bar is missed.

With `--device cuda` a full-size SDXL on that device instead, see serving_gpu.py.
"""

from __future__ import annotations

import benchmarks.support.one_thread  # noqa: F401  before numpy

# isort: split
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.support.dated import options_of, publish, versions
from takeup.core.report import Check, Column, Report, Table
from takeup.serving.diffusion.addons.lora.addon import Loras
from takeup.serving.diffusion.addons.lora.loading import LoraStore, ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets, layers_of
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build
from takeup.serving.model import LoraUse, Request
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES

NAMES = ("takeup/tiny-sd15", "takeup/tiny-sdxl", "takeup/tiny-sd3", "takeup/tiny-flux")
NUM_STEPS, NUM_ROUNDS, NUM_LORAS, RANK = 6, 3, 4, 8
EXACT = 1e-5
Row = tuple[str, float, float, float, float]
Images = list[torch.Tensor]


def requests_of(num_requests: int, with_loras: bool = False) -> list[Request]:
    """Requests that differ in seed, in steps, and, if asked for, in their LoRA."""
    plain = [
        Request("a cat", num_steps=NUM_STEPS - seed % 2, seed=seed, height_px=32, width_px=32)
        for seed in range(num_requests)
    ]
    if not with_loras:
        return plain
    return [replace(one, loras=(LoraUse(f"lora{one.seed % NUM_LORAS}", 0.8),)) for one in plain]


def stock(pipeline: Any, requests: Sequence[Request], files: dict[str, Path]) -> Images:
    """One after the other, each LoRA loaded, fused and taken out again."""
    latents = []
    for one in requests:
        for use in one.loras:
            pipeline.load_lora_weights(files[use.name], adapter_name=use.name)
            pipeline.set_adapters([use.name], [use.scale])
            pipeline.fuse_lora(components=["unet"])
        generator = torch.Generator("cpu").manual_seed(one.seed)
        options = {"num_inference_steps": one.num_steps, "guidance_scale": one.guidance, "generator": generator}
        latents.append(pipeline(one.prompt, height=32, width=32, output_type="latent", **options).images)
        if one.loras:
            pipeline.unfuse_lora(components=["unet"])
            pipeline.unload_lora_weights()
    return latents


def together(engine: StepEngine, requests: Sequence[Request]) -> Images:
    """All at once."""
    tickets = [engine.submit(one) for one in requests]
    engine.run()
    return [ticket.result().latents for ticket in tickets]


def compared(name: str, theirs: Callable[[], Images], ours: Callable[[], Images]) -> Row:
    """Seconds of both, alternating, how many times faster, and the largest difference."""
    gap = max(_gap(*pair) for pair in zip(ours(), theirs(), strict=True))  # also warms both up
    rounds = [(_seconds(theirs), _seconds(ours)) for _ in range(NUM_ROUNDS)]
    stock_s, ours_s = (median(one[side] for one in rounds) for side in (0, 1))
    return name, stock_s, ours_s, stock_s / ours_s, gap


def plain_rows(num_requests: int) -> list[Row]:
    """Every family, without add-ons."""
    rows, requests = [], requests_of(num_requests)
    for name in NAMES:
        pipeline = build(name)
        engine = StepEngine(pipeline, max_rows=2 * num_requests)
        rows.append(compared(name, lambda p=pipeline: stock(p, requests, {}), lambda e=engine: together(e, requests)))  # type: ignore[misc]
    return rows


def lora_row(num_requests: int, files: dict[str, Path]) -> Row:
    """SDXL, where every request wants one of a few LoRAs for all attention layers."""
    requests, pipeline = requests_of(num_requests, with_loras=True), build(NAMES[1])
    store = LoraStore(ThreadLoader(files, LoraTargets.of(pipeline)), ADAPTER_POLICIES["lru"], 10**9)
    add_on = Loras(family_of(pipeline), store)
    engine = StepEngine(pipeline, max_rows=2 * num_requests, add_ons=[add_on])
    name = f"{NAMES[1]}, {NUM_LORAS} LoRAs"
    other = build(NAMES[1])
    row = compared(name, lambda: stock(other, requests, files), lambda: together(engine, requests))
    add_on.close()
    return row


def lora_files(folder: Path) -> dict[str, Path]:
    """LoRAs with random numbers."""
    files = {}
    layers = {
        path: layer for (part, path), layer in layers_of(build(NAMES[1])).items() if part == "unet" and ".attn" in path
    }
    for number in range(NUM_LORAS):
        random = torch.Generator().manual_seed(number)
        tensors = {}
        for path, layer in layers.items():
            num_out, num_in = layer.weight.shape
            tensors[f"unet.{path}.lora_A.weight"] = torch.randn(RANK, num_in, generator=random) * 0.1
            tensors[f"unet.{path}.lora_B.weight"] = torch.randn(num_out, RANK, generator=random) * 0.1
        files[f"lora{number}"] = folder / f"lora{number}.safetensors"
        save_file(tensors, files[f"lora{number}"])
    return files


def report(num_requests: int) -> Report:
    """All rows, and the bar on their differences."""
    with tempfile.TemporaryDirectory() as folder:
        files = lora_files(Path(folder))
        rows = [*plain_rows(num_requests), lora_row(num_requests, files)]
    columns = Column("model"), Column("stock", "s"), Column("ours", "s"), Column("faster", "x", 2), Column("gap", "", 9)
    return Report(
        title=f"{num_requests} requests of {NUM_STEPS - 1} and {NUM_STEPS} steps",
        domain="serving",
        scenario={"requests": num_requests, "steps": NUM_STEPS, "rounds": NUM_ROUNDS, "rank": RANK},
        seed=0,
        tables=(Table("Seconds of the processor", columns, tuple(rows)),),
        checks=tuple(Check.at_most(f"{row[0]}: largest difference", row[4], EXACT) for row in rows),
        notes=(versions(["torch", "diffusers", "transformers", "peft"]),),
    )


def main() -> int:
    """Compare and report."""
    parser = options_of(__doc__)
    parser.add_argument("--requests", type=int, default=8, metavar="N", help="how many at once (8)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="tiny models, or SDXL on a card")
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="steps of an image on the card (50)")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")  # those of the packages below
    if options.device == "cuda":
        return publish(
            import_module("benchmarks.serving.images_gpu").report("cuda", False, options.steps), "serving-gpu", options
        )
    torch.set_num_threads(1)
    return publish(report(options.requests), "serving", options)


def _gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def _seconds(run: Callable[[], Images]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start
