"""The step engine on one accelerator beside stock diffusers: what `serving.py --device cuda` runs.

SDXL at 1024x1024, 50 steps, bfloat16, random weights (times do not depend on their values), one process. Seconds are
from the prompt to finished latents, medians; the same requests by stock pipelines in the same run, LoRAs loaded, fused
and taken out again as their users do. The floor is the arithmetic of a request at 790 TFLOP/s, what a large matrix
product reaches on this card. With `--tiny` the same on tiny models: does it run, not how fast.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from dated import versions
from PIL import Image
from serving_models import NETS, Models, build_models, write_lora

from takeup.core.report import Check, Column, Report, Table
from takeup.serving.engines.diffusers.controls.addon import Controls
from takeup.serving.engines.diffusers.controls.streams import StreamWorker
from takeup.serving.engines.diffusers.device.compute import Recorded
from takeup.serving.engines.diffusers.device.regions import FAST
from takeup.serving.engines.diffusers.families import family_of
from takeup.serving.engines.diffusers.lora.addon import Loras
from takeup.serving.engines.diffusers.lora.grouped import GroupedWeights
from takeup.serving.engines.diffusers.lora.loaders import ThreadLoader
from takeup.serving.engines.diffusers.lora.packs import Packer
from takeup.serving.engines.diffusers.lora.store import LoraStore
from takeup.serving.engines.diffusers.lora.targets import Targets
from takeup.serving.engines.diffusers.steps import StepEngine
from takeup.serving.model import ControlUse, LoraUse, Request
from takeup.serving.policies.adapters import ADAPTER_POLICIES

RANK, TFLOPS = 64, 790e12
UNET_FLOP, NET_FLOP = 6.761e12, 3.020e12  # a row of one step at 1024x1024
NUM_SWAPS = 1000


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request: how many ControlNets and LoRAs it brings."""

    num_controls: int
    num_loras: int

    @property
    def name(self) -> str:
        return f"{self.num_controls}C/{self.num_loras}L"

    def floor_s(self, num_steps: int) -> float:
        return 2 * num_steps * (UNET_FLOP + self.num_controls * NET_FLOP) / TFLOPS


KINDS = Kind(0, 0), Kind(0, 1), Kind(1, 1), Kind(3, 2)


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

    def engine(self) -> tuple[StepEngine, Loras]:
        """Recorded and compiled, ControlNets in streams, LoRAs kept in memory and merged by stacks."""
        pipeline, family = self.models.plain, family_of(self.models.plain)
        compute = Recorded(None if self.is_tiny else FAST)
        stacks = compute.prepared(family.network).stacks
        store = LoraStore(ThreadLoader(self.files, Targets.of(pipeline)), ADAPTER_POLICIES["lru"], 10**10)
        loras = Loras(family, store, stacks=stacks)
        workers = {name: StreamWorker(net, compute) for name, net in self.models.nets.items()}
        controls = Controls(family, self.models.nets, workers)
        return StepEngine(pipeline, max_rows=2, compute=compute, add_ons=[loras, controls]), loras


def ours(engine: StepEngine, requests: Sequence[Request]) -> tuple[float, list[torch.Tensor]]:
    """Seconds for all of them, and their latents."""
    begin = now_s()
    tickets = [engine.submit(one) for one in requests]
    engine.run()
    return now_s() - begin, [ticket.result().latents for ticket in tickets]


def measured_kinds(bench: Bench) -> tuple[dict[str, tuple[float, float]], dict[str, torch.Tensor]]:
    """Stock: seconds for LoRAs and for the image of every kind, and the latents."""
    seconds, latents = {}, {}
    bench.stock(bench.request(KINDS[-1], num_steps=2))  # warm
    for kind in KINDS:
        lora_s, image_s, latents[kind.name] = bench.stock(bench.request(kind))
        seconds[kind.name] = lora_s, image_s
        say("stock", kind.name, f"LoRAs {lora_s:.2f} s, image {image_s:.2f} s")
    return seconds, latents


def swap_rows(loras: Loras, num_swaps: int) -> tuple[list[tuple[str, float]], bool]:
    """Milliseconds of a change of LoRAs, and whether many changes leave the weights as they were."""
    weights = loras.weights
    assert isinstance(weights, GroupedWeights)
    weights.use()
    before = [stack.block.clone() for stack in weights._stacks.stacks]
    kept = [staged.loras for staged in loras._staged.values() if staged.loras]
    first, second = kept[0][:1], kept[-1][-1:]
    fresh = [weights.stage(one) for one in (first, second)]
    begin = now_s()
    Packer(weights._stacks, "unet").pack(first[0][0])
    stage_ms = (now_s() - begin) * 1e3
    rows = [
        ("one LoRA, from pinned memory of the host", _swap_ms(weights, (first, second), is_fresh=True)),
        ("one LoRA, on the device already", _swap_ms(weights, (first, second), is_fresh=False)),
        ("two LoRAs, from pinned memory of the host", _swap_ms(weights, ((*first, *second), first), is_fresh=True)),
        ("packing a LoRA the first time, beside the loop", stage_ms),
    ]
    for number in range(num_swaps):
        weights.use(fresh[number % 2])
    weights.use()
    same = all(torch.equal(old, stack.block) for old, stack in zip(before, weights._stacks.stacks, strict=True))
    return rows, same


