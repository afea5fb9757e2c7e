"""Designs to compare, with their costs on one H800: published measurements of SDXL at 1024x1024 in 50 steps.

"Katz: Efficient Workflow Serving for Diffusion Models with Many Adapters", USENIX ATC 2025, and the logs of its
artefact. There twice as many rows take twice as long on every GPU, so batching alone gains nothing. `takeup` has the
same call times as `diffusers` here: all its gains come from batching, cache-aware routing and overlapped LoRA loads.

    diffusers   one request at a time; LoRAs are loaded and fused before the first step, ControlNets run one by one
    static      the same, with static batching of requests with identical settings and add-ons
    nirvana     the same as diffusers; a fifth of the steps is replaced by a cached image, looked up in 0.35 s
    katz        eight GPUs per request: guidance branches and ControlNets in parallel, LoRAs loaded while denoising
    takeup      continuous batching, unmerged LoRAs (sidecar) loaded while denoising, cache-affinity routing
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from takeup.errors import BadInput, BadScenario, UnknownName
from takeup.serving.experiment.measured import counts_of, measured_design
from takeup.serving.policies.lateness import FEW_STEPS
from takeup.serving.traffic import Design, RowCosts

NUM_STEPS = 50
PAGE = "# HELP"
STEP = RowCosts(((2, 2.88 / NUM_STEPS),))
CONTROL = RowCosts(((2, (4.54 - 0.28 - 2.88) / NUM_STEPS),))
STOCK = Design("diffusers", STEP, CONTROL, switch_s=0.28, patch_s=2.85)

DESIGNS: dict[str, Design] = {
    "diffusers": STOCK,
    "static": replace(STOCK, name="static", max_running=8, joins="empty"),
    "nirvana": replace(STOCK, name="nirvana", skipped_share=0.2, around_s=0.35),
    "katz": Design(
        "katz",
        RowCosts(((2, 1.71 / NUM_STEPS),)),
        gpus_per_instance=8,
        parallel_loads=True,
        late_share=0.2,
        few_steps=FEW_STEPS,
        patch_s=0.12,
    ),
    "takeup": Design(
        "takeup",
        STEP,
        CONTROL,
        max_running=2,
        mixes_loras=True,
        sidecar_share=0.077,
        parallel_loads=True,
        late_share=0.2,
        few_steps=FEW_STEPS,
    ),
}


def design_of(name: str, *, max_running: int | None = None, costs: str | None = None) -> Design:
    """The design of this name; `costs` is a file with measured seconds, applied to single-GPU designs.

    The file is a TOML table of seconds by rows, or the Prometheus metrics page of a running server.
    """
    if name not in DESIGNS:
        raise UnknownName("design", name, DESIGNS)
    design = DESIGNS[name]
    if costs is not None and design.gpus_per_instance == 1:
        design = replace(design, **_measured(Path(costs)))
    return design if max_running is None or design.max_running == 1 else replace(design, max_running=max_running)


def _measured(path: Path) -> dict[str, Any]:
    """Measured fields of a design; a TOML table has `step` and optionally `control` as lists of [rows, seconds]."""
    try:
        text = path.read_text(encoding="utf-8")
        if text.startswith(PAGE):
            told = measured_design(counts_of(text))
            return {name: getattr(told, name) for name in ("step", "before_s", "after_s", "contention_share")}
        values = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise BadScenario(f"cannot read costs {path}: {problem}; give a .toml file with 'step = [[2, 0.04]]'") from None
    if "step" not in values:
        raise BadScenario(f"{path} has no key 'step'; add the seconds of a step by rows, such as 'step = [[2, 0.04]]'")
    return {name: _row_costs(path, name, values) for name in ("step", "control") if name in values}


def _row_costs(path: Path, name: str, values: Mapping[str, Any]) -> RowCosts:
    try:
        return RowCosts(tuple((int(rows), float(seconds)) for rows, seconds in values[name]))
    except (TypeError, ValueError, BadInput) as problem:
        raise BadScenario(f"{path}: the key {name!r} is no list of [rows, seconds] with rising rows") from problem
