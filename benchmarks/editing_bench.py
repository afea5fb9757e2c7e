"""One network on one device for benchmarks of masked edits: its loop, its template, and edits bound to a mask."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import diffusers
import numpy as np
import torch

from takeup.serving.engines.diffusers.masked.ahead import Ahead
from takeup.serving.engines.diffusers.masked.blend import Blended
from takeup.serving.engines.diffusers.masked.call import Places
from takeup.serving.engines.diffusers.masked.fast_flux import BoundFlux
from takeup.serving.engines.diffusers.masked.fast_unet import BoundUnet
from takeup.serving.engines.diffusers.masked.flat import flatten
from takeup.serving.engines.diffusers.masked.full_size import FULL_SIZE, FullSize, box_mask
from takeup.serving.engines.diffusers.masked.graphs import Repeated, preferring
from takeup.serving.engines.diffusers.masked.hooks import Hooks
from takeup.serving.engines.diffusers.masked.kept_columns import flatten_columns
from takeup.serving.engines.diffusers.masked.pages import working_copy
from takeup.serving.engines.diffusers.masked.tokens import grids_of, places_of

__all__ = ["Bench", "Bound", "Page", "full_bench", "middle_bench", "now_s", "say", "seconds_of", "tiny_bench"]

NUM_STEPS = {"sdxl": 50, "flux": 28}
NUM_ROUNDS, MULTIPLE = 3, 32
BLOCKS = {"max_autotune": False, "conv_1x1_as_mm": True}
ATTENTION = {"sdxl": ("FLASH_ATTENTION",), "flux": ("CUDNN_ATTENTION", "FLASH_ATTENTION")}
BEGIN = time.perf_counter()
cuda: Any = torch.cuda
Page = tuple[torch.Tensor, ...]
Keep = Callable[[int, dict[str, torch.Tensor]], None]


def say(what: str, value: object) -> None:
    """A line on the way, for runs that are cut short."""
    print(f"[{time.perf_counter() - BEGIN:6.1f} s] {what}: {value}", flush=True)


def seconds_of(act: Callable[[], object], num_rounds: int = NUM_ROUNDS) -> float:
    """Median of some rounds, after one that does not count."""
    rounds = []
    for _ in range(num_rounds + 1):
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
    """One network, and the loop around it."""

    name: str
    size: FullSize
    network: Any
    device: str
    num_steps: int
    dtype: torch.dtype = torch.bfloat16
    compiled: bool = True
    is_silent: bool = False
    """Whether negative branches have no text, as those of pipelines without a negative prompt; SDXL only."""
    is_told: bool = False
    """Whether edits know their timesteps when they begin; Flux only."""

    def inputs(self, num_images: int = 1) -> dict[str, Any]:
        inputs = self.size.inputs(num_images * self.size.num_rows, {"device": self.device, "dtype": self.dtype})
        if self.is_silent and self.size.num_rows == 2:
            inputs["encoder_hidden_states"][:num_images] = 0
        return inputs

    def laid_out(self) -> None:
        """The network with channels last, as ours wants it and stock has it not."""
        self.network.to(memory_format=torch.channels_last)

    def predict(self, **inputs: Any) -> torch.Tensor:
        prediction: torch.Tensor = self.network(**inputs, return_dict=False)[0]
        return prediction

    @property
    def sample_name(self) -> str:
        return "sample" if self.name == "sdxl" else "hidden_states"

    def timesteps(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Of all steps, as calls of Flux get them."""
        return torch.stack(list(self.scheduler(inputs[self.sample_name]).timesteps)) / 1000

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
    def loop(self, inputs: dict[str, Any], play: Callable[[int], torch.Tensor]) -> None:
        """All steps of one image or of several; inputs are written in place."""
        sample = inputs[self.sample_name]
        num_images = len(sample) // self.size.num_rows
        latents = sample[:num_images].clone()
        scheduler = self.scheduler(latents)
        for step, timestep in enumerate(scheduler.timesteps):
            scaled = scheduler.scale_model_input(latents, timestep) if self.name == "sdxl" else latents
            sample.copy_(scaled.repeat(self.size.num_rows, *[1] * (scaled.ndim - 1)))
            inputs["timestep"].copy_(timestep if self.name == "sdxl" else timestep / 1000)
            prediction = play(step)
            if self.size.num_rows == 2:
                negative, positive = prediction.chunk(2)
                prediction = negative + 5.0 * (positive - negative)
            latents = scheduler.step(prediction, timestep, latents)[0]

    @torch.no_grad()
    def stock_s(self, num_images: int = 1, num_rounds: int = 2) -> float:
        """The network as it is, called for every step."""
        inputs = self.inputs(num_images)
        return seconds_of(lambda: self.loop(inputs, lambda step: self.predict(**inputs)), num_rounds)

    @torch.no_grad()
    def record(self, inputs: dict[str, Any], keep: Keep) -> None:
        """A whole run; `keep` is given the page of every step, with room for the text where it needs some."""
        hooks = Hooks(self.network, convolutions=self.name == "sdxl")

        def play(step: int) -> torch.Tensor:
            hooks.call.mode, hooks.call.recorded = "record", {}
            prediction = self.predict(**inputs)
            page = working_copy(hooks.call.recorded, hooks.fronted, hooks.call.num_front)
            for name in hooks.fronted:
                page[name][:, : hooks.call.num_front] = 0
            keep(step, page)
            return prediction

        self.loop(inputs, play)
        hooks.remove()

    def flatten(self, page: dict[str, torch.Tensor]) -> Page:
        """In eight bits."""
        return flatten_columns(page) if self.name == "sdxl" else flatten(page)

    @property
    def num_front(self) -> int:
        """Tokens of the text before those of the image, where both are in one sequence."""
        return 0 if self.name == "sdxl" else int(self.inputs()["encoder_hidden_states"].shape[1])

    def tokens(self, share: float) -> dict[int, int]:
        """How many are computed on every grid."""
        return {number: places.by_row.shape[1] for number, places in self.places([share]).items()}

    def places(self, shares: Sequence[float]) -> dict[int, Places]:
        """The tokens of boxes of these shares."""
        masks = [box_mask(self.size.grid, share) for _ in range(self.size.num_rows) for share in shares]
        grids = grids_of(self.size.grid, self.size.num_levels)
        return places_of([mask.to(self.device) for mask in masks], grids, MULTIPLE)

    @contextmanager
    def bound(
        self, like: Any, shares: Sequence[float], inputs: dict[str, Any] | None = None, num_flats: int = 2
    ) -> Iterator[Bound]:
        """The network for edits with masks of these shares, and as it was afterwards."""
        inputs = self.inputs(len(shares)) if inputs is None else inputs
        places = self.places(shares)
        if self.name == "flux":
            made: Any = BoundFlux(self.network, like, places, inputs, num_flats)
        else:
            made = BoundUnet(self.network, like, places, self.size.grid, num_flats)
            made.tell(inputs["encoder_hidden_states"])
        try:
            if self.compiled:
                made.compile_blocks(BLOCKS if self.name == "sdxl" else {})
            yield Bound(self, made, inputs)
        finally:
            made.release()