def _swap_ms(weights: GroupedWeights, sets: Sequence[Any], is_fresh: bool) -> float:
    staged = [weights.stage(one) for one in sets]
    for one in staged:
        weights.use(one)
    times = []
    for number in range(10):
        one = weights.stage(sets[number % 2]) if is_fresh else staged[number % 2]
        begin = now_s()
        weights.use(one)
        times.append((now_s() - begin) * 1e3)
    return median(times)


def report(device: str, is_tiny: bool, num_steps: int) -> Report:
    """Stock, then ours, then the swaps."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        bench = Bench(device, is_tiny, num_steps, Path(folder))
        stock_s, stock_latents = measured_kinds(bench)
        engine, loras = bench.engine()
        rows, checks = [], []
        for kind in KINDS:
            ours(engine, [bench.request(kind, num_steps=3)])  # compile, record, load
            say("ready", kind.name)
        for kind in KINDS:
            times = [ours(engine, [bench.request(kind)]) for _ in range(1 if is_tiny else 3)]
            seconds = median(one[0] for one in times)
            alike = _cosine(times[0][1][0], stock_latents[kind.name])
            total = sum(stock_s[kind.name])
            floor = kind.floor_s(num_steps)
            say("ours", kind.name, f"{seconds:.3f} s, {total / seconds:.1f} x, cosine {alike:.4f}")
            rows.append((kind.name, total, seconds, total / seconds, floor, floor / seconds, 60 / seconds, alike))
        mixed = [bench.request(kind, seed) for seed in range(2) for kind in KINDS]
        mixed_s, _ = ours(engine, mixed)
        stock_mixed_s = 2 * sum(sum(one) for one in stock_s.values())
        floor = 2 * sum(kind.floor_s(num_steps) for kind in KINDS)
        rows.append(
            (
                "mixed, 8 at once",
                stock_mixed_s,
                mixed_s,
                stock_mixed_s / mixed_s,
                floor,
                floor / mixed_s,
                480 / mixed_s,
                None,
            )
        )
        say("mixed", f"{mixed_s:.2f} s")
        swaps, same = swap_rows(loras, 30 if is_tiny else NUM_SWAPS)
        say("swaps", swaps, same)
        decode_s = _decode_s(engine, bench)
        engine_note = (
            f"VAE decoding after the latents, in the thread of the caller: {decode_s * 1e3:.0f} ms on both sides."
        )
        loras.close()
    by_name = {str(row[0]): row for row in rows}
    checks = [
        Check.at_most("no add-on", float(by_name["0C/0L"][2]), 1.3, unit="s"),
        Check.at_most("3 ControlNets and 2 LoRAs", float(by_name["3C/2L"][2]), 3.0, unit="s"),
        Check.at_least("3C/2L, faster than stock", float(by_name["3C/2L"][3]), 5.0, unit="x"),
        Check.at_least("3C/2L, images per GPU-minute", float(by_name["3C/2L"][6]), 20.0),
        Check.at_least("mixed add-ons, throughput beside stock", float(by_name["mixed, 8 at once"][3]), 2.0, unit="x"),
        Check.at_most("LoRA swap", swaps[0][1], 10.0, unit="ms"),
        Check.at_most("LoRA swap, share of a request", swaps[0][1] / 1e3 / float(by_name["0C/1L"][2]), 0.03),
        Check.at_least(f"{NUM_SWAPS} swaps leave the weights bit for bit", float(same), 1.0),
    ]
    columns = (
        Column("request"),
        Column("stock", "s", 2),
        Column("ours", "s", 3),
        Column("faster", "x", 2),
        Column("floor", "s", 2),
        Column("of the floor", "", 2),
        Column("images per GPU-minute", "", 1),
        Column("cosine to stock", "", 4),
    )
    return Report(
        title="SDXL with add-ons on one accelerator" + (" (tiny models)" if is_tiny else ""),
        domain="serving",
        scenario={"steps": num_steps, "size_px": bench.models.size_px, "rank": RANK, "device": device},
        seed=0,
        tables=(
            Table("From the prompt to latents", columns, tuple(rows), "Stock with its LoRA loading: " + _said(stock_s)),
            Table("Changing LoRAs", (Column("swap"), Column("time", "ms", 2)), tuple(swaps)),
        ),
        checks=tuple(checks),
        notes=(engine_note, versions(["torch", "diffusers", "transformers"]), _card(device)),
    )


def _said(stock_s: dict[str, tuple[float, float]]) -> str:
    return "; ".join(f"{name} {lora_s:.2f} + {image_s:.2f} s" for name, (lora_s, image_s) in stock_s.items())


def _decode_s(engine: StepEngine, bench: Bench) -> float:
    ticket = engine.submit(bench.request(KINDS[0], num_steps=2))
    engine.run()
    engine.image(ticket)
    begin = now_s()
    engine.image(ticket)
    return now_s() - begin


def _cosine(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(first.flatten().double(), second.flatten().double(), dim=0))


def _card(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "no accelerator"


def now_s() -> float:
    """The time when all that was sent is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


_BEGIN_S = time.perf_counter()


def say(*words: Any) -> None:
    """Progress, for a run takes minutes."""
    print(f"[{time.perf_counter() - _BEGIN_S:6.1f}]", *words, flush=True)
