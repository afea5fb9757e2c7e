"""Masked edits on one accelerator beside stock networks: `python benchmarks/editing_gpu.py [--part table]`.

The part `table`, all of it, is what `editing.py --device cuda` runs; `ways` compares ways to compute an edit, `profile`
says where a step's time goes (see editing_ways.py).

Networks of SDXL and Flux at 1024x1024 in bfloat16 with random weights (times do not depend on their values). One edit:
all steps of the denoising loop with the scheduler and the blending of diffusers, without text encoder and decoder.
Masks are boxes of exactly the stated share. Stock is the network of diffusers called as its pipelines call it.
Templates are recorded by a whole run in the same process, in eight bits, a page for every step; from the device, or
four pages in turn from pinned memory of the host. The floor is the counted arithmetic at 790 TFLOP/s. With `--tiny`
the same on tiny networks and any device: does it run, not how fast.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from dated import options_of, publish, versions
from editing_bench import Bench, Page, full_bench, now_s, say, tiny_bench
from editing_load import PUBLIC_MASKS, between, drawn, mean_latency_s
from editing_template import BUDGETS, Packing
from editing_ways import EDIT_WAYS, profile_tables, ways_table
from kernel_table import Limit, choices_table

from takeup.core.report import Check, Column, Report, Table
from takeup.serving.engines.diffusers.device.choices import CHOICES
from takeup.serving.engines.diffusers.masked.ahead import pinned
from takeup.serving.policies.masks import FLUX, H200, SDXL_COLUMNS
from takeup.serving.policies.plan_fits import MeasuredStep, fitted, predicted_s

__all__ = ["measure"]

TFLOPS = 790e12
SHARES = (0.05, 0.1, 0.2, 0.35, 0.5)
TERA = {
    "sdxl": {1.0: 13.52, 0.05: 0.774, 0.1: 1.444, 0.2: 2.790, 0.35: 4.798, 0.5: 6.814},
    "flux": {1.0: 74.38, 0.05: 11.6, 0.1: 14.9, 0.2: 21.5, 0.35: 31.4, 0.5: 41.3},
}
NETWORKS = {"sdxl": SDXL_COLUMNS, "flux": FLUX}
BARS_S = {"sdxl": 0.6, "flux": 1.0}
NUM_MIXED, PER_BATCH, NUM_HOST_PAGES = 16, 4, 4
LOADS = (0.5, 0.8, 0.95)
BAR_LOAD, LEAST_LATENCY, LEAST_SPEED, LEAST_RATIO, MOST_OFF = 0.8, 5.0, 3.0, 4.0, 0.1
MOST_ERROR = 0.05
Row = tuple[Any, ...]


@dataclass
class Found:
    """What was measured so far, as rows of tables and as checks."""

    edits: list[Row] = field(default_factory=list)
    plans: list[Row] = field(default_factory=list)
    sizes: list[Row] = field(default_factory=list)
    loads: list[Row] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)


@dataclass
class Subject:
    """A network with its template."""

    bench: Bench
    like: dict[str, torch.Tensor]
    pages: list[Page]
    packing: Packing
    gap: float


def measure(device: str, parts: Sequence[str], *, is_tiny: bool = False, shares: Sequence[float] = SHARES) -> Report:
    """Everything that was asked for."""
    found = Found()
    for name in parts:
        measure_one(tiny_bench(name) if is_tiny else full_bench(name, device), shares, found)
        gc.collect()
        torch.cuda.empty_cache()
    return report_of(found, device)


@torch.no_grad()
def measure_one(bench: Bench, shares: Sequence[float], found: Found) -> None:
    """One network: stock, its template, edits of all sizes, and for SDXL many edits at once and over time."""
    stock_s = bench.stock_s()
    say(f"{bench.name} stock", f"{stock_s:.3f} s")
    found.edits.append((bench.name, "stock", 1.0, stock_s, floor_s(bench, 1.0), 1.0))
    is_whole = bench.name == "sdxl" and len(shares) == len(SHARES)
    batches_s = {1: stock_s, **{num: bench.stock_s(num, 1) for num in (2, PER_BATCH) if is_whole}}
    bench.laid_out()
    subject = recorded(bench)
    judge_packing(subject, found)
    steps_s, host_s, bytes_s = edits(subject, shares, stock_s, found)
    judge_plans(bench, steps_s, host_s, bytes_s, found)
    if is_whole:
        subject.pages = []
        edit_s = {share: bench.num_steps * one for share, one in steps_s.items()}
        judge_mixed(subject.bench, batches_s, {**edit_s, 1.0: stock_s}, found)


# Templates ------------------------------------------------------------------------------------------------------------


def recorded(bench: Bench) -> Subject:
    """A template by a whole run, and how far a masked step is from a whole one that sees the same."""
    inputs, packing = bench.inputs(), Packing(bench.num_front)
    made = Subject(bench, {}, [], packing, 0.0)

    def keep(step: int, page: dict[str, torch.Tensor]) -> None:
        packing.add(page)
        made.pages.append(bench.flatten(page))
        made.like = {name: torch.empty_like(one) for name, one in page.items()} if step == 0 else made.like

    bench.record(inputs, keep)
    whole = bench.predict(**inputs)
    with replace(bench, compiled=False).bound(made.like, [0.1], inputs, num_flats=1) as bound:
        bound.made.flats[0].fill(*bound.cut(made.pages[-1]))
        ours = bench.predict(**inputs)
    made.gap = float((ours - whole).float().norm() / whole.float().norm())
    say(f"{bench.name} template", f"{size_of(made.pages) / 2**30:.1f} GiB; masked step off by {made.gap:.4f}")
    return made


def judge_packing(subject: Subject, found: Found) -> None:
    """Sizes at stated errors; among the small enough the one with the least error."""
    name, packing = subject.bench.name, subject.packing
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


def edits(
    subject: Subject, shares: Sequence[float], stock_s: float, found: Found
) -> tuple[dict[float, float], dict[float, float], dict[float, float]]:
    """Seconds of steps with the template on the device, and with it on the host; bytes of a page from there."""
    bench = subject.bench
    steps_s: dict[float, float] = {}
    host_s: dict[float, float] = {}
    num_bytes: dict[float, float] = {}
    for share in shares:
        with bench.bound(subject.like, [share]) as bound:
            spent_s = {"device": bound.edit_s(subject.pages)}
            host = [pinned(bound.cut(page)) for page in subject.pages[:NUM_HOST_PAGES]]
            spent_s["host"] = bound.edit_s(host, is_cut=True)
            num_bytes[share] = size_of(host[:1])
        for where, seconds in spent_s.items():
            found.edits.append(
                (bench.name, f"template on the {where}", share, seconds, floor_s(bench, share), stock_s / seconds)
            )
            say(f"{bench.name} {share}, {where}", f"{seconds:.3f} s, stock / ours {stock_s / seconds:.2f}")
        steps_s[share], host_s[share] = (spent_s[one] / bench.num_steps for one in ("device", "host"))
    best_s = bench.num_steps * steps_s[0.1]
    label = f"{bench.name}, {bench.num_steps} steps, mask of a tenth"
    found.checks.append(Check.at_most(label, best_s, BARS_S[bench.name], unit="s"))
    return steps_s, host_s, num_bytes


def judge_plans(
    bench: Bench,
    steps_s: dict[float, float],
    host_s: dict[float, float],
    num_bytes: dict[float, float],
    found: Found,
) -> None:
    """Steps of every mask beside what is predicted from those of all other masks."""
    if len(steps_s) < 3:
        return
    network, link = NETWORKS[bench.name], replace(H200, link_bytes_per_s=link_bytes_per_s())
    is_full = network.num_tokens == prod(bench.size.grid)
    measured = [
        (share, where, MeasuredStep(bench.tokens(share) if is_full else share, true_s, loaded))
        for share, step_s in steps_s.items()
        for where, true_s, loaded in (("device", step_s, 0.0), ("host", host_s[share], num_bytes[share]))
    ]
    worst = 0.0
    for share, where, step in measured:
        device = fitted(network, [one for other, _, one in measured if other != share], link)
        predicted = predicted_s(network, step.mask, device, step.page_bytes)
        off = abs(predicted / step.step_s - 1)
        worst = max(worst, off)
        found.plans.append((bench.name, share, where, 1e3 * predicted, 1e3 * step.step_s, off))
    say(f"{bench.name} fitted", fitted(network, [one for _, _, one in measured], link))
    found.checks.append(Check.at_most(f"{bench.name}, steps off their predictions", worst, MOST_OFF))


def link_bytes_per_s() -> float:
    """From pinned memory to the device."""
    if not torch.cuda.is_available():
        return H200.link_bytes_per_s
    (host,) = pinned((torch.empty(1 << 29, dtype=torch.int8),))
    there = torch.empty_like(host, device="cuda")
    there.copy_(host)
    begin = now_s()
    for _ in range(4):
        there.copy_(host, non_blocking=True)
    return 4 * len(host) / (now_s() - begin)


# Many edits -----------------------------------------------------------------------------------------------------------


def judge_mixed(bench: Bench, batches_s: dict[int, float], edit_s: dict[float, float], found: Found) -> None:
    """Images per second with masks of the public trace, and latencies of edits that arrive over time."""
    stock_s = batches_s[1]
    ours, stock = mixed_per_s(bench), PER_BATCH / batches_s[PER_BATCH]
    say("mixed", f"{ours:.3f} images/s, stock {stock:.3f} in batches, {1 / stock_s:.3f} one by one")
    for label, theirs in ((f"in batches of {PER_BATCH}", stock), ("one by one", 1 / stock_s)):
        check = f"images per second with mixed masks ({ours:.2f}), times stock {label} ({theirs:.2f})"
        found.checks.append(Check.at_least(check, ours / theirs, LEAST_SPEED, unit="x"))

    def stock_service(masks: Sequence[float]) -> float:
        return between({float(num): one for num, one in batches_s.items()}, len(masks))

    for load in LOADS:
        arrivals, masks = drawn(load * stock)
        theirs = mean_latency_s(arrivals, masks, stock_service, PER_BATCH)
        alone = mean_latency_s(arrivals, masks, lambda one: between(edit_s, one[0]), 1)
        found.loads.append((load, load * stock, theirs, alone, theirs / alone))
        if load == BAR_LOAD:
            label = f"mean latency of stock to ours, at {load:.0%} of what stock can do"
            found.checks.append(Check.at_least(label, theirs / alone, LEAST_LATENCY, unit="x"))


def mixed_per_s(bench: Bench) -> float:
    """In batches of similar masks; two pages take turns."""
    shares = sorted(np.random.default_rng(1).beta(*PUBLIC_MASKS, NUM_MIXED).tolist())
    pages: list[Page] = []
    like: dict[str, torch.Tensor] = {}

    def keep(step: int, page: dict[str, torch.Tensor]) -> None:
        if step < 2:
            pages.append(bench.flatten(page))
            like.update({name: torch.empty_like(one) for name, one in page.items()} if not like else {})

    replace(bench, num_steps=2).record(bench.inputs(PER_BATCH), keep)
    spent_s = 0.0
    for first in range(0, NUM_MIXED, PER_BATCH):
        with bench.bound(like, shares[first : first + PER_BATCH]) as bound:
            spent_s += bound.edit_s(pages)
        say("mixed batch", f"largest mask {shares[first + PER_BATCH - 1]:.2f}, {spent_s:.3f} s so far")
    return NUM_MIXED / spent_s


# Reports --------------------------------------------------------------------------------------------------------------


def size_of(pages: Sequence[Page]) -> float:
    return float(sum(part.numel() * part.element_size() for page in pages for part in page))


def floor_s(bench: Bench, share: float) -> float:
    return bench.num_steps * TERA[bench.name][share] * 1e12 / TFLOPS


def report_of(found: Found, device: str) -> Report:
    edit = partial(Column, unit="s", digits=3)
    tables = (
        Table(
            "Edits of one image",
            (
                Column("network"),
                Column("how"),
                Column("mask", "", 2),
                edit("time"),
                edit("floor"),
                Column("stock / ours", "x"),
            ),
            tuple(found.edits),
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
            "each predicted from steps of all other masks",
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
            (Column("load", "", 2), Column("rate", "1/s", 3), edit("stock"), edit("ours"), Column("stock / ours", "x")),
            tuple(found.loads),
            "mean latencies in virtual time from the measured seconds: stock in batches of up to four, ours one by one",
        ),
        choices_table(CHOICES.made),
    )
    name = torch.cuda.get_device_name() if device == "cuda" else "no accelerator"
    notes = (
        f"{name}; {versions(('torch', 'diffusers'))}",
        "masks are boxes; mixed masks are drawn from a beta distribution with the mean of the public trace, 0.19",
        "errors of packing: root mean square relative to the tensor, the mean and the worst of all tensors and steps",
        "random weights: seconds do not depend on them, errors may",
        "negative branches of SDXL have no text, as without a negative prompt; edits of Flux know their timesteps",
    )
    scenario = {"domain": "serving", "benchmark": "editing", "device": device}
    return Report("Masked edits on an accelerator", "serving", scenario, 1, tables, (), tuple(found.checks), notes)


# Parts ----------------------------------------------------------------------------------------------------------------


def part_report(name: str, device: str, networks: Sequence[str], ways: Sequence[str], limit: Limit) -> Report:
    """Ways beside each other, or where the time of a step goes."""
    is_tiny = device == "cpu"
    benches = [tiny_bench(one) if is_tiny else full_bench(one, device) for one in networks]
    with torch.no_grad():
        is_ways = name == "ways"
        tables = [ways_table(benches, ways, limit)] if is_ways else list(profile_tables(benches, ways, is_tiny))
    machine = torch.cuda.get_device_name() if device == "cuda" else "no accelerator"
    notes = (f"{machine}; {versions(('torch', 'diffusers'))}",)
    scenario = {"domain": "serving", "benchmark": f"editing {name}", "device": device, "ways": list(ways)}
    tables.append(choices_table(CHOICES.made))
    return Report(f"Masked edits: {name}", "serving", scenario, 1, tuple(tables), notes=notes)


def main() -> int:
    """Run the part that was asked for; the part `table` is what `editing.py --device cuda` runs."""
    parser = options_of(__doc__)
    parser.add_argument("--part", choices=("table", "ways", "profile"), default="table")
    parser.add_argument("--networks", default="flux,sdxl", metavar="A,B", help="of flux, sdxl")
    parser.add_argument("--ways", default="plain,all", metavar="A,B", help=f"every, or of {', '.join(EDIT_WAYS)}")
    parser.add_argument("--limit-s", type=float, default=540.0, metavar="S", help="leave out ways beyond this (540)")
    parser.add_argument("--tiny", action="store_true", help="tiny networks on a CPU: does it run, not how fast")
    options = parser.parse_args()
    device, networks = "cpu" if options.tiny else "cuda", options.networks.split(",")
    if options.part == "table":
        return publish(measure(device, networks, is_tiny=options.tiny), "editing_gpu", options)
    ways = [name for name in EDIT_WAYS if options.ways == "every" or name in options.ways.split(",")]
    made = part_report(options.part, device, networks, ways, Limit(options.limit_s))
    return publish(made, f"editing-gpu-{options.part}", options)


if __name__ == "__main__":
    sys.exit(main())
