"""The step engine on one accelerator beside stock diffusers: what `serving.py --device cuda` runs.

SDXL at 1024x1024, 50 steps, bfloat16, random weights (times do not depend on their values), one process. Seconds are
from the prompt to finished latents, medians of three; stock pipelines make the same requests once in the same run,
LoRAs loaded, fused and taken out again as their users do. The floor is the arithmetic of a request at 790 TFLOP/s, what
a large matrix product reaches on this card. Every row says how far its image is from that of stock. With `--tiny` the
same on tiny models: does it run, not how fast.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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
from takeup.serving.quality.measures import cosine, psnr_db, ssim

RANK, TFLOPS = 64, 790e12
UNET_FLOP, NET_FLOP = 6.761e12, 3.020e12  # a row of one step at 1024x1024
NUM_SWAPS = 1000
BEGIN_S = time.perf_counter()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request: how many ControlNets and LoRAs it brings."""

    num_controls: int
    num_loras: int

    @property
    def name(self) -> str:
        return f"{self.num_controls}C/{self.num_loras}L"

    def floor_s(self, num_steps: int, every: int = 1) -> float:
        """With ControlNets in every so-many-th step."""
        return 2 * num_steps * (UNET_FLOP + self.num_controls * NET_FLOP / every) / TFLOPS


KINDS = Kind(0, 0), Kind(0, 1), Kind(1, 1), Kind(3, 2)
MOST = KINDS[-1]
Row = tuple[str, float, float, float, float, float, float, float | None, float | None, float | None]
COLUMNS = (
    Column("request"),
    Column("stock", "s", 2),
    Column("ours", "s", 3),
    Column("faster", "x", 2),
    Column("floor", "s", 2),
    Column("of the floor", "", 2),
    Column("images per GPU-minute", "", 1),
    Column("cosine", "", 5),
    Column("PSNR", "dB", 1),
    Column("SSIM", "", 4),
)


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

    def engine(self, compute: Recorded, every: int = 1) -> tuple[StepEngine, Loras]:
        """Recorded and compiled, ControlNets in streams, LoRAs kept in memory and merged by stacks."""
        pipeline, family = self.models.plain, family_of(self.models.plain)
        stacks = compute.prepared(family.network).stacks
        store = LoraStore(ThreadLoader(self.files, Targets.of(pipeline)), ADAPTER_POLICIES["lru"], 10**10)
        loras = Loras(family, store, stacks=stacks)
        workers = {name: StreamWorker(net, compute) for name, net in self.models.nets.items()}
        controls = Controls(family, self.models.nets, workers, every=every)
        return StepEngine(pipeline, max_rows=2, compute=compute, add_ons=[loras, controls]), loras


# Measuring ------------------------------------------------------------------------------------------------------------


def stock_side(bench: Bench) -> tuple[dict[str, tuple[float, float]], dict[str, torch.Tensor]]:
    """Stock: seconds for LoRAs and for the image of every kind, and the latents."""
    seconds, latents = {}, {}
    bench.stock(bench.request(Kind(3, 0), num_steps=2))  # warm
    for kind in KINDS:
        lora_s, image_s, latents[kind.name] = bench.stock(bench.request(kind))
        seconds[kind.name] = lora_s, image_s
        say("stock", kind.name, f"LoRAs {lora_s:.2f} s, image {image_s:.2f} s")
    return seconds, latents


def together(engine: StepEngine, requests: Sequence[Request]) -> tuple[float, list[torch.Tensor]]:
    """Seconds for all of them, and their latents."""
    begin = now_s()
    tickets = [engine.submit(one) for one in requests]
    engine.run()
    return now_s() - begin, [ticket.result().latents for ticket in tickets]


