"""What of masked edits can be shown without an accelerator.

Operations are counted on networks of full size, beside their floors; the planner is timed; templates are packed, and
steps are predicted, on networks of a middle size with random weights. Time is that of the processor, in one thread, the
least of some rounds: the machine may be shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.serving.editing_network import Bench, middle_bench
from benchmarks.serving.editing_template import BUDGETS, Packing, edited
from benchmarks.support.device_fit import MeasuredStep, fitted, predicted_s
from benchmarks.support.full_size import count_flop
from takeup.core.report import Check, Column, Report, Table
from takeup.serving.editing.masked.hooks import MaskingHooks
from takeup.serving.editing.masked.tokens import working_copy
from takeup.serving.editing.planner.block_formats import plan_formats
from takeup.serving.editing.planner.cost_model import (
    FLUX,
    H200,
    SDXL,
    SDXL_COLUMNS,
    BlockShape,
    DeviceSpeed,
    NetworkShape,
    costs_of,
)

TERA = {
    "sdxl": {0.1: 4.37, 0.2: 5.39, 0.5: 8.44},
    "sdxl, convolutions masked": {0.1: 4.37 - 0.9 * 3.25, 0.2: 5.39 - 0.8 * 3.25, 0.5: 8.44 - 0.5 * 3.25},
    "flux": {0.1: 14.9, 0.2: 21.5, 0.5: 41.3},
}
NETWORKS = {"sdxl": SDXL, "sdxl, convolutions masked": SDXL_COLUMNS, "flux": FLUX}
MOST_OFF, MOST_MS, NUM_ROUNDS, NUM_PLANS = 0.05, 10.0, 20, 5
NUM_STEPS = {"sdxl": 50, "flux": 28}
LEAST_RATIO, MOST_ERROR, MOST_STEP_OFF, NUM_STEP_ROUNDS = 4.0, 0.05, 0.1, 10
SHARES = (0.05, 0.1, 0.2, 0.35, 0.5)
CPU = DeviceSpeed(flop_per_s=3e10, memory_bytes_per_s=1e10, link_bytes_per_s=1e10)
"""Where the fit begins."""
Rows = list[tuple[Any, ...]]


def measure_cpu() -> Report:
    """All of it."""
    torch.set_num_threads(1)
    checks: list[Check] = []
    tables = (_counts(checks), _sizes(checks), _steps(checks))
    scenario = {"domain": "serving", "benchmark": "editing", "device": "cpu"}
    note = (
        "networks of a middle size have random weights: how much activations change from step to step depends on them"
    )
    return Report("Masked edits, counted", "serving", scenario, 1, tables, (), tuple(checks), (note,))


# Operations and plans -------------------------------------------------------------------------------------------------


def _counts(checks: list[Check]) -> Table:
    rows: Rows = []
    for name, cases in TERA.items():
        for share, floor in cases.items():
            counted, spent_ms = _counted_tera(name, share), _plan_ms(name, share)
            rows.append((name, share, floor, counted, spent_ms))
            checks.append(Check.at_most(f"{name}, mask {share:g}: off the floor", abs(counted / floor - 1), MOST_OFF))
            checks.append(Check.at_most(f"{name}, mask {share:g}: planner", spent_ms, MOST_MS, unit="ms"))
    columns = ("network", ("mask", "", 2), ("floor", "TFLOP"), ("counted", "TFLOP"), ("planner", "ms"))
    return _table("Operations of a step, and the planner", columns, rows)


def _counted_tera(name: str, share: float) -> float:
    network, _, others = name.partition(",")
    return count_flop(network, share, convolutions=bool(others)) / 1e12


def _plan_ms(name: str, share: float) -> float:
    blocks = costs_of(NETWORKS[name], [share], H200)

    def some() -> None:
        for _ in range(NUM_PLANS):
            plan_formats(blocks)

    return 1e3 * _processor_s(some, NUM_ROUNDS) / NUM_PLANS


# Templates ------------------------------------------------------------------------------------------------------------


def _sizes(checks: list[Check]) -> Table:
    rows: Rows = []
    for name, num_steps in NUM_STEPS.items():
        bench = middle_bench(name, num_steps)
        packing, pages = Packing(bench.num_front, keeps=True), list[dict[str, torch.Tensor]]()

        def keep(_: int, page: dict[str, torch.Tensor], packing: Packing = packing, pages: Any = pages) -> None:
            pages.append({name: one.clone() for name, one in page.items()})
            packing.add(page)

        torch.manual_seed(1)
        bench.record(bench.inputs(), keep)
        right = edited(bench, pages)
        for budget in BUDGETS:
            ours = edited(bench, packing.ways[budget].pages)
            at_the_end = float((ours - right).norm() / right.norm())
            found = packing.ratio(budget), packing.usual(budget), packing.worst(budget), at_the_end
            rows.append((name, bench.num_steps, budget, *found))
        label = f"{name} of middle size, times smaller than keys and values, no tensor off by more than {MOST_ERROR:g}"
        checks.append(Check.at_least(label, packing.ratio(MOST_ERROR), LEAST_RATIO, unit="x"))
    errors = (("error", "", 4), ("worst tensor", "", 4), ("edit", "", 5))
    columns = ("network", ("steps", "", 0), ("budget", "", 2), ("smaller", "x", 2), *errors)
    title = (
        "Keys and values of a run in two bytes each, packed; errors of tensors, and of the last prediction of an edit"
    )
    return _table(title, columns, rows)


# Steps ----------------------------------------------------------------------------------------------------------------


def _steps(checks: list[Check]) -> Table:
    """Every mask predicted from all others."""
    rows: Rows = []
    for name in NUM_STEPS:
        bench = middle_bench(name, 1, scale=2)
        network, steps = _network_of(bench), _measured(bench)
        offs = []
        for share, step in steps.items():
            device = fitted(network, [one for other, one in steps.items() if other != share], CPU, tiles=(1,))
            predicted = predicted_s(network, step.mask, device)
            offs.append(abs(predicted / step.step_s - 1))
            rows.append((name, share, 1e3 * predicted, 1e3 * step.step_s, offs[-1]))
        checks.append(Check.at_most(f"{name} of middle size, steps off their predictions", max(offs), MOST_STEP_OFF))
    columns = ("network", ("mask", "", 2), ("predicted", "ms", 1), ("measured", "ms", 1), ("off", "", 3))
    return _table("Steps of middle size, each predicted from steps of all other masks", columns, rows)


@torch.no_grad()
def _measured(bench: Bench) -> dict[float, MeasuredStep]:
    """The processor's seconds of masked steps, in rounds in which masks take turns, for its speed changes.

    Of every mask the median share of a round; of the rounds the fastest.
    """
    inputs, hooks = bench.inputs(), MaskingHooks(bench.network, convolutions=bench.name == "sdxl")
    hooks.call.mode = "record"
    bench.predict(**inputs)
    hooks.call.mode = "masked"
    spent_s = np.empty((NUM_STEP_ROUNDS, len(SHARES)))
    for one_round in spent_s:
        for place, share in enumerate(SHARES):
            hooks.call.places, hooks.call.made = bench.places([share]), {}
            hooks.call.kept = working_copy(hooks.call.recorded, hooks.fronted, hooks.call.num_front)
            one_round[place] = _processor_s(lambda: bench.predict(**inputs), 1)
    hooks.remove()
    rounds_s = spent_s.sum(axis=1)
    steps_s = np.median(spent_s / rounds_s[:, None], axis=0) * rounds_s.min()
    return {share: MeasuredStep(bench.tokens(share), float(one)) for share, one in zip(SHARES, steps_s, strict=True)}


@torch.no_grad()
def _network_of(bench: Bench) -> NetworkShape:
    """As the planner knows networks; what is not in their blocks is counted."""
    num_tokens, blocks = bench.size.grid[0] * bench.size.grid[1], _blocks(bench)
    with FlopCounterMode(display=False) as counter:
        bench.predict(**bench.inputs())
    per_row = counter.get_total_flops() / bench.size.num_rows
    inside = sum(block.flop("full", block.num_tokens) for block in blocks)
    other_flop = max(0.0, per_row - inside) if bench.name == "sdxl" else 0.0
    return NetworkShape(blocks, num_tokens, other_flop, bench.size.num_rows, others_masked=True)


def _blocks(bench: Bench) -> tuple[BlockShape, ...]:
    num_tokens = bench.size.grid[0] * bench.size.grid[1]
    if bench.name == "flux":
        config = bench.network.config
        width, count = (
            config.num_attention_heads * config.attention_head_dim,
            config.num_layers + config.num_single_layers,
        )
        return tuple(BlockShape(num_tokens, width, "joint", bench.num_front) for _ in range(count))
    widths, layers = (bench.network.config[one] for one in ("block_out_channels", "transformer_layers_per_block"))
    finer = (BlockShape(num_tokens // 4, widths[1]),) * (2 * layers[1])
    return (*finer, *(BlockShape(num_tokens // 16, widths[2]),) * (6 * layers[2]), *finer, *finer[: layers[1]])


# ----------------------------------------------------------------------------------------------------------------------


def _processor_s(act: Callable[[], object], num_rounds: int) -> float:
    rounds = []
    for _ in range(num_rounds + 1):
        begin = time.process_time()
        act()
        rounds.append(time.process_time() - begin)
    return min(rounds[1:])


def _table(title: str, columns: tuple[Any, ...], rows: Rows) -> Table:
    named = tuple(Column(one) if isinstance(one, str) else Column(*one) for one in columns)
    return Table(title, named, tuple(rows))