class Bound:
    """A network bound to masks: its calls recorded, once for each place of what is kept."""

    def __init__(self, bench: Bench, made: Any, inputs: dict[str, Any], attention: Sequence[str] = ()) -> None:
        self.bench, self.made, self.inputs = bench, made, inputs
        self._attention = attention or ATTENTION[bench.name]
        self._ahead: Ahead | None = None

    def cut(self, page: Page) -> Page:
        """What this mask needs of a page."""
        cut: Page = self.made.flats[0].cut(page)
        return cut

    def prefer(self, attention: Sequence[str]) -> None:
        """Record again, with attention computed by the first of these that can."""
        self._attention, self._ahead = attention, None

    def ahead(self, page: Page) -> Ahead:
        """Recorded when first asked for."""
        if self._ahead is None:
            self._begin()
            plays = []
            with preferring(self._attention):
                for number, flat in enumerate(self.made.flats):
                    flat.fill(*self.cut(page))
                    self.made.use(number)
                    plays.append(Repeated(self.bench.predict, self.inputs))
            self._ahead = Ahead(self.made.flats, plays)
        return self._ahead

    def edit_s(self, pages: Sequence[Page], *, is_cut: bool = False) -> float:
        """Seconds of an edit. Pages take turns if there are fewer than steps; cutting them is part of the edit."""
        count = self.bench.num_steps
        ahead = self.ahead(pages[0]) if not is_cut else self._recorded()

        def edit() -> None:
            self._begin()
            mine = pages if is_cut else [self.cut(page) for page in pages]
            ahead.begin([mine[step % len(mine)] for step in range(count)])
            self.bench.loop(self.inputs, lambda step: self._play(ahead, step))

        return seconds_of(edit)

    def _begin(self) -> None:
        if self.bench.is_told and self.bench.name == "flux":
            self.made.tell(self.bench.timesteps(self.inputs), self.inputs)

    def _play(self, ahead: Ahead, step: int) -> torch.Tensor:
        if self.bench.is_told and self.bench.name == "flux":
            self.made.at(step)
        return ahead.play(step)

    def _recorded(self) -> Ahead:
        assert self._ahead is not None
        return self._ahead