def kind_row(
    bench: Bench, engine: StepEngine, kind: Kind, stock_s: float, theirs: torch.Tensor, name: str, every: int = 1
) -> Row:
    """One kind of request alone."""
    together(engine, [bench.request(kind, num_steps=3)])  # compile, record, load
    times = [together(engine, [bench.request(kind)]) for _ in range(1 if bench.is_tiny else 3)]
    seconds, floor = median(one[0] for one in times), kind.floor_s(bench.num_steps, every)
    alike = likeness(engine, times[0][1][0], theirs)
    say("ours", name, f"{seconds:.3f} s, {stock_s / seconds:.1f} x, cosine, PSNR, SSIM:", *alike)
    return (name, stock_s, seconds, stock_s / seconds, floor, floor / seconds, 60 / seconds, *alike)


def mixed_row(bench: Bench, engine: StepEngine, stock_s: dict[str, tuple[float, float]]) -> Row:
    """Two requests of every kind at once."""
    requests = [bench.request(kind, seed) for seed in range(2) for kind in KINDS]
    seconds, _ = together(engine, requests)
    theirs, floor = (
        2 * sum(values) for values in (map(sum, stock_s.values()), (k.floor_s(bench.num_steps) for k in KINDS))
    )
    say("mixed", f"{seconds:.2f} s")
    per_minute = 60 * len(requests) / seconds
    return ("mixed, 8 at once", theirs, seconds, theirs / seconds, floor, floor / seconds, per_minute, None, None, None)


def likeness(engine: StepEngine, ours: torch.Tensor, theirs: torch.Tensor) -> tuple[float, float, float]:
    """Cosine of the latents, PSNR and SSIM of the images."""
    pixels = [_numbers(_decoded(engine, latents)[0]) for latents in (ours, theirs)]
    return cosine(_numbers(ours), _numbers(theirs)), min(psnr_db(*pixels), 200.0), ssim(*pixels)


def swap_rows(loras: Loras, num_swaps: int) -> tuple[list[tuple[str, float]], bool]:
    """Milliseconds of a change of LoRAs, and whether many changes leave the weights as they were."""
    weights = loras.weights
    assert isinstance(weights, GroupedWeights)
    weights.use()
    before = [stack.block.clone() for stack in weights._stacks.stacks]
    first, second = (((lora, 0.8),) for lora in _two_loras(loras))
    begin = now_s()
    Packer(weights._stacks, "unet").pack(first[0][0])
    packing_ms = (now_s() - begin) * 1e3
    rows = [
        ("one LoRA, from pinned memory of the host", _swap_ms(weights, (first, second), is_fresh=True)),
        ("one LoRA, on the device already", _swap_ms(weights, (first, second), is_fresh=False)),
        ("two LoRAs, from pinned memory of the host", _swap_ms(weights, ((*first, *second), first), is_fresh=True)),
        ("packing a LoRA the first time, beside the loop", packing_ms),
    ]
    staged = [weights.stage(one) for one in (first, second)]
    for number in range(num_swaps):
        weights.use(staged[number % 2])
    weights.use()
    return rows, all(torch.equal(old, stack.block) for old, stack in zip(before, weights._stacks.stacks, strict=True))


def _two_loras(loras: Loras) -> list[Any]:
    return next([lora for lora, _ in staged.loras] for staged in loras._staged.values() if len(staged.loras) == 2)


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


# The report -----------------------------------------------------------------------------------------------------------


