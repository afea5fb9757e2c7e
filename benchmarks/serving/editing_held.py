"""Edits of full-size pipelines on one accelerator as `takeup serve` makes them, and how many templates it holds.

SDXL and Flux at 1024x1024 in bfloat16 with random weights: seconds to pixels at a mask of a tenth, with one checked
step. Templates keep every N-th step; how many fit is what is free after the model is loaded, by the bytes of one.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from benchmarks.serving.editing_network import NUM_STEPS, say
from benchmarks.serving.editing_served import Served, pipeline_of
from benchmarks.support.dated import options_of, publish
from takeup.core.report import Check, Column, Report, Table
from takeup.serving.editing.templates.store import TierCapacities
from takeup.serving.server.backends.local import compute_for

STRIDES = {"sdxl": 5, "flux": 4}
BARS = {"sdxl": (0.65, 8), "flux": (1.15, 4)}
SHARE, RESERVE_BYTES = 0.1, 6 << 30


def measured(
    name: str, device: str, wait: Path | None, *, is_tiny: bool
) -> tuple[str, int, float, float, float, int, float]:
    """Stride, GiB of a template, steps and seconds to pixels, how many templates fit, the share computed."""
    pipeline = pipeline_of(name, device, is_tiny=is_tiny)
    free = torch.cuda.mem_get_info()[0] if device.startswith("cuda") else 1 << 30
    room = TierCapacities(device_bytes=free - RESERVE_BYTES, host_bytes=0) if free > RESERVE_BYTES else TierCapacities()
    stride = STRIDES[name]
    served = Served(name, pipeline, compute_for(device), room, 4 if is_tiny else NUM_STEPS[name], stride=stride)
    served.edit(SHARE)
    while wait and not wait.exists():
        time.sleep(0.1)
    edited = served.edit(SHARE)
    size = sum(served.editor.store.size_bytes.values())
    row = (name, stride, size / 2**30, edited.steps_s, edited.all_s, room.most_bytes // size, edited.computed_share)
    say(f"{name} to pixels, templates that fit", row[4:6])
    served.editor.close()
    return row


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny networks: does it run, not how fast")
    parser.add_argument("--wait", type=Path, help="prepare, and measure once this file exists")
    parser.add_argument("--only", default="sdxl,flux")
    asked = parser.parse_args()
    rows = tuple(measured(name, asked.device, asked.wait, is_tiny=asked.tiny) for name in asked.only.split(","))
    columns = (
        *(Column("network"), Column("every N steps", "", 0), Column("template", "GiB", 1), Column("steps", "s", 3)),
        *(Column("to pixels", "s", 3), Column("templates on the device", "", 0), Column("computed", "", 3)),
    )
    checks = [
        check
        for row in rows
        for check in (
            Check.at_most(f"{row[0]}, mask of a tenth, to pixels", row[4], BARS[row[0]][0], unit="s"),
            Check.at_least(f"{row[0]}, templates on the device", row[5], BARS[row[0]][1]),
        )
    ]
    report = Report(
        title="Edits with many templates on one accelerator",
        domain="serving",
        scenario={"mask": SHARE},
        seed=0,
        tables=(Table("Edits", columns, rows),),
        checks=tuple(checks),
    )
    return publish(report, "editing-held", asked)
