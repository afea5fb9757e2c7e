"""The distribution of start-up delays, and videos of constant length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.progress import Tick
from takeup.core.report import Check, Column, Table
from takeup.papers.findings import Findings
from takeup.papers.qoe.findings import digit_check, reference_chain
from takeup.streaming.model import Chain, Player
from takeup.streaming.policies.fixed_length import FixedLengthSolver
from takeup.streaming.policies.riccati import RiccatiSolver
from takeup.streaming.policies.startup_cdf import startup_atoms, startup_cdf
from takeup.streaming.report import Curve, cdf_series
from takeup.streaming.simulate import play_tagged, simulate_tagged

Numbers = Mapping[str, Any]

LAW_START_S = 5.0
NUM_TIMES = 61  # enough points that only real jumps look like jumps in the chart


def startup_law(expected: Numbers, tick: Tick) -> Findings:
    """The distribution of the start-up delay compared with simulated delays, jumps included."""
    setting, bars = expected["setting"], expected["bars"]
    curves, distances = [], []
    for arrivals in setting["arrivals_per_s"]:
        chain = reference_chain(setting, arrivals)
        times_s = _times_s(chain)
        law = startup_cdf(chain, LAW_START_S, times_s)
        curves.append(Curve(f"{arrivals:g} arrivals/s", times_s.tolist(), law.tolist()))
        distances.append(float(np.abs(law - _simulated_law(chain, times_s, setting)).max()))
        tick()
    name = f"start-up law at a threshold of {LAW_START_S:g} s: largest distance to simulated delays"
    return Findings((Check.at_most(name, max(distances), bars["cdf_distance"]),), series=(cdf_series(curves),))


def _times_s(chain: Chain) -> Floats:
    """A uniform grid until the last viewer starts, and the time just after every jump."""
    jumps_s = startup_atoms(chain, LAW_START_S)[0] * (1 + 1e-9)
    return np.sort(np.concatenate([np.linspace(0.0, float(jumps_s.max()), NUM_TIMES), jumps_s]))


def _simulated_law(chain: Chain, times_s: Floats, setting: Numbers) -> Floats:
    lived = play_tagged(chain, Player(LAW_START_S), num_videos=setting["num_videos"], seed=setting["seed"])
    return np.searchsorted(np.sort(lived.startup_s), times_s, side="right") / len(lived.startup_s)


def fixed_lengths(expected: Numbers, tick: Tick) -> Findings:
    """Videos of constant length, compared with their simulation and with exponential lengths."""
    fixed, setting = expected["fixed_length"], expected["setting"]
    chain = reference_chain(setting, expected["crowded"]["arrivals_per_s"])
    rows, checks = [], []
    for length_s, start_s, written in zip(fixed["lengths_s"], fixed["starts_s"], fixed["stalls"], strict=True):
        row = _fixed_row(chain, length_s, start_s, setting)
        name = f"P(stall) of videos of exactly {length_s:g} s, threshold {start_s:g} s"
        checks.append(digit_check(name, row[2], written, source=fixed["source"]))
        rows.append(row)
        tick()
    largest = max(abs(row[4]) for row in rows)
    checks.append(Check.at_most("largest |z| over fixed lengths", largest, expected["bars"]["z"]))
    columns = (
        Column("length", "s", 0),
        Column("threshold", "s", 0),
        Column("equations", digits=5),
        Column("tagged videos", digits=5),
        Column("z", digits=2),
        Column("exponential lengths of the same mean", digits=5),
    )
    note = "the other videos in the cell keep their exponential lengths; only the one that is watched is fixed"
    return Findings(tuple(checks), (Table("P(stall) of videos of one length", columns, tuple(rows), note),))


def _fixed_row(chain: Chain, length_s: float, start_s: float, setting: Numbers) -> tuple[float, ...]:
    player = Player(start_s)
    exact = FixedLengthSolver(length_s).solve(chain, player)
    tagged = simulate_tagged(chain, player, num_videos=setting["num_videos"], seed=setting["seed"], length_s=length_s)
    exponential = _exponential_stall_probability(chain, length_s, start_s)
    score = tagged.z_scores(exact)["stall_probability"]
    return length_s, start_s, exact.stall_probability.value, tagged.stall_probability.value, score, exponential


def _exponential_stall_probability(chain: Chain, mean_s: float, start_s: float) -> float:
    return RiccatiSolver().solution(replace(chain, end=chain.fill / mean_s)).stall_probability(start_s)
