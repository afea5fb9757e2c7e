"""Masked edits on one accelerator beside stock networks: what `editing.py --device cuda` runs.

Pipelines of SDXL and Flux at 1024x1024 in bfloat16 with random weights (times do not depend on their values). Edits are
made by the step engine as `takeup serve` makes them, with all it does beside: tokens around the mask, tokens that are
looked at for errors. Their time is that of all steps, from entering the engine; beside it, from image, mask and prompt
to pixels. Masks are squares of the stated share of the pixels. Stock is the network of diffusers in the loop of its
inpainting pipeline, without text encoder and decoder. Templates are exact, on the device; or in pinned memory of the
host, some steps of them. The floor is the counted arithmetic of the mask alone at 790 TFLOP/s. With `--tiny` the same
on tiny networks on a CPU: does it run, not how fast.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from benchmarks.serving.editing_load import NUM_EDITS, PUBLIC_MASKS, between, drawn, mean_latency_s
from benchmarks.serving.editing_network import NUM_STEPS, Bench, bench_around, say, tiny_bench
from benchmarks.serving.editing_served import Edited, Served, pipeline_of, served
from benchmarks.serving.editing_template import Packing
from benchmarks.serving.host_link import slower_link
from benchmarks.support.dated import options_of, publish, versions
from benchmarks.support.device_fit import MeasuredStep, fitted, predicted_s
from benchmarks.support.kernel_table import choices_table
from takeup.core.report import Check, Column, Report, Table
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.execution.autotune import AUTOTUNER
from takeup.serving.diffusion.execution.executors import CudaGraphExecutor
from takeup.serving.editing.planner.cost_model import FLUX, H200, SDXL_COLUMNS
from takeup.serving.server.backends.local import compute_for

TFLOPS = 790e12
SHARES = (0.05, 0.1, 0.2, 0.35, 0.5)
SHARE = 0.1
TERA = {
    "sdxl": {1.0: 13.52, 0.05: 0.774, 0.1: 1.444, 0.2: 2.790, 0.35: 4.798, 0.5: 6.814},
    "flux": {1.0: 74.38, 0.05: 11.6, 0.1: 14.9, 0.2: 21.5, 0.35: 31.4, 0.5: 41.3},
}
NETWORKS = {"sdxl": SDXL_COLUMNS, "flux": FLUX}
BARS_S = {"sdxl": 0.6, "flux": 1.0}
NUM_MIXED, PER_BATCH = 16, 4
NUM_HOST_STEPS, NUM_HOST_ROUNDS = {"sdxl": 16, "flux": 8}, 5
NUM_LIVE = 16
LOADS = (0.5, 0.8, 0.95)
BAR_LOAD, LEAST_LATENCY, LEAST_SPEED, LEAST_RATIO, MOST_OFF = 0.8, 5.0, 3.0, 4.0, 0.1
MOST_ERROR = 0.05
BUDGETS = (MOST_ERROR, 0.2)
Row = tuple[Any, ...]


@dataclass
class Found:
    """What was measured so far, as rows of tables and as checks."""

    edits: list[Row] = field(default_factory=list)
    host_steps: list[Row] = field(default_factory=list)
    plans: list[Row] = field(default_factory=list)
    sizes: list[Row] = field(default_factory=list)
    loads: list[Row] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stock:
    """Seconds of the steps by how many images share them; mean latency of edits over time, if that was run."""

    batches_s: dict[int, float]
    over_time_s: float | None = None

    @property
    def most_hz(self) -> float:
        return PER_BATCH / self.batches_s[PER_BATCH]


def measure(
    device: str,
    parts: Sequence[str],
    *,
    is_tiny: bool = False,
    shares: Sequence[float] = SHARES,
    only_host: bool = False,
    times_slower: int = 1,
) -> Report:
    """Everything that was asked for; over a link from the host that is slower, if asked for."""
    found = Found()
    one = measure_host if only_host else measure_one
    for name in parts:
        with slower_link(times_slower):
            one(name, device, shares, found, is_tiny=is_tiny)
        gc.collect()
        torch.cuda.empty_cache()
    return report_of(found, device, times_slower)


@torch.no_grad()
def measure_one(name: str, device: str, shares: Sequence[float], found: Found, *, is_tiny: bool) -> None:
    """One pipeline: stock, sizes of templates, edits of all sizes, and for SDXL many edits at once and over time."""
    pipeline = pipeline_of(name, device, is_tiny=is_tiny)
    network = family_of(pipeline).network
    bench = tiny_bench(name, network) if is_tiny else bench_around(name, network)
    num_steps = 4 if is_tiny else NUM_STEPS[name]
    stock_s = bench.stock_s()
    say(f"{name} stock", f"{stock_s:.3f} s")
    found.edits.append((name, "stock", 1.0, 1.0, stock_s, None, floor_s(name, num_steps, 1.0), 1.0, None))
    stock = stock_of_many(bench, stock_s) if name == "sdxl" else Stock({1: stock_s})
    judge_packing(name, packed(bench), found)
    compute: Any = CudaGraphExecutor() if is_tiny else compute_for(network.device)
    near = from_device(name, pipeline, compute, num_steps, shares, stock, found)
    gc.collect()  # templates on the device
    torch.cuda.empty_cache()
    far, num_bytes = from_host(name, pipeline, compute, min(NUM_HOST_STEPS[name], num_steps), shares, found)
    judge_plans(name, near, far, num_bytes, found)


@torch.no_grad()
def measure_host(name: str, device: str, shares: Sequence[float], found: Found, *, is_tiny: bool) -> None:
    """Of a pipeline only edits with templates in memory of the host."""
    pipeline = pipeline_of(name, device, is_tiny=is_tiny)
    compute: Any = CudaGraphExecutor() if is_tiny else compute_for(family_of(pipeline).network.device)
    from_host(name, pipeline, compute, 4 if is_tiny else NUM_HOST_STEPS[name], shares, found)


def stock_of_many(bench: Bench, stock_s: float) -> Stock:
    """Batches, and edits that arrive over time: each batch of them is run."""
    stock = Stock({1: stock_s, **{num: bench.stock_s(num, 1) for num in (2, PER_BATCH)}})
    arrivals = drawn(BAR_LOAD * stock.most_hz, NUM_LIVE)
    latency_s = mean_latency_s(*arrivals, lambda masks: bench.stock_once_s(len(masks)), PER_BATCH)
    say(f"stock, {NUM_LIVE} edits over {arrivals[0][-1]:.0f} s", f"{latency_s:.3f} s of mean latency")
    return Stock(stock.batches_s, latency_s)


def from_device(
    name: str,
    pipeline: Any,
    compute: CudaGraphExecutor,
    num_steps: int,
    shares: Sequence[float],
    stock: Stock,
    found: Found,
) -> Steps:
    """Edits from a template on the device; many at once, if stock was measured with many."""
    with served(name, pipeline, compute, num_steps) as near:
        made = edits(name, near, shares, stock.batches_s[1], found)
        judge_edit(name, num_steps, made[SHARE], found)
        if stock.over_time_s is not None:
            judge_mixed(near, stock, found)
            judge_over_time(near, stock, found)
            judge_virtual_time(stock, {share: one.steps_s for share, one in made.items()}, found)
    return Steps(made, num_steps)


def from_host(
    name: str, pipeline: Any, compute: CudaGraphExecutor, num_steps: int, shares: Sequence[float], found: Found
) -> tuple[Steps, float]:
    """Edits from a template in memory of the host, and bytes of a page of it."""
    with served(name, pipeline, compute, num_steps, on_host=True) as far:
        kept = Steps({share: far.edit(share, NUM_HOST_ROUNDS) for share in shares}, num_steps)
        for share in shares:
            say(f"{name} from the host, mask {share}", f"{1e3 * kept.step_s(share):.2f} ms")
            found.host_steps.append((name, share, 1e3 * kept.step_s(share)))
        return kept, far.page_bytes()


# Templates ------------------------------------------------------------------------------------------------------------


def packed(bench: Bench) -> Packing:
    """Keys and values of a whole run, in some budgets."""
    packing = Packing(bench.num_front, budgets=BUDGETS)
    bench.record(bench.inputs(), lambda _step, page: packing.add(page))
    return packing


def judge_packing(name: str, packing: Packing, found: Found) -> None:
    """Sizes at stated errors; among the small enough the one with the least error."""
    for budget in BUDGETS:
        errors = packing.usual(budget), packing.worst(budget)
        found.sizes.append((name, budget, packing.raw_bytes / 2**30, packing.ratio(budget), *errors))
        say(f"{name} packed, budget {budget}", f"{packing.ratio(budget):.2f} times smaller, errors {errors}")
    small = next((budget for budget in BUDGETS if packing.ratio(budget) >= LEAST_RATIO), BUDGETS[-1])
    label = f"{name}, times smaller than keys and values, error {packing.usual(small):.3f} (worst tensor"
    found.checks.append(
        Check.at_least(f"{label} {packing.worst(small):.3f})", packing.ratio(small), LEAST_RATIO, unit="x")
    )
    label = f"{name}, the same with no tensor off by more than {MOST_ERROR:g}"
    found.checks.append(Check.at_least(label, packing.ratio(MOST_ERROR), LEAST_RATIO, unit="x"))


# Edits of one image ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Steps:
    """Edits by their share of the image, and how many steps each had."""

    edits: dict[float, Edited]
    num_steps: int

    def step_s(self, share: float) -> float:
        return self.edits[share].steps_s / self.num_steps


def edits(name: str, near: Served, shares: Sequence[float], stock_s: float, found: Found) -> dict[float, Edited]:
    """Edits from a template on the device."""
    made = {}
    for share in shares:
        one = made[share] = near.edit(share)
        floor, ratio = floor_s(name, near.num_steps, share), stock_s / one.steps_s
        row = name, "ours", share, one.computed_share, one.steps_s, one.all_s, floor, ratio, one.error
        found.edits.append(row)
        say(f"{name} {share}", f"{one}, stock / ours {ratio:.2f}")
    return made


def judge_edit(name: str, num_steps: int, edit: Edited, found: Found) -> None:
    label = f"{name}, {num_steps} steps, mask of a tenth"
    found.checks.append(Check.at_most(label, edit.steps_s, BARS_S[name], unit="s"))


def judge_plans(name: str, near: Steps, far: Steps, num_bytes: float, found: Found) -> None:
    """Steps of every mask beside what is predicted from those of all other masks."""
    network, measured = NETWORKS[name], measured_steps(name, near, far, num_bytes)
    worst = 0.0
    for share, where, step in sorted(measured, key=itemgetter(0, 1)):
        device = fitted(network, [one for other, _, one in measured if other != share], H200)
        predicted = predicted_s(network, step.mask, device, step.page_bytes, step.num_steps)
        off = abs(predicted / step.step_s - 1)
        worst = max(worst, off)
        found.plans.append((name, share, where, 1e3 * predicted, 1e3 * step.step_s, off))
    say(f"{name} fitted", fitted(network, [one for _, _, one in measured], H200))
    found.checks.append(Check.at_most(f"{name}, steps off their predictions", worst, MOST_OFF))


def measured_steps(name: str, near: Steps, far: Steps, num_bytes: float) -> list[tuple[float, str, MeasuredStep]]:
    """Of each mask and each place of the template. The grids of tiny networks are not those that the planner knows."""
    grid = NETWORKS[name].num_tokens
    return [
        (share, where, MeasuredStep(one.mask_on(grid), steps.step_s(share), size, steps.num_steps))
        for where, steps, size in (("device", near, 0.0), ("host", far, num_bytes))
        for share, one in steps.edits.items()
    ]


# Many edits -----------------------------------------------------------------------------------------------------------


def judge_mixed(near: Served, stock: Stock, found: Found) -> None:
    """Images per second with masks of the public trace."""
    shares = np.random.default_rng(1).beta(*PUBLIC_MASKS, NUM_MIXED).tolist()
    ours, alone = NUM_MIXED / near.mixed_s(shares), 1 / stock.batches_s[1]
    say("mixed", f"{ours:.3f} images/s, stock {stock.most_hz:.3f} in batches, {alone:.3f} one by one")
    for label, theirs in ((f"in batches of {PER_BATCH}", stock.most_hz), ("one by one", alone)):
        check = f"images per second with mixed masks ({ours:.2f}), times stock {label} ({theirs:.2f})"
        found.checks.append(Check.at_least(check, ours / theirs, LEAST_SPEED, unit="x"))


def judge_over_time(near: Served, stock: Stock, found: Found) -> None:
    """Edits that arrive while others are made; at first calls of their sizes are unknown, then they are recorded."""
    rate = BAR_LOAD * stock.most_hz
    for label in ("at first", "again"):
        ours_s = near.over_time_s(*drawn(rate, NUM_LIVE))
        say(f"{NUM_LIVE} edits over time, {label}", f"{ours_s:.3f} s of mean latency, to pixels")
        assert stock.over_time_s is not None
        ratio = stock.over_time_s / ours_s
        found.loads.append((f"{NUM_LIVE}, run, {label}", BAR_LOAD, rate, stock.over_time_s, ours_s, ratio))
    label = f"mean latency of stock to ours, {NUM_LIVE} edits at {BAR_LOAD:.0%} of what stock can do, run"
    found.checks.append(Check.at_least(label, ratio, LEAST_LATENCY, unit="x"))


def judge_virtual_time(stock: Stock, edit_s: dict[float, float], found: Found) -> None:
    """Many more edits, from the seconds that were measured."""
    edit_s = {**edit_s, 1.0: stock.batches_s[1]}
    batches_s = {float(num): seconds for num, seconds in stock.batches_s.items()}
    for load in LOADS:
        arrivals = drawn(load * stock.most_hz)
        theirs = mean_latency_s(*arrivals, lambda masks: between(batches_s, len(masks)), PER_BATCH)
        alone = mean_latency_s(*arrivals, lambda masks: between(edit_s, masks[0]), 1)
        found.loads.append((f"{NUM_EDITS}, virtual", load, load * stock.most_hz, theirs, alone, theirs / alone))
        if load == BAR_LOAD:
            label = f"the same, {NUM_EDITS} edits in virtual time"
            found.checks.append(Check.at_least(label, theirs / alone, LEAST_LATENCY, unit="x"))


# Reports --------------------------------------------------------------------------------------------------------------


def floor_s(name: str, num_steps: int, share: float) -> float:
    return num_steps * TERA[name][share] * 1e12 / TFLOPS


def report_of(found: Found, device: str, times_slower: int = 1) -> Report:
    edit = partial(Column, unit="s", digits=3)
    tables = (
        Table(
            "Edits of one image",
            (
                Column("network"),
                Column("how"),
                Column("mask", "", 2),
                Column("computed", "", 3),
                edit("steps"),
                edit("to pixels"),
                edit("floor"),
                Column("stock / ours", "x"),
                Column("stale", "", 3),
            ),
            tuple(found.edits),
            "stale: how far tokens outside the mask were from the template, which random weights make no more of",
        ),
        Table(
            "Steps with templates on the host",
            (
                Column("network"),
                Column("mask", "", 2),
                Column("step", "ms", 2),
            ),
            tuple(found.host_steps),
        ),
        Table(
            "Steps, predicted and measured",
            (
                Column("network"),
                Column("mask", "", 2),
                Column("template on the"),
                Column("predicted", "ms", 2),
                Column("measured", "ms", 2),
                Column("off", "", 3),
            ),
            tuple(found.plans),
            "each predicted from steps of all other masks; from the host: of a short edit, with its start",
        ),
        Table(
            "Keys and values of a run, packed",
            (
                Column("network"),
                Column("budget", "", 2),
                Column("raw", "GiB", 1),
                Column("smaller", "x", 2),
                Column("error", "", 4),
                Column("worst tensor", "", 4),
            ),
            tuple(found.sizes),
        ),
        Table(
            "SDXL over time, masks of the public trace",
            (
                Column("edits"),
                Column("load", "", 2),
                Column("rate", "1/s", 3),
                edit("stock"),
                edit("ours"),
                Column("stock / ours", "x"),
            ),
            tuple(found.loads),
            "mean latencies, stock in batches of up to four. Run: each batch of stock; ours as they come, from arrival "
            "to pixels. Virtual: from the seconds of steps above, ours one by one",
        ),
        choices_table(AUTOTUNER.made),
    )
    name = torch.cuda.get_device_name() if device == "cuda" else "no accelerator"
    notes: tuple[str, ...] = (
        f"{name}; {versions(('torch', 'diffusers'))}",
        "masks are squares; mixed masks are drawn from a beta distribution with the mean of the public trace, 0.19",
        f"mixed: {NUM_MIXED} edits at once, at most {PER_BATCH} in a call, as the engine groups them",
        "errors of packing: root mean square relative to the tensor, the mean and the worst of all tensors and steps",
        "random weights: seconds do not depend on them, errors may",
    )
    if times_slower > 1:
        notes += (f"everything came from the host {times_slower} times, as over a link that is slower by as much",)
    scenario = {"domain": "serving", "benchmark": "editing", "device": device, "times_slower": times_slower}
    filled = tuple(one for one in tables if one.rows)
    return Report("Masked edits on an accelerator", "serving", scenario, 1, filled, (), tuple(found.checks), notes)


def main() -> int:
    """The same as `editing.py --device cuda`, for some networks, or on tiny ones."""
    parser = options_of(__doc__)
    parser.add_argument("--networks", default="flux,sdxl", metavar="A,B", help="of flux, sdxl")
    parser.add_argument("--tiny", action="store_true", help="tiny networks on a CPU: does it run, not how fast")
    options = parser.parse_args()
    device, networks = "cpu" if options.tiny else "cuda", options.networks.split(",")
    return publish(measure(device, networks, is_tiny=options.tiny), "editing_gpu", options)
