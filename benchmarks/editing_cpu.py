"""What of masked edits does not depend on an accelerator: counted operations, and milliseconds of the planner."""

from __future__ import annotations

import time
from typing import Any

from takeup.core.report import Check, Column, Report, Table
from takeup.serving.engines.diffusers.masked.full_size import count_flop
from takeup.serving.policies.masks import FLUX, H200, SDXL, SDXL_COLUMNS, costs_of
from takeup.serving.policies.plan import plan

TERA = {
    "sdxl": {0.1: 4.37, 0.2: 5.39, 0.5: 8.44},
    "sdxl, convolutions masked": {0.1: 4.37 - 0.9 * 3.25, 0.2: 5.39 - 0.8 * 3.25, 0.5: 8.44 - 0.5 * 3.25},
    "flux": {0.1: 14.9, 0.2: 21.5, 0.5: 41.3},
}
NETWORKS = {"sdxl": SDXL, "sdxl, convolutions masked": SDXL_COLUMNS, "flux": FLUX}
MOST_OFF, MOST_MS, NUM_ROUNDS, NUM_PLANS = 0.05, 1.0, 20, 5


def plan_ms(name: str, share: float) -> float:
    """Milliseconds of the processor for a plan, the least of some rounds: the machine may be shared."""
    blocks = costs_of(NETWORKS[name], [share], H200)
    plan(blocks)
    rounds = []
    for _ in range(NUM_ROUNDS):
        begin = time.process_time()
        for _ in range(NUM_PLANS):
            plan(blocks)
        rounds.append((time.process_time() - begin) / NUM_PLANS)
    return 1e3 * min(rounds)


def counted_tera(name: str, share: float) -> float:
    """Operations of one step."""
    network, _, others = name.partition(",")
    return count_flop(network, share, convolutions=bool(others)) / 1e12


def measure_cpu() -> Report:
    """Both, for both networks."""
    rows: list[tuple[Any, ...]] = []
    checks = []
    for name, cases in TERA.items():
        for share, floor in cases.items():
            counted, spent_ms = counted_tera(name, share), plan_ms(name, share)
            rows.append((name, share, floor, counted, spent_ms))
            checks.append(Check.at_most(f"{name}, mask {share:g}: off the floor", abs(counted / floor - 1), MOST_OFF))
            checks.append(Check.at_most(f"{name}, mask {share:g}: planner", spent_ms, MOST_MS, unit="ms"))
    columns = (
        Column("network"),
        Column("mask", "", 2),
        Column("floor", "TFLOP"),
        Column("counted", "TFLOP"),
        Column("planner", "ms"),
    )
    table = Table("Operations of a step, and the planner", columns, tuple(rows))
    scenario = {"domain": "serving", "benchmark": "editing", "device": "cpu"}
    return Report("Masked edits, counted", "serving", scenario, 1, (table,), (), tuple(checks))