def report(device: str, is_tiny: bool, num_steps: int) -> Report:
    """Stock, then ours, then the swaps."""
    torch.backends.cudnn.benchmark = True
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        bench = Bench(device, is_tiny, num_steps, Path(folder))
        stock_s, theirs = stock_side(bench)
        compute = Recorded(None if is_tiny else FAST)
        engine, loras = bench.engine(compute)
        rows = [kind_row(bench, engine, one, sum(stock_s[one.name]), theirs[one.name], one.name) for one in KINDS]
        rows.append(mixed_row(bench, engine, stock_s))
        swaps, is_same = swap_rows(loras, 30 if is_tiny else NUM_SWAPS)
        say("swaps", swaps, is_same)
        loras.close()
        rows.append(_reusing_row(bench, compute, sum(stock_s[MOST.name]), theirs[MOST.name]))
        decode_ms = _decode_ms(engine, theirs[MOST.name])
    return Report(
        title="SDXL with add-ons on one accelerator" + (" (tiny models)" if is_tiny else ""),
        domain="serving",
        scenario={"steps": num_steps, "size_px": bench.models.size_px, "rank": RANK, "device": device},
        seed=0,
        tables=(
            Table("From the prompt to latents", COLUMNS, tuple(rows), "Stock, LoRAs + image: " + _said(stock_s)),
            Table("Changing LoRAs", (Column("swap"), Column("time", "ms", 2)), tuple(swaps)),
        ),
        checks=tuple(_checks({row[0]: row for row in rows}, swaps[0][1], is_same)),
        notes=(
            f"Decoding comes after the latents, in the thread of the caller: {decode_ms:.0f} ms on both sides.",
            f"LoRAs of rank {RANK} for all linear layers of attention blocks: {bench.lora_bytes / 2**20:.0f} MiB each.",
            "Ours has read and packed the LoRAs before, for its store keeps them; stock loads them for every request.",
            versions(["torch", "diffusers", "transformers"]),
            torch.cuda.get_device_name() if device == "cuda" else "no accelerator",
        ),
    )


def _reusing_row(bench: Bench, compute: Recorded, stock_s: float, theirs: torch.Tensor) -> Row:
    """Accelerated: ControlNets are asked in every second step. The image is another one, and the row says how far.

    Random ControlNets are felt little; what it does to the images of trained ones is not shown here.
    """
    engine, loras = bench.engine(compute, every=2)
    row = kind_row(bench, engine, MOST, stock_s, theirs, f"{MOST.name}, every 2nd step (not exact)", 2)
    loras.close()
    return row


def _checks(rows: dict[str, Row], swap_ms: float, is_same: bool) -> Iterator[Check]:
    most = rows[MOST.name]
    yield Check.at_most("no add-on", rows["0C/0L"][2], 1.3, unit="s")
    yield Check.at_most("3 ControlNets and 2 LoRAs", most[2], 3.0, unit="s")
    yield Check.at_least("3C/2L, faster than stock", most[3], 5.0, unit="x")
    yield Check.at_least("3C/2L, images per GPU-minute", most[6], 20.0)
    yield Check.at_least("mixed add-ons, throughput beside stock", rows["mixed, 8 at once"][3], 2.0, unit="x")
    yield Check.at_most("LoRA swap", swap_ms, 10.0, unit="ms")
    yield Check.at_most("LoRA swap, share of a request", swap_ms / 1e3 / rows["0C/1L"][2], 0.03)
    yield Check.at_least(f"{NUM_SWAPS} swaps leave the weights bit for bit", float(is_same), 1.0)


def _said(stock_s: dict[str, tuple[float, float]]) -> str:
    return "; ".join(f"{name} {lora_s:.2f} + {image_s:.2f} s" for name, (lora_s, image_s) in stock_s.items())


def _decoded(engine: StepEngine, latents: torch.Tensor) -> torch.Tensor:
    vae = engine.family.pipeline.vae
    image: torch.Tensor = vae.decode((latents / vae.config.scaling_factor).to(vae.dtype), return_dict=False)[0]
    return (image / 2 + 0.5).clamp(0, 1)


def _decode_ms(engine: StepEngine, latents: torch.Tensor) -> float:
    begin = now_s()
    _decoded(engine, latents)
    return (now_s() - begin) * 1e3


def _numbers(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().double().numpy()


def now_s() -> float:
    """The time when all that was sent is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def say(*words: Any) -> None:
    """Progress, for a run takes minutes."""
    print(f"[{time.perf_counter() - BEGIN_S:6.1f}]", *words, file=sys.stderr, flush=True)
