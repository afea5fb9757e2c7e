"""Masked edits through the step engine, as `takeup serve` makes them: whole pipelines of full size, random weights."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from editing_bench import now_s, say, seconds_of
from PIL import Image
from serving_models import build_models

from takeup.core.lazy import load
from takeup.serving.engines.diffusers.families import family_of
from takeup.serving.engines.diffusers.masked.asked import Edit
from takeup.serving.engines.diffusers.masked.editor import POLICY, MaskedEditor, report_of
from takeup.serving.engines.diffusers.placement import binds_edits, compute_for
from takeup.serving.engines.diffusers.steps import StepEngine
from takeup.serving.engines.diffusers.tickets import Ticket
from takeup.serving.engines.templates.store import Room, TemplateStore
from takeup.serving.model import Request

__all__ = ["Served", "engine_rows"]

ROOM_BYTES = 100 << 30
Row = tuple[Any, ...]


def square(size_px: int, share: float) -> Any:
    """A mask that covers this share of the image, a quarter from the left and from the top."""
    mask = np.zeros((size_px, size_px), np.float32)
    side, first = round(size_px * share**0.5), size_px // 8
    mask[first : first + side, first : first + side] = 1
    return mask


class Served:
    """An engine with an editor around a pipeline, whose first edit filled the template."""

    def __init__(self, pipeline: Any, size_px: int, num_steps: int, guidance: float) -> None:
        family = family_of(pipeline)
        compute = compute_for(family.network.device)
        store = TemplateStore(load(POLICY), Room(device_bytes=ROOM_BYTES), device=family.network.device)
        self.binds, self.size_px = binds_edits(compute, family), size_px
        self.editor = MaskedEditor(family, store, binds=self.binds)
        self.engine = StepEngine(pipeline, add_ons=self.editor.add_ons, compute=compute)
        drawn = np.random.default_rng(0).integers(0, 256, (size_px, size_px, 3), dtype=np.uint8)
        self.image = Image.fromarray(drawn)
        self.request = Request("a red hat", num_steps=num_steps, guidance=guidance, seed=1)

    def edit(self, share: float) -> tuple[float, Ticket]:
        """Seconds of the steps of an edit."""
        run = self.editor.prepare(self.request, Edit(self.image, square(self.size_px, share)))
        begin = now_s()
        ticket = self.engine.enter(run)
        self.engine.run()
        return now_s() - begin, ticket

    def whole_s(self, share: float) -> float:
        """Seconds from image, mask and prompt to pixels."""
        edit = Edit(self.image, square(self.size_px, share))

        def act() -> None:
            ticket = self.engine.enter(self.editor.prepare(self.request, edit))
            self.engine.run()
            self.editor.finish(edit, self.engine.image(ticket))

        return seconds_of(act)


@torch.no_grad()
def stock_s(pipeline: Any, served: Served, share: float) -> float:
    """The inpainting pipeline of diffusers over the same networks, to latents."""
    mask = Image.fromarray((square(served.size_px, share) * 255).astype(np.uint8))
    options = {"image": served.image, "mask_image": mask, "strength": 1.0, "output_type": "latent"}
    options |= {"num_inference_steps": served.request.num_steps, "guidance_scale": served.request.guidance}
    sizes = {"height": served.size_px, "width": served.size_px}
    return seconds_of(lambda: pipeline("a red hat", **options, **sizes), 1)


def engine_rows(device: str, shares: Sequence[float], is_tiny: bool) -> list[Row]:
    models = build_models(device, is_tiny)
    pipeline = models.plain
    served = Served(pipeline, models.size_px, 4 if is_tiny else 50, 5.0)
    say("binds", served.binds)
    begin = now_s()
    _, ticket = served.edit(0.01)
    say("first edit, which fills the template", f"{now_s() - begin:.2f} s")
    rows = []
    for share in shares:
        begin = now_s()
        served.edit(share)
        say(f"first masked edit of {share}", f"{now_s() - begin:.2f} s")
        times = [served.edit(share) for _ in range(3)]
        loop_s, report = sorted(one for one, _ in times)[1], report_of(times[0][1].result())
        say(f"mask {share}", f"{loop_s:.3f} s, computed {report.computed_share:.3f}, stale {report.stale_error}")
        rows.append(("sdxl", share, report.computed_share, loop_s, served.whole_s(share), report.stale_error))
        say("whole", f"{rows[-1][4]:.3f} s")
    return rows


if __name__ == "__main__":
    import sys

    is_tiny = "--tiny" in sys.argv
    print(engine_rows("cpu" if is_tiny else "cuda", (0.1,), is_tiny))
