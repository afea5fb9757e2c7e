"""Designs to compare, with their costs on one H800: published measurements of SDXL at 1024x1024 in 50 steps.

"Katz: Efficient Workflow Serving for Diffusion Models with Many Adapters", USENIX ATC 2025, and the logs of its
artefact. There twice as many rows take twice as long on every GPU, so batching alone gains nothing. `takeup` has the
same call times as `diffusers` here: all its gains come from batching, cache-aware routing and overlapped LoRA loads.

    diffusers       one request at a time; LoRAs are loaded and fused before the first step, ControlNets run one by one
    static          the same, with static batching of requests with identical settings and add-ons
    nirvana         as diffusers; a fifth of the steps is replaced by a cached image, looked up in 0.35 s
    swiftdiffusion  eight GPUs per request: guidance branches and ControlNets in parallel, LoRAs load while denoising
    takeup          continuous batching, LoRAs load while denoising and are merged in turn, cache-affinity routing
"""

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from takeup.errors import BadInput, BadScenario, UnknownName
from takeup.serving.model import Design, RowCosts
from takeup.serving.scheduling.adapters import FEW_STEPS

# Calibrate a simulator design from the Prometheus metrics page of a running server ------------------------------------
#
# Step costs are the mean durations of step-loop iterations that ran *alone*. The contention share is the extra time of
# *shared* iterations per second of concurrent prepare and finish work.

PREFIX = "takeup_serving_"
FEW_TURNS = 5
Counts = Counter[tuple[str, ...]]
"""Counts and seconds by name and labels. Two pages can be subtracted: what happened between them."""


def counts_of(page: str) -> Counts:
    """All counters with the prefix `takeup_serving_` on a metrics page."""
    families: Any = import_module("prometheus_client.parser").text_string_to_metric_families(page)
    counts: Counts = Counter()
    for sample in (sample for family in families for sample in family.samples):
        if sample.name.startswith(PREFIX) and sample.name.endswith("_total"):
            name = sample.name.removeprefix(PREFIX).removesuffix("_total")
            counts[name, *(sample.labels[label] for label in sorted(sample.labels, reverse=True))] = sample.value
    return counts


def measured_design(counts: Counts, name: str = "server", max_running: int = 16) -> Design:
    """A simulator design with the costs that the server measured."""
    alone_s = {rows: _mean(counts, rows, "alone") for rows in _rows(counts, "alone")}
    if not alone_s:
        raise BadScenario("the metrics have no turns of the step loop alone; let the server make some images first")
    return Design(
        name,
        RowCosts(tuple(sorted(alone_s.items()))),
        max_running=max_running,
        before_s=counts[("prepare_seconds",)] / max(1, counts[("prepare_calls",)]),
        after_s=counts[("finish_seconds",)] / max(1, counts[("finish_calls",)]),
        contention_share=_contention_share(counts, RowCosts(tuple(sorted(alone_s.items())))),
    )


def _contention_share(counts: Counts, alone: RowCosts) -> float:
    """Extra seconds of loop iterations per second of concurrent work."""
    shared = _rows(counts, "shared", least=1)
    longer_s = sum(
        counts["turn_seconds", str(rows), "shared"] - counts["turns", str(rows), "shared"] * alone(rows)
        for rows in shared
    )
    return max(0.0, longer_s / counts[("beside_seconds",)]) if counts[("beside_seconds",)] else 0.0


def _rows(counts: Counts, company: str, least: int = FEW_TURNS) -> list[int]:
    """The batch sizes, in rows, with at least `least` measured iterations."""
    return [int(key[1]) for key, number in counts.items() if key[::2] == ("turns", company) and number >= least]


def _mean(counts: Counts, rows: int, company: str) -> float:
    return counts["turn_seconds", str(rows), company] / counts["turns", str(rows), company]


NUM_STEPS = 50
PAGE = "# HELP"
STEP = RowCosts(((2, 2.88 / NUM_STEPS),))
CONTROL = RowCosts(((2, (4.54 - 0.28 - 2.88) / NUM_STEPS),))
STOCK = Design("diffusers", STEP, CONTROL, switch_s=0.28, patch_s=2.85)

DESIGNS: dict[str, Design] = {
    "diffusers": STOCK,
    "static": replace(STOCK, name="static", max_running=8, joins="empty"),
    "nirvana": replace(STOCK, name="nirvana", skipped_share=0.2, around_s=0.35),
    "swiftdiffusion": Design(
        "swiftdiffusion",
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
        merge_s=7.7e-3,
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
    except (OSError, ValueError, ArithmeticError, RecursionError) as problem:
        raise BadScenario(f"cannot read costs {path}: {problem}; give a .toml file with 'step = [[2, 0.04]]'") from None
    if "step" not in values:
        raise BadScenario(f"{path} has no key 'step'; add the seconds of a step by rows, such as 'step = [[2, 0.04]]'")
    return {name: _row_costs(path, name, values) for name in ("step", "control") if name in values}


def _row_costs(path: Path, name: str, values: Mapping[str, Any]) -> RowCosts:
    try:
        return RowCosts(tuple((int(rows), float(seconds)) for rows, seconds in values[name]))
    except (TypeError, ValueError, OverflowError, BadInput) as problem:
        raise BadScenario(f"{path}: the key {name!r} is no list of [rows, seconds] with rising rows") from problem
