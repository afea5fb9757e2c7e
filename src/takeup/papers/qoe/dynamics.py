"""Flow dynamics cause stalls: the same cell without arrivals and departures of other videos, and the best threshold.

Two ways to leave the dynamics out: every video permanently sees the number of others that it found (frozen), or always
the mean throughput that videos receive. Neither predicts the cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from takeup.core.report import Check, Column, Series, Table
from takeup.papers.findings import Findings
from takeup.papers.qoe.findings import digit_check, reference_chain, reference_solution
from takeup.streaming.model import Chain, Player
from takeup.streaming.policies.riccati import RiccatiSolver
from takeup.streaming.policies.threshold import best_threshold, stall_cost
from takeup.streaming.report import Curve, curve_series

Numbers = Mapping[str, Any]


def frozen_chain(chain: Chain) -> Chain:
    """The chain without arrivals or departures while the video downloads."""
    return replace(chain, generator=np.zeros_like(chain.generator))


def mean_throughput_chain(chain: Chain, mean_video_s: float) -> Chain:
    """One state; its fill rate is the content of a mean video over its mean download time."""
    download_s = float(chain.initial @ np.linalg.solve(-chain.killed, np.ones(chain.num_states)))
    fill = mean_video_s / download_s
    return Chain(np.zeros((1, 1)), np.array([fill / mean_video_s]), np.array([fill]), np.ones(1))


def flow_dynamics(expected: Numbers) -> Findings:
    """P(stall) of every reference cell, exact and without dynamics."""
    setting = expected["setting"]
    rows = [row for arrivals in setting["arrivals_per_s"] for row in _dynamics_rows(setting, arrivals)]
    columns = (
        Column("arrivals", "1/s", 2),
        Column("threshold", "s", 1),
        Column("exact", digits=6),
        Column("frozen number of users", digits=6),
        Column("frozen over exact", digits=2),
        Column("mean throughput", "s/s", 2),
        Column("at mean throughput", digits=6),
    )
    note = "a mean throughput above 1 s of video per second never stalls, yet in the cell up to every fifth video does"
    table = Table("P(stall) with and without coming and going", columns, tuple(rows), note)
    return Findings(_dynamics_checks(expected, rows), (table,), (_dynamics_chart(setting),))


def _dynamics_rows(setting: Numbers, arrivals: float) -> list[tuple[float, ...]]:
    chain = reference_chain(setting, arrivals)
    mean = mean_throughput_chain(chain, 60.0)
    exact, still, constant = (RiccatiSolver().solution(each) for each in (chain, frozen_chain(chain), mean))
    rows: list[tuple[float, ...]] = []
    for start_s in setting["starts_s"]:
        truth, stays, level = (each.stall_probability(start_s) for each in (exact, still, constant))
        rows.append((arrivals, start_s, truth, stays, stays / truth, float(mean.fill[0]), level))
    return rows


def _dynamics_checks(expected: Numbers, rows: list[tuple[float, ...]]) -> tuple[Check, ...]:
    bars = expected["bars"]
    why = "the paper calls the dynamics of flows the cause of stalls, without a number that could be checked"
    explained = max(row[6] / row[2] for row in rows)
    checks = [
        Check.at_most(
            "share of stalls that the mean throughput explains", explained, bars["explained_by_mean_share"], why=why
        )
    ]
    for start_s, ratio in zip(bars["frozen_starts_s"], bars["frozen_ratio"], strict=True):
        smallest = min(row[4] for row in rows if row[1] == start_s)
        name = f"frozen users over exact P(stall), threshold {start_s:g} s, smallest"
        checks.append(Check.at_least(name, smallest, ratio, why="the longer the buffer, the more the others change"))
    return tuple(checks)


def _dynamics_chart(setting: Numbers) -> Series:
    arrivals = setting["arrivals_per_s"][-1]
    chain, thresholds_s = reference_chain(setting, arrivals), np.linspace(0.0, 30.0, 61).tolist()
    chains = {
        "exact": chain,
        "frozen number of users": frozen_chain(chain),
        "mean throughput": mean_throughput_chain(chain, 60.0),
    }
    curves = []
    for name, each in chains.items():
        solution = RiccatiSolver().solution(each)
        curves.append(Curve(name, thresholds_s, [solution.stall_probability(start_s) for start_s in thresholds_s]))
    return curve_series(f"Dynamics on and off, {arrivals:g} arrivals/s", "start threshold", "P(stall)", curves)


def best_thresholds(expected: Numbers) -> Findings:
    """The threshold with the least cost, by the cost of a second of start-up delay."""
    given = expected["threshold"]
    solution = reference_solution(expected["setting"], given["arrivals_per_s"])
    thresholds_s = np.linspace(0.0, 40.0, 81).tolist()
    checks, curves = [], []
    for gamma, written in zip(given["gammas"], given["best_s"], strict=True):
        cost = stall_cost(gamma)
        best_s = best_threshold(solution, cost).player.start_s
        name = f"best threshold at {gamma:g} per second of start-up"
        checks.append(digit_check(name, best_s, written, unit="s", source=given["source"]))
        costs = [cost(solution, Player(start_s)) for start_s in thresholds_s]
        curves.append(Curve(f"{gamma:g} per second", thresholds_s, costs))
    chart = curve_series("Cost by start threshold", "start threshold", "cost", curves)
    return Findings(tuple(checks), series=(chart,))
