"""Masked edits on one accelerator beside stock networks: what `editing.py --device cuda` runs.

Networks of SDXL and Flux at 1024x1024 in bfloat16 with random weights (times do not depend on their values). One edit:
all steps of the denoising loop with the scheduler and the blending of diffusers, without text encoder and decoder; the
decoder is timed beside. Stock is the network of diffusers called as its pipelines call it. Templates lie on the device
in eight bits, recorded by a whole run in the same process; every step reads its own page. The floor is the counted
arithmetic at 790 TFLOP/s. With `--tiny` the same on tiny networks and any device: does it run, not how fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import diffusers
import numpy as np
import torch

from takeup.core.report import Check, Column, Report, Table
from takeup.serving.engines.diffusers.masked.blend import Blended
from takeup.serving.engines.diffusers.masked.call import Places
from takeup.serving.engines.diffusers.masked.fast_flux import BoundFlux
from takeup.serving.engines.diffusers.masked.fast_unet import BoundUnet
from takeup.serving.engines.diffusers.masked.flat import flatten
from takeup.serving.engines.diffusers.masked.full_size import FULL_SIZE, FullSize, masked_places
from takeup.serving.engines.diffusers.masked.graphs import Repeated
from takeup.serving.engines.diffusers.masked.hooks import Hooks
from takeup.serving.engines.diffusers.masked.pages import working_copy

TFLOPS = 790e12
SHARES = (0.05, 0.1, 0.2, 0.5)
TERA = {
    "sdxl": {None: 13.52, 0.05: 3.86, 0.1: 4.37, 0.2: 5.39, 0.5: 8.44},
    "flux": {None: 74.38, 0.05: 11.6, 0.1: 14.9, 0.2: 21.5, 0.5: 41.3},
}
NUM_STEPS = {"sdxl": 50, "flux": 28}
BARS_S = {"sdxl": 0.6, "flux": 1.0}
NUM_ROUNDS, MULTIPLE, NUM_MIXED, PER_BATCH = 3, 32, 16, 4
PUBLIC_MASKS = (1.1, 4.7)  # a beta distribution with the mean of the public trace, 0.19
BLOCKS = {"max_autotune": False, "conv_1x1_as_mm": True}
cuda: Any = torch.cuda
Pages = list[tuple[torch.Tensor, torch.Tensor]]


def say(what: str, value: object) -> None:
    """A line on the way, for runs that are cut short."""
    print(f"[{time.perf_counter() - BEGIN:6.1f} s] {what}: {value}", flush=True)


BEGIN = time.perf_counter()


def seconds_of(act: Callable[[], object]) -> float:
    """Median of some rounds, after one that does not count."""
    rounds = []
    for _ in range(NUM_ROUNDS + 1):
        begin = now_s()
        act()
        rounds.append(now_s() - begin)
    return median(rounds[1:])


def now_s() -> float:
    """When all that was sent to the device is done."""
    if cuda.is_available():
        cuda.synchronize()
    return time.perf_counter()


@dataclass
class Bench:
    """One network, its template, and the loop around it."""

    name: str
    size: FullSize
    network: Any
    device: str
    num_steps: int
    dtype: torch.dtype = torch.bfloat16

    def inputs(self, num_images: int = 1) -> dict[str, Any]:
        return self.size.inputs(num_images * self.size.num_rows, {"device": self.device, "dtype": self.dtype})

    def predict(self, **inputs: Any) -> torch.Tensor:
        prediction: torch.Tensor = self.network(**inputs, return_dict=False)[0]
        return prediction

    @property
    def sample_name(self) -> str:
        return "sample" if self.name == "sdxl" else "hidden_states"

    def scheduler(self, latents: torch.Tensor) -> Any:
        """That of the published pipeline, blending with an original."""
        if self.name == "sdxl":
            made: Any = _scheduler("EulerDiscreteScheduler", beta_schedule="scaled_linear", timestep_spacing="leading")
            made.set_timesteps(self.num_steps, device=self.device)
        else:
            made = _scheduler("FlowMatchEulerDiscreteScheduler")
            made.set_timesteps(sigmas=np.linspace(1.0, 1 / self.num_steps, self.num_steps), device=self.device)
        made.set_begin_index(0)
        noise, mask = torch.randn_like(latents), torch.zeros_like(latents)
        mask.flatten()[: mask.numel() // 10] = 1
        return Blended(made, list(made.timesteps), torch.randn_like(latents), noise, mask)

    @torch.no_grad()
    def loop(self, call: Callable[[], torch.Tensor], inputs: dict[str, Any], before: Callable[[int], None]) -> None:
        """All steps of one image or of several; inputs are written in place."""
        sample = inputs[self.sample_name]
        num_images = len(sample) // self.size.num_rows
        latents = sample[:num_images].clone()
        scheduler = self.scheduler(latents)
        for step, timestep in enumerate(scheduler.timesteps):
            before(step)
            scaled = scheduler.scale_model_input(latents, timestep) if self.name == "sdxl" else latents
            sample.copy_(scaled.repeat(self.size.num_rows, *[1] * (scaled.ndim - 1)))
            inputs["timestep"].copy_(timestep if self.name == "sdxl" else timestep / 1000)
            prediction = call()
            if self.size.num_rows == 2:
                negative, positive = prediction.chunk(2)
                prediction = negative + 5.0 * (positive - negative)
            latents = scheduler.step(prediction, timestep, latents)[0]

    @torch.no_grad()
    def stock_s(self, num_images: int = 1) -> float:
        """The network as it is, called for every step."""
        inputs = self.inputs(num_images)
        return seconds_of(lambda: self.loop(lambda: self.predict(**inputs), inputs, lambda step: None))

    @torch.no_grad()
    def record(self, inputs: dict[str, Any], num_pages: int) -> tuple[dict[str, torch.Tensor], Pages]:
        """A whole run; shapes by name, and a page for every step in eight bits."""
        hooks = Hooks(self.network)
        pages: Pages = []
        for step in range(num_pages):
            inputs["timestep"].fill_(1 - step / self.num_steps if self.name == "flux" else 999 - 20 * step)
            hooks.call.mode, hooks.call.recorded = "record", {}
            self.predict(**inputs)
            page = working_copy(hooks.call.recorded, hooks.fronted, hooks.call.num_front)
            for name in hooks.fronted:
                page[name][:, : hooks.call.num_front] = 0
            pages.append(flatten(page))
        hooks.remove()
        return page, pages

    def bind(self, like: dict[str, torch.Tensor], places: dict[int, Places], inputs: dict[str, Any]) -> Any:
        """The network for these tokens only."""
        if self.name == "flux":
            return BoundFlux(self.network, like, places, inputs)
        made = BoundUnet(self.network, like, places)
        made.tell(inputs["encoder_hidden_states"])
        return made


# Edits ----------------------------------------------------------------------------------------------------------------


@contextmanager
def bound(bench: Bench, like: dict[str, torch.Tensor], places: dict[int, Places], inputs: Any) -> Iterator[Any]:
    """The bound network, and the network as it was afterwards."""
    made = bench.bind(like, places, inputs)
    try:
        yield made
    finally:
        made.release()


@torch.no_grad()
def edit_s(bench: Bench, like: Any, pages: Pages, share: float, compiled: bool, num_images: int = 1) -> float:
    """Seconds of an edit with a mask of this share, or of several."""
    inputs = laid_out(bench.inputs(num_images))
    places = masked_places(bench.size, share, num_images * bench.size.num_rows, bench.device, MULTIPLE)
    with bound(bench, like, places, inputs) as made:
        if compiled:
            made.compile_blocks(BLOCKS if bench.name == "sdxl" else {})
        made.flat.fill(*pages[0])
        repeated = Repeated(bench.predict, inputs)
        return seconds_of(lambda: bench.loop(repeated, inputs, lambda step: made.flat.fill(*pages[step % len(pages)])))


def laid_out(inputs: dict[str, Any]) -> dict[str, Any]:
    """Images with channels last."""
    return {
        name: one.contiguous(memory_format=torch.channels_last) if getattr(one, "ndim", 0) == 4 else one
        for name, one in inputs.items()
    }


@torch.no_grad()
def gap(bench: Bench) -> float:
    """Masked against whole, where both see the same; the template in eight bits. Relative, of all latents."""
    inputs = bench.inputs()
    like, pages = bench.record(inputs, 1)
    whole = bench.predict(**inputs)
    places = masked_places(bench.size, 0.1, bench.size.num_rows, bench.device, MULTIPLE)
    with bound(bench, like, places, inputs) as made:
        made.flat.fill(*pages[0])
        ours = bench.predict(**inputs)
    return float((ours - whole).float().norm() / whole.float().norm())


@torch.no_grad()
def mixed_per_s(bench: Bench, compiled: bool) -> float:
    """Images per second with masks of the public trace, in batches of similar ones."""
    shares = sorted(np.random.default_rng(1).beta(*PUBLIC_MASKS, NUM_MIXED))
    like, pages = bench.record(bench.inputs(PER_BATCH), 2)
    spent_s = 0.0
    for first in range(0, NUM_MIXED, PER_BATCH):
        most = float(max(shares[first : first + PER_BATCH]))
        spent_s += edit_s(bench, like, pages, most, compiled, PER_BATCH)
        say("mixed batch", f"largest mask {most:.2f}, {spent_s:.3f} s so far")
    return NUM_MIXED / spent_s


def _scheduler(name: str, **options: Any) -> Any:
    make: Any = getattr(diffusers, name)
    return make(**options)


# Reports --------------------------------------------------------------------------------------------------------------


def decoder_s(device: str) -> float:
    """One image of the decoder of SDXL."""
    up = ["UpDecoderBlock2D"] * 4
    make_vae: Any = diffusers.AutoencoderKL
    with torch.device("meta"):
        vae = make_vae(
            up_block_types=up,
            down_block_types=["DownEncoderBlock2D"] * 4,
            block_out_channels=[128, 256, 512, 512],
            layers_per_block=2,
        )
    vae = vae.to(torch.bfloat16).to_empty(device=device).eval()
    for weights in vae.parameters():
        weights.data.normal_(std=0.02)
    latents = torch.randn(1, 4, 128, 128, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        return seconds_of(lambda: vae.decode(latents, return_dict=False))


def measure(device: str, parts: Sequence[str], *, is_tiny: bool = False) -> Report:
    """Everything that was asked for."""
    rows: list[tuple[Any, ...]] = []
    checks: list[Check] = []
    if not is_tiny:
        say("decoder", f"{decoder_s(device):.3f} s")
    for name in parts:
        measure_one(name, device, is_tiny, rows, checks)
    return report_of(rows, checks)


def measure_one(name: str, device: str, is_tiny: bool, rows: list[tuple[Any, ...]], checks: list[Check]) -> None:
    bench = tiny_bench(name) if is_tiny else full_bench(name, device)
    stock_s = bench.stock_s()
    say(f"{name} stock", f"{stock_s:.3f} s")
    rows.append((name, "stock", 1.0, stock_s, floor_s(bench, None), 1.0))
    mixed_stock = PER_BATCH / bench.stock_s(PER_BATCH) if name == "sdxl" else 0.0
    like, pages = bench.record(bench.inputs(), bench.num_steps)
    say(f"{name} template", f"{sum(map(page_bytes, pages)) / 2**30:.1f} GiB in {len(pages)} pages")
    say(f"{name} gap", f"{gap(bench):.5f}")
    if name == "sdxl":
        bench.network.to(memory_format=torch.channels_last)
    best_s = min(
        edits(bench, like, pages, compiled, stock_s, rows) for compiled in ((False,) if is_tiny else (False, True))
    )
    checks.append(Check.at_most(f"{name}, {bench.num_steps} steps, mask of a tenth", best_s, BARS_S[name], unit="s"))
    if name == "sdxl":
        ours = mixed_per_s(bench, compiled=not is_tiny)
        say("mixed", f"{ours:.2f} images/s, stock {mixed_stock:.2f}, {ours / mixed_stock:.2f}x")
        checks.append(
            Check.at_least("images per second with mixed masks, times stock", ours / mixed_stock, 3.0, unit="x")
        )


def edits(bench: Bench, like: Any, pages: Pages, compiled: bool, stock_s: float, rows: list[tuple[Any, ...]]) -> float:
    """Edits with masks of all sizes; the seconds of a mask of a tenth."""
    how, spent_s = "recorded, blocks compiled" if compiled else "recorded", {}
    for share in SHARES:
        spent_s[share] = edit_s(bench, like, pages, share, compiled)
        say(f"{bench.name} {share}, {how}", f"{spent_s[share]:.3f} s, stock / ours {stock_s / spent_s[share]:.2f}")
        rows.append((bench.name, how, share, spent_s[share], floor_s(bench, share), stock_s / spent_s[share]))
    return spent_s[0.1]


def page_bytes(page: tuple[torch.Tensor, ...]) -> int:
    return sum(part.numel() * part.element_size() for part in page)


def floor_s(bench: Bench, share: float | None) -> float:
    return bench.num_steps * TERA[bench.name][share] * 1e12 / TFLOPS


def full_bench(name: str, device: str) -> Bench:
    return Bench(name, FULL_SIZE[name], FULL_SIZE[name].network(device), device, NUM_STEPS[name])


def tiny_bench(name: str) -> Bench:
    """The same loop over tiny networks on the CPU."""
    from takeup.serving.engines.diffusers.tiny import build  # not needed on the device, and not all of it is there

    pipeline = build(f"takeup/tiny-{name}")
    made = {"sdxl": tiny_sdxl_inputs, "flux": tiny_flux_inputs}[name]
    full = FULL_SIZE[name]
    grid = (16, 16) if name == "sdxl" else (8, 8)
    size = FullSize(full.build, made, full.num_rows, grid, min(full.num_levels, 2))
    network = pipeline.unet if name == "sdxl" else pipeline.transformer
    return Bench(name, size, network, "cpu", 4, torch.float32)


def tiny_sdxl_inputs(num_rows: int, where: dict[str, Any]) -> dict[str, Any]:
    added = {"text_embeds": torch.randn(num_rows, 32, **where), "time_ids": torch.ones(num_rows, 6, **where)}
    return {
        "sample": torch.randn(num_rows, 4, 16, 16, **where),
        "timestep": torch.full((num_rows,), 500.0),
        "encoder_hidden_states": torch.randn(num_rows, 77, 64, **where),
        "added_cond_kwargs": added,
    }


def tiny_flux_inputs(num_rows: int, where: dict[str, Any]) -> dict[str, Any]:
    places = torch.stack(torch.meshgrid(torch.zeros(1), torch.arange(8.0), torch.arange(8.0), indexing="ij"), dim=-1)
    return {
        "hidden_states": torch.randn(num_rows, 64, 16, **where),
        "encoder_hidden_states": torch.randn(num_rows, 8, 32, **where),
        "pooled_projections": torch.randn(num_rows, 32, **where),
        "timestep": torch.full((num_rows,), 0.5, **where),
        "guidance": torch.full((num_rows,), 3.5),
        "img_ids": places.reshape(-1, 3),
        "txt_ids": torch.zeros(8, 3),
    }


def report_of(rows: list[tuple[Any, ...]], checks: list[Check]) -> Report:
    columns = (
        Column("network"),
        Column("how"),
        Column("mask", "share"),
        Column("seconds", "s"),
        Column("floor", "s"),
        Column("stock / ours", "x"),
    )
    notes = ("mixed masks are drawn from a beta distribution with the mean of the public trace", "batches of four")
    table = Table("edits of one image", columns, tuple(rows))
    scenario = {"domain": "serving", "benchmark": "editing", "device": "cuda"}
    return Report("Masked edits on an accelerator", "serving", scenario, 1, (table,), (), tuple(checks), notes)
