"""The claims of the abstract: flow dynamics cause stalls, and variance matters little except near criticality.

Two ways to leave the dynamics out: every video permanently sees the number of others that it found (frozen), or
always the mean throughput that videos receive. Neither predicts the cell. Variance: fading of an opportunistic
scheduler, and variable bit rate.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from takeup.core.report import Check, Column, Series, Table
from takeup.papers import Findings, Numbers
from takeup.papers.qoe.reference import digit_check, reference_chain, reference_solution
from takeup.papers.qoe.riccati import RiccatiSolver
from takeup.streaming.advice.tuning import Cost, best_threshold
from takeup.streaming.chains import chain_of, with_vbr
from takeup.streaming.model import Cell, Chain, Player
from takeup.streaming.report import Curve, curve_series
from takeup.streaming.simulate.slots import Slots, simulate_slots
from takeup.streaming.solvers.diffusion import DiffusionSolver
from takeup.streaming.solvers.solution import Solution, SolvedChain

# Flow dynamics cause stalls: the same cell without arrivals and departures of other videos, and the best threshold
#
# Two ways to leave the dynamics out: every video permanently sees the number of others that it found (frozen), or
# always the mean throughput that videos receive. Neither predicts the cell.


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


def stall_cost(per_startup_s: float) -> Cost:
    """The cost of the paper: P(at least one stall) plus `per_startup_s` for every second of start-up delay."""

    def cost(solution: SolvedChain, player: Player) -> float:
        answer = solution.answer(player)
        return answer.stall_probability.value + per_startup_s * answer.startup_s.value

    return cost


def best_thresholds(expected: Numbers) -> Findings:
    """The threshold with the least cost, by the cost of a second of start-up delay."""
    given = expected["threshold"]
    solution = reference_solution(expected["setting"], given["arrivals_per_s"])
    thresholds_s = np.linspace(0.0, 40.0, 81).tolist()
    checks, curves = [], []
    for gamma, written in zip(given["gammas"], given["best_s"], strict=True):
        cost = stall_cost(gamma)
        best_s = best_threshold(solution, cost).start_s
        name = f"best threshold at {gamma:g} per second of start-up"
        checks.append(digit_check(name, best_s, written, unit="s", source=given["source"]))
        costs = [cost(solution, Player(start_s)) for start_s in thresholds_s]
        curves.append(Curve(f"{gamma:g} per second", thresholds_s, costs))
    chart = curve_series("Cost by start threshold", "start threshold", "cost", curves)
    return Findings(tuple(checks), series=(chart,))


# Effect of variance: fading of an opportunistic scheduler and variable bit rate; small, but not near criticality ------


def _opportunistic_cell(expected: Numbers, arrivals_per_s: float) -> Cell:
    cell = expected["fading"]
    users = expected["setting"]["max_users"]
    return Cell(cell["capacity_bps"], cell["bitrate_bps"], arrivals_per_s, users, opportunistic=True)


def _stall_probability(chain: Chain, start_s: float, *, variance: bool = True) -> float:
    with_it = variance and bool(chain.variance.any())
    solution: Solution = DiffusionSolver().solution(chain) if with_it else RiccatiSolver().solution(chain)
    return solution.stall_probability(start_s)


# Fading ---------------------------------------------------------------------------------------------------------------


def fading(expected: Numbers) -> Findings:
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


def critical_rate(expected: Numbers) -> Findings:
    """Near-zero drift of the buffer: here chance decides, and variance does matter."""
    given = expected["critical"]
    cell = _opportunistic_cell(expected, given["arrivals_per_s"])
    chain = chain_of(cell)
    uneven = with_vbr(chain, given["variation"], given["gop_s"])
    rows = []
    for start_s in given["starts_s"]:
        plain, found = _stall_probability(chain, start_s, variance=False), _stall_probability(uneven, start_s)
        rows.append((start_s, plain, found, found / plain))
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
