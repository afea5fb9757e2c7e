"""Effect of variance: fading of an opportunistic scheduler and variable bit rate; small, but not near criticality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from takeup.core.progress import Tick
from takeup.core.report import Check, Column, Series, Table
from takeup.papers.findings import Findings
from takeup.papers.qoe.findings import digit_check, reference_chain
from takeup.streaming.chains import chain_of, with_vbr
from takeup.streaming.model import Cell, Chain, Player
from takeup.streaming.policies.diffusion import DiffusionSolver
from takeup.streaming.policies.riccati import RiccatiSolver
from takeup.streaming.report import Curve, curve_series
from takeup.streaming.simulate import Slots, simulate_slots

Numbers = Mapping[str, Any]


def _opportunistic_cell(expected: Numbers, arrivals_per_s: float) -> Cell:
    cell = expected["fading"]
    users = expected["setting"]["max_users"]
    return Cell(cell["capacity_bps"], cell["bitrate_bps"], arrivals_per_s, users, opportunistic=True)


def _stall_probability(chain: Chain, start_s: float, *, variance: bool = True) -> float:
    solver = DiffusionSolver() if variance else RiccatiSolver()
    return solver.solution(chain).stall_probability(start_s)


# Fading ---------------------------------------------------------------------------------------------------------------


def fading(expected: Numbers, tick: Tick) -> Findings:
    """The throughput of an opportunistic scheduler with and without its variance."""
    given, bars = expected["fading"], expected["bars"]
    checks, rows = [], []
    for place, (arrivals, start_s) in enumerate(zip(given["arrivals_per_s"], given["starts_s"], strict=True)):
        chain = chain_of(_opportunistic_cell(expected, arrivals))
        without, with_it = _stall_probability(chain, start_s, variance=False), _stall_probability(chain, start_s)
        checks += _fading_checks(given, place, without, with_it)
        rows.append((arrivals, start_s, without, with_it, 100 * (with_it / without - 1), given["slots"][place]))
    why = "the paper says that variance matters little, without a number to check; it grows with the threshold"
    largest = max(row[4] for row in rows) / 100
    checks.append(Check.at_most("largest effect of fading on P(stall)", largest, bars["fading_effect_share"], why=why))
    checks.append(_slot_check(expected, given["arrivals_per_s"][3], given["starts_s"][3], Slots(), "fading"))
    tick()
    columns = (
        Column("arrivals", "1/s"),
        Column("threshold", "s", 0),
        Column("mean only", digits=4),
        Column("with variance", digits=4),
        Column("effect", "%", 1),
        Column("slots simulated elsewhere", digits=4),
    )
    table = Table("P(stall) of an opportunistic cell", columns, tuple(rows))
    return Findings(tuple(checks), (table,), (_fading_chart(expected),))


def _fading_checks(given: Numbers, place: int, without: float, with_it: float) -> list[Check]:
    name = f"opportunistic, {given['arrivals_per_s'][place]:g} arrivals/s, threshold {given['starts_s'][place]:g} s"
    source, errors = given["source"], 3.5 * given["slots_error"][place]
    return [
        digit_check(f"{name}: mean only", without, given["without"][place], source=source),
        digit_check(f"{name}: with variance", with_it, given["with"][place], source=source),
        Check.near(f"{name}: simulated slots", with_it, given["slots"][place], errors, source=source),
    ]


def _slot_check(expected: Numbers, arrivals: float, start_s: float, slots: Slots, what: str) -> Check:
    """The equations with variance compared with a simulation of every slot, run here."""
    setting, cell = expected["setting"], _opportunistic_cell(expected, arrivals)
    num, player = setting["num_slot_videos"], Player(start_s)
    measured = simulate_slots(cell, player, slots, num_videos=num, seed=setting["seed"]).stall_probability
    exact = _stall_probability(with_vbr(chain_of(cell), slots.gop_variation, slots.gop_s), start_s)
    score = abs(measured.value - exact) / measured.error
    why = f"{measured.value:.4f} ± {measured.error:.4f} simulated, {exact:.4f} from the equations"
    return Check.at_most(f"|z| of {num} videos slot by slot, {what}", score, expected["bars"]["z"], why=why)


def _fading_chart(expected: Numbers) -> Series:
    thresholds_s = np.linspace(0.5, 12.0, 24).tolist()
    curves = []
    for arrivals in sorted(set(expected["fading"]["arrivals_per_s"])):
        chain = chain_of(_opportunistic_cell(expected, arrivals))
        for name, variance in {"mean only": False, "with variance": True}.items():
            stalls = [_stall_probability(chain, start_s, variance=variance) for start_s in thresholds_s]
            curves.append(Curve(f"{arrivals:g} arrivals/s, {name}", thresholds_s, stalls))
    return curve_series("Fading on and off", "start threshold", "P(stall)", curves)


# Variable bit rate ----------------------------------------------------------------------------------------------------


def variable_rate(expected: Numbers) -> Findings:
    """The reference cell with players that drain at a variable rate."""
    given, bars = expected["variable_rate"], expected["bars"]
    chain, starts_s = reference_chain(expected["setting"], given["arrivals_per_s"]), given["starts_s"]
    checks = [
        digit_check(
            f"P(stall) with a variance of {variance:g} /s, threshold {start_s:g} s",
            _stall_probability(_variable_rate_chain(chain, variance), start_s),
            written,
            source=given["source"],
        )
        for variance, cells in zip(given["variances_per_s"], given["cells"], strict=True)
        for start_s, written in zip(starts_s, cells, strict=True)
    ]
    rows = _rate_rows(chain, [0.0, *given["real_variances_per_s"], given["variances_per_s"][-1]], starts_s)
    real = rows[len(given["real_variances_per_s"])]
    why = f"at a threshold of {starts_s[1]:g} s it is {real[4]:.0f} %, of a P(stall) below one per cent"
    name = f"largest effect of real encodings on P(stall), threshold {starts_s[0]:g} s"
    checks.append(Check.at_most(name, real[2] / 100, bars["real_encoding_effect_share"], why=why))
    columns = (Column("variance", "1/s", 2), *(c for start_s in starts_s for c in _rate_columns(start_s)))
    table = Table("Variable bit rate in the reference cell", columns, tuple(rows), "real films: 0.02 to 0.12 /s")
    return Findings(tuple(checks), (table,), (_rate_chart(expected, chain),))


def _variable_rate_chain(chain: Chain, variance_per_s: float) -> Chain:
    return with_vbr(chain, float(np.sqrt(variance_per_s)), 1.0)


def _rate_columns(start_s: float) -> tuple[Column, Column]:
    return Column(f"P(stall) at {start_s:g} s", digits=4), Column("effect", "%", 1)


def _rate_rows(chain: Chain, variances: Sequence[float], starts_s: Sequence[float]) -> list[tuple[float, ...]]:
    rows = []
    for variance in variances:
        found = [
            (_stall_probability(_variable_rate_chain(chain, variance), s), _stall_probability(chain, s, variance=False))
            for s in starts_s
        ]
        rows.append((variance, *(x for ours, plain in found for x in (ours, 100 * (ours / plain - 1)))))
    return rows


def _rate_chart(expected: Numbers, chain: Chain) -> Series:
    thresholds_s = np.linspace(0.5, 20.0, 40).tolist()
    curves = [
        Curve(
            f"variance {variance:g} /s",
            thresholds_s,
            [_stall_probability(_variable_rate_chain(chain, variance), s) for s in thresholds_s],
        )
        for variance in expected["variable_rate"]["variances_per_s"]
    ]
    return curve_series("Variable bit rate on and off", "start threshold", "P(stall)", curves)


# The limit of the claim -----------------------------------------------------------------------------------------------


def critical_rate(expected: Numbers, tick: Tick) -> Findings:
    """Near-zero drift of the buffer: here chance decides, and variance does matter."""
    given = expected["critical"]
    cell = _opportunistic_cell(expected, given["arrivals_per_s"])
    chain = chain_of(cell)
    uneven = with_vbr(chain, given["variation"], given["gop_s"])
    rows = []
    for start_s in given["starts_s"]:
        plain, found = _stall_probability(chain, start_s, variance=False), _stall_probability(uneven, start_s)
        rows.append((start_s, plain, found, found / plain))
    tick()
    columns = (
        Column("threshold", "s", 0),
        Column("mean only", digits=4),
        Column("fading and variable rate", digits=4),
        Column("ratio", digits=2),
    )
    note = "groups of pictures of 1 s with a coefficient of variation of 0.5; a buffer falls by 0.12 s/s at most"
    table = Table("Near criticality variance matters", columns, tuple(rows), note)
    return Findings((*_critical_checks(expected, rows),), (table,))


def _critical_checks(expected: Numbers, rows: Sequence[tuple[float, ...]]) -> list[Check]:
    given, bars = expected["critical"], expected["bars"]
    checks = [
        digit_check(f"near criticality, threshold {row[0]:g} s", row[2], written, source=given["source"])
        for row, written in zip(rows, given["stalls"], strict=True)
    ]
    checks += [
        digit_check(f"near criticality, threshold {row[0]:g} s: ratio", row[3], written, source=given["source"])
        for row, written in zip((rows[0], rows[-1]), given["ratio_at_ends"], strict=True)
    ]
    why = "a limit of the claim that variance matters little"
    smallest = min(row[3] for row in rows)
    slots = Slots(gop_s=given["gop_s"], gop_variation=given["variation"])
    return [
        *checks,
        Check.at_least("near criticality, smallest ratio", smallest, bars["critical_ratio"], why=why),
        _slot_check(expected, given["arrivals_per_s"], given["starts_s"][1], slots, "near criticality"),
    ]