def _scheduler(name: str, **options: Any) -> Any:
    make: Any = getattr(diffusers, name)
    return make(**options)


def full_bench(name: str, device: str) -> Bench:
    """A network of full size."""
    network = FULL_SIZE[name].network(device)
    return Bench(name, FULL_SIZE[name], network, device, NUM_STEPS[name], is_silent=True, is_told=True)


def tiny_bench(name: str) -> Bench:
    """The same loop over tiny networks on the CPU."""
    from takeup.serving.engines.diffusers.tiny import build  # not needed on the device, and not all of it is there

    pipeline = build(f"takeup/tiny-{name}")
    made = {"sdxl": _tiny_sdxl_inputs, "flux": _tiny_flux_inputs}[name]
    full = FULL_SIZE[name]
    grid = (32, 32) if name == "sdxl" else (8, 8)
    size = FullSize(full.build, made, full.num_rows, grid, min(full.num_levels, 2))
    network = pipeline.unet if name == "sdxl" else pipeline.transformer
    return Bench(name, size, network, "cpu", 4, torch.float32, compiled=False, is_silent=True, is_told=True)


def middle_bench(name: str, num_steps: int, scale: int = 1) -> Bench:
    """Between tiny and full, for a CPU of some patience; random weights, as diffusers draws them."""
    full, where = FULL_SIZE[name], {"sdxl": _middle_sdxl, "flux": _middle_flux}
    grid = (32 * scale, 32 * scale) if name == "sdxl" else (16 * scale, 16 * scale)
    size = FullSize(where[name], partial(_middle_inputs, full, grid), full.num_rows, grid, full.num_levels)
    torch.manual_seed(0)
    network = size.build().eval().requires_grad_(False)
    return Bench(name, size, network, "cpu", num_steps, torch.float32, compiled=False)


def _middle_sdxl() -> Any:
    config = dict(FULL_SIZE["sdxl"].network("meta").config)
    config |= {"block_out_channels": (64, 128, 256), "attention_head_dim": (1, 2, 4)}
    make: Any = diffusers.UNet2DConditionModel
    return make(**config | {"transformer_layers_per_block": (1, 2, 4)})


def _middle_flux() -> Any:
    make: Any = diffusers.FluxTransformer2DModel
    return make(guidance_embeds=True, num_layers=3, num_single_layers=6, num_attention_heads=4)


def _middle_inputs(full: FullSize, grid: tuple[int, int], num_rows: int, where: dict[str, Any]) -> dict[str, Any]:
    """Those of the full size, for a smaller image and a shorter text."""
    inputs = full.inputs(num_rows, where)
    inputs["encoder_hidden_states"] = inputs["encoder_hidden_states"][:, :64]
    if "sample" in inputs:
        inputs["sample"] = inputs["sample"][:, :, : grid[0], : grid[1]].contiguous()
        return inputs
    count = grid[0] * grid[1]
    places = torch.cartesian_prod(torch.zeros(1), *(torch.arange(float(side)) for side in grid))
    return {
        **inputs,
        "hidden_states": inputs["hidden_states"][:, :count].contiguous(),
        "img_ids": places,
        "txt_ids": inputs["txt_ids"][:64],
    }


def _tiny_sdxl_inputs(num_rows: int, where: dict[str, Any]) -> dict[str, Any]:
    added = {"text_embeds": torch.randn(num_rows, 32, **where), "time_ids": torch.ones(num_rows, 6, **where)}
    return {
        "sample": torch.randn(num_rows, 4, 32, 32, **where),
        "timestep": torch.full((num_rows,), 500.0),
        "encoder_hidden_states": torch.randn(num_rows, 77, 64, **where),
        "added_cond_kwargs": added,
    }


def _tiny_flux_inputs(num_rows: int, where: dict[str, Any]) -> dict[str, Any]:
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
