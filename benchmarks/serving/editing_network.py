"""One network on one device for benchmarks of masked edits: its loop, its template, and edits bound to a mask."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import diffusers
import numpy as np
import torch

from benchmarks.support.full_size import FULL_SIZE, FullSize, box_mask
from takeup.serving.editing.masked.hooks import MaskingHooks
from takeup.serving.editing.masked.initial_latents import BlendingScheduler
from takeup.serving.editing.masked.tokens import TokenIndices, grids_of, token_indices, working_copy

NUM_STEPS = {"sdxl": 50, "flux": 28}
NUM_ROUNDS, MULTIPLE = 3, 32
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
        return BlendingScheduler(made, list(made.timesteps), torch.randn_like(latents), noise, mask)

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
    def stock_once_s(self, num_images: int) -> float:
        """The same, the only time."""
        begin, inputs = now_s(), self.inputs(num_images)
        self.loop(inputs, lambda step: self.predict(**inputs))
        return now_s() - begin

    @torch.no_grad()
    def record(self, inputs: dict[str, Any], keep: Keep) -> None:
        """A whole run; `keep` is given the page of every step, with room for the text where it needs some."""
        hooks = MaskingHooks(self.network, convolutions=self.name == "sdxl")

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

    @property
    def num_front(self) -> int:
        """Tokens of the text before those of the image, where both are in one sequence."""
        return 0 if self.name == "sdxl" else int(self.inputs()["encoder_hidden_states"].shape[1])

    def tokens(self, share: float) -> dict[int, int]:
        """How many are computed on every grid."""
        return {number: places.by_row.shape[1] for number, places in self.places([share]).items()}

    def places(self, shares: Sequence[float]) -> dict[int, TokenIndices]:
        """The tokens of boxes of these shares."""
        masks = [box_mask(self.size.grid, share) for _ in range(self.size.num_rows) for share in shares]
        grids = grids_of(self.size.grid, self.size.num_levels)
        return token_indices([mask.to(self.device) for mask in masks], grids, MULTIPLE)


def _scheduler(name: str, **options: Any) -> Any:
    make: Any = getattr(diffusers, name)
    return make(**options)


def bench_around(name: str, network: Any) -> Bench:
    """The loop of diffusers around a network of full size."""
    return Bench(name, FULL_SIZE[name], network, str(network.device), NUM_STEPS[name])


def tiny_bench(name: str, network: Any) -> Bench:
    """The same loop around a tiny network on the CPU."""
    made = {"sdxl": _tiny_sdxl_inputs, "flux": _tiny_flux_inputs}[name]
    full = FULL_SIZE[name]
    grid = (32, 32) if name == "sdxl" else (8, 8)
    size = FullSize(full.build, made, full.num_rows, grid, min(full.num_levels, 2))
    return Bench(name, size, network, "cpu", 4, torch.float32)


def middle_bench(name: str, num_steps: int, scale: int = 1) -> Bench:
    """Between tiny and full, for a CPU of some patience; random weights, as diffusers draws them."""
    full, where = FULL_SIZE[name], {"sdxl": _middle_sdxl, "flux": _middle_flux}
    grid = (32 * scale, 32 * scale) if name == "sdxl" else (16 * scale, 16 * scale)
    size = FullSize(where[name], partial(_middle_inputs, full, grid), full.num_rows, grid, full.num_levels)
    torch.manual_seed(0)
    network = size.build().eval().requires_grad_(False)
    return Bench(name, size, network, "cpu", num_steps, torch.float32)


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
