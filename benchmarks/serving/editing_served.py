"""Masked edits through the step engine, as `takeup serve` makes them; whole pipelines of full size, random weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from queue import SimpleQueue
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.serving.editing_network import now_s, say
from benchmarks.serving.models import full_clip, full_parts, full_vae, made_on
from benchmarks.support.full_size import FULL_SIZE
from takeup.serving.diffusion.contract import DenoisingRun
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine, Ticket
from takeup.serving.diffusion.engine.tiny import _clip_tokenizer, _euler, _t5_tokenizer, build
from takeup.serving.diffusion.execution.executors import Executor
from takeup.serving.diffusion.policies import MaskGrouping
from takeup.serving.editing.contract import EditRequest
from takeup.serving.editing.masked.edit_state import active_edit
from takeup.serving.editing.masked.editor import MaskedEditor, report_of
from takeup.serving.editing.masked.tokens import MAP
from takeup.serving.editing.planner.cost_model import Mask
from takeup.serving.editing.templates.store import TemplateStore, TierCapacities
from takeup.serving.model import Request
from takeup.serving.scheduling.adapters import AdapterLERC
from takeup.serving.server.backends.local import binds_edits

ROOM_BYTES = 100 << 30
NUM_ROUNDS, FIRST_SHARE = 3, 0.01
GUIDANCE = {"sdxl": 5.0, "flux": 3.5}


# Pipelines ------------------------------------------------------------------------------------------------------------


def pipeline_of(name: str, device: str, *, is_tiny: bool) -> Any:
    """Of SDXL or Flux, for 1024x1024 in bfloat16; or a tiny one. Text encoders of Flux have one layer."""
    if is_tiny:
        return build(f"takeup/tiny-{name}").to(device)
    torch.manual_seed(0)
    made = {"sdxl": _full_sdxl, "flux": _full_flux}[name](device)
    made.set_progress_bar_config(disable=True)
    return made


def _full_sdxl(device: str) -> Any:
    diffusers = import_module("diffusers")
    with made_on(device, torch.bfloat16):
        parts = full_parts(diffusers)
    return diffusers.StableDiffusionXLPipeline(**parts, scheduler=_euler())


def _full_flux(device: str) -> Any:
    diffusers, transformers = import_module("diffusers"), import_module("transformers")
    tokenizer, t5_tokenizer = _clip_tokenizer(), _t5_tokenizer()
    config = transformers.T5Config(d_model=4096, d_ff=64, num_layers=1, num_heads=1, vocab_size=len(t5_tokenizer))
    with made_on(device, torch.bfloat16):
        text = full_clip(tokenizer, "CLIPTextModel", 768, 1, 12, "quick_gelu")
        text_2 = transformers.T5EncoderModel(config).eval().requires_grad_(False)
        plain = {"use_quant_conv": False, "use_post_quant_conv": False}
        vae = full_vae(latent_channels=16, scaling_factor=0.3611, shift_factor=0.1159, **plain)
    return diffusers.FluxPipeline(
        text_encoder=text,
        tokenizer=tokenizer,
        text_encoder_2=text_2,
        tokenizer_2=t5_tokenizer,
        transformer=FULL_SIZE["flux"].network(device),
        vae=vae,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
    )


# The engine -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Edited:
    """Seconds of the steps of an edit, and from image, mask and prompt to pixels; what was computed, how stale.

    `tokens`: how many were computed, by the size of the grid.
    """

    steps_s: float
    all_s: float
    tokens: dict[int, int]
    computed_share: float
    error: float | None

    def mask_on(self, num_tokens: int) -> Mask:
        """Tokens on every grid for a planner who knows a grid of this size, to others the share of all."""
        return self.tokens if num_tokens in self.tokens else self.computed_share


class Served:
    """An engine with an editor around a pipeline, whose first edit filled the template."""

    def __init__(
        self,
        name: str,
        pipeline: Any,
        compute: Executor,
        room: TierCapacities,
        num_steps: int,
        stride: int = 1,
    ) -> None:
        family = family_of(pipeline)
        self.num_steps, self.size_px = num_steps, 1024 if family.network.device.type == "cuda" else 64
        store = TemplateStore(AdapterLERC, room, device=family.network.device)
        self.editor = MaskedEditor(family, store, binds=binds_edits(compute, family), stride=stride)
        self.engine = StepEngine(
            pipeline, add_ons=self.editor.add_ons, compute=compute, group=MaskGrouping(8 if name == "sdxl" else 4)
        )
        drawn = np.random.default_rng(0).integers(0, 256, (self.size_px, self.size_px, 3), dtype=np.uint8)
        self.image = Image.fromarray(drawn)
        self.request = Request("a red hat", num_steps=num_steps, guidance=GUIDANCE[name], seed=1)
        self.steps_s([FIRST_SHARE])

    def edit(self, share: float, num_rounds: int = NUM_ROUNDS) -> Edited:
        """The median of some rounds, after one that records."""
        self._timed(share)
        rounds = [self._timed(share) for _ in range(num_rounds)]
        return sorted(rounds, key=lambda one: one.steps_s)[num_rounds // 2]

    def steps_s(self, shares: Sequence[float]) -> float:
        """Seconds until the steps of edits with these masks are done, all of which come at once."""
        asked = [EditRequest(self.image, square(self.size_px, share)) for share in shares]
        runs = [self.editor.prepare(self.request, edit) for edit in asked]
        begin = now_s()
        tickets = [self.engine.enter(run) for run in runs]
        self.engine.run()
        spent_s = now_s() - begin
        for ticket in tickets:
            ticket.result()
        return spent_s

    def mixed_s(self, shares: Sequence[float]) -> float:
        """The median of rounds of edits that come at once, after one that records."""
        self.steps_s(shares)
        return median(self.steps_s(shares) for _ in range(NUM_ROUNDS))

    def over_time_s(self, arrivals_s: Sequence[float], shares: Sequence[float]) -> float:
        """Mean seconds from arrival to pixels of edits that arrive over time; threads as those of `takeup serve`."""
        is_over = threading.Event()
        loop = threading.Thread(target=self.engine.run, args=(is_over.is_set,))
        loop.start()
        try:
            with ThreadPoolExecutor(2) as before, ThreadPoolExecutor(2) as after:
                ended: SimpleQueue[Future[float]] = SimpleQueue()
                begin, begun = now_s(), []
                for arrival_s, share in zip(arrivals_s, shares, strict=True):
                    time.sleep(max(0.0, begin + arrival_s - time.perf_counter()))
                    begun.append(before.submit(self._begin, share, after, ended))
                for one in begun:
                    one.result()
                return mean(ended.get().result() for _ in begun) - begin - mean(arrivals_s)
        finally:
            is_over.set()
            loop.join()

    def _begin(self, share: float, after: ThreadPoolExecutor, ended: SimpleQueue[Future[float]]) -> None:
        edit = EditRequest(self.image, square(self.size_px, share))
        ticket = self.engine.enter(self.editor.prepare(self.request, edit))
        ticket.finished.add_done_callback(lambda _: ended.put(after.submit(self._pixels_at, edit, ticket)))

    def _pixels_at(self, edit: EditRequest, ticket: Ticket) -> float:
        self.editor.finish(edit, self.engine.image(ticket)).cpu()
        return time.perf_counter()

    def _timed(self, share: float) -> Edited:
        edit, begin = EditRequest(self.image, square(self.size_px, share)), now_s()
        run = self.editor.prepare(self.request, edit)
        before = now_s()
        ticket = self.engine.enter(run)
        self.engine.run()
        after = now_s()
        self.editor.finish(edit, self.engine.image(ticket))
        report = report_of(ticket.result())
        return Edited(after - before, now_s() - begin, self._tokens(run), report.computed_share, report.error)

    def page_bytes(self) -> float:
        """Keys and values of a step, and what else an edit loads whole."""
        run = self.editor.prepare(self.request, EditRequest(self.image, square(self.size_px, FIRST_SHARE)))
        found = active_edit(run).found
        assert found is not None
        page = found.pages[0]
        return sum(one.size_bytes for name, one in page.items() if not name.endswith(MAP))

    def _tokens(self, run: DenoisingRun) -> dict[int, int]:
        places = self.editor.edits.layouts.of([run]).places
        return {number: rows.by_row.shape[1] for number, rows in places.items()}


@contextmanager
def served(name: str, pipeline: Any, compute: Executor, num_steps: int, *, on_host: bool = False) -> Iterator[Served]:
    """With templates on the device, or in memory of the host."""
    room = TierCapacities(host_bytes=ROOM_BYTES) if on_host else TierCapacities(device_bytes=ROOM_BYTES, host_bytes=0)
    begin = now_s()
    made = Served(name, pipeline, compute, room, num_steps)
    say(f"{name}, first edit of {num_steps} steps, which fills the template", f"{now_s() - begin:.1f} s")
    try:
        yield made
    finally:
        made.editor.close()


def square(size_px: int, share: float) -> Any:
    """A mask that covers this share of the image, an eighth from the left and from the top."""
    mask = np.zeros((size_px, size_px), np.float32)
    side, first = round(size_px * share**0.5), size_px // 8
    mask[first : first + side, first : first + side] = 1
    return mask
