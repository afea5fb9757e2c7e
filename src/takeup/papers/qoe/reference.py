"""The reference cells: stalls, start-up and blocking to the digit, three ways of solving, and two of simulating."""

from dataclasses import replace
from decimal import Decimal
from itertools import product

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.report import Check, Column, Source, Table
from takeup.papers import Findings, Numbers
from takeup.papers.qoe.fixed_length import fixed_length_stalls
from takeup.papers.qoe.riccati import RiccatiSolver
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Cell, Chain, Player, QoeMetrics
from takeup.streaming.report import Curve, cdf_series, curve_series
from takeup.streaming.simulate.cell import simulate_cell
from takeup.streaming.simulate.tagged import play_tagged, simulate_tagged
from takeup.streaming.solvers.fluid import DoublingSolver
from takeup.streaming.solvers.solution import Solution
from takeup.streaming.solvers.transforms import startup_atoms, startup_cdf

# Helpers shared by the reproduction: the cell, and how a written number is compared -----------------------------------


def reference_cell(setting: Numbers, arrivals_per_s: float, max_users: int | None = None) -> Cell:
    """The cell of the paper at one arrival rate."""
    users = setting["max_users"] if max_users is None else max_users
    return Cell(setting["capacity_bps"], setting["bitrate_bps"], arrivals_per_s, users)


def reference_chain(setting: Numbers, arrivals_per_s: float) -> Chain:
    """The Markov chain that a video of that cell sees."""
    return chain_of(reference_cell(setting, arrivals_per_s))


def reference_solution(setting: Numbers, arrivals_per_s: float) -> Solution:
    """That cell, solved exactly."""
    return RiccatiSolver().solution(reference_chain(setting, arrivals_per_s))


def digit_check(
    name: str,
    ours: float,
    written: str,
    *,
    source: Source,
    unit: str = "",
    why: str = "",
    last_digits: float = 0.5,
) -> Check:
    """Compare with a number as printed: to half of its last digit, unless a tolerance is given."""
    exponent = Decimal(written).as_tuple().exponent
    assert isinstance(exponent, int)
    tolerance = last_digits * 10.0**exponent * (1 + 1e-9)
    return Check.near(name, ours, float(written), tolerance, unit=unit, source=source, why=why)


TWICE_ROUNDED = "3.003498 when integrated step by step, too; the reference seems to have rounded 3.0035 once more"


def reference_cells(expected: Numbers) -> Findings:
    """Every number of the reference cells."""
    setting = expected["setting"]
    checks = (*_stall_checks(expected), *_startup_checks(expected), *_crowded_checks(expected))
    thresholds_s = np.linspace(0.0, 40.0, 81).tolist()
    curves = []
    for arrivals in setting["arrivals_per_s"]:
        solution = reference_solution(setting, arrivals)
        stalls = [solution.stall_probability(start_s) for start_s in thresholds_s]
        curves.append(Curve(f"{arrivals:g} arrivals/s", thresholds_s, stalls))
    chart = curve_series("P(stall) by start threshold", "start threshold", "P(stall)", curves)
    return Findings(checks, series=(chart,))


def _stall_checks(expected: Numbers) -> list[Check]:
    setting, stalls = expected["setting"], expected["stalls"]
    checks = []
    for arrivals, cells, blocked in zip(setting["arrivals_per_s"], stalls["cells"], stalls["blocked"], strict=True):
        solution = reference_solution(setting, arrivals)
        for start_s, written in zip(setting["starts_s"], cells, strict=True):
            name = f"P(stall) at {arrivals:g} arrivals/s, threshold {start_s:g} s"
            checks.append(digit_check(name, solution.stall_probability(start_s), written, source=stalls["source"]))
        name = f"blocked at {arrivals:g} arrivals/s"
        checks.append(digit_check(name, solution.chain.blocked_share, blocked, source=stalls["source"]))
    return checks


def _startup_checks(expected: Numbers) -> list[Check]:
    setting, startup = expected["setting"], expected["startup"]
    return [
        digit_check(
            f"start-up at {arrivals:g} arrivals/s, threshold {start_s:g} s",
            reference_solution(setting, arrivals).answer(Player(start_s)).startup_s.value,
            written,
            source=startup["source"],
            unit="s",
            last_digits=startup["last_digits"],
            why=TWICE_ROUNDED if written == "3.004" else "",
        )
        for arrivals, cells in zip(setting["arrivals_per_s"], startup["cells"], strict=True)
        for start_s, written in zip(startup["starts_s"], cells, strict=True)
    ]


def _crowded_checks(expected: Numbers) -> list[Check]:
    """Further checks at the highest load: frequencies, tail probabilities and durations."""
    crowded, source = expected["crowded"], expected["crowded"]["source"]
    solution = reference_solution(expected["setting"], crowded["arrivals_per_s"])
    rows = [
        (f"stalls per video, threshold {start_s:g} s", solution.counts(Player(start_s)).mean, written)
        for start_s, written in zip(expected["setting"]["starts_s"], crowded["num_stalls"], strict=False)
    ]
    rows += [
        (f"P(stall), threshold {start_s:g} s", solution.stall_probability(start_s), written)
        for start_s, written in zip(crowded["tail_starts_s"], crowded["tail"], strict=True)
    ]
    rows += [
        (f"seconds in stalls, start at {start_s:g} s, resume at {resume_s:g} s", seconds, written)
        for (start_s, resume_s), written in zip(crowded["start_and_resume_s"], crowded["stall_s"], strict=True)
        for seconds in [solution.counts(Player(start_s, resume_s)).stall_s]
    ]
    return [digit_check(name, ours, written, source=source) for name, ours, written in rows]


# Three ways of solving ------------------------------------------------------------------------------------------------


def solvers_agree(expected: Numbers) -> Findings:
    """Riccati, eigenvectors and doubling on cells of every size."""
    setting, bars = expected["setting"], expected["bars"]
    sizes = range(1, bars["most_users"] + 1)
    gaps = {"eigenvectors": 0.0, "doubling": 0.0}
    for arrivals, max_users in product(setting["arrivals_per_s"], sizes):
        chain = chain_of(reference_cell(setting, arrivals, max_users))
        riccati, doubling = RiccatiSolver().solution(chain), DoublingSolver().solution(chain)
        for start_s in setting["starts_s"]:
            ours = riccati.stall_probability(start_s)
            others = eigen_stall_probability(chain, start_s), doubling.stall_probability(start_s)
            for name, other in zip(gaps, others, strict=True):
                gaps[name] = max(gaps[name], abs(ours - other))
    title = f"up to {bars['most_users']} users, riccati and"
    return Findings(
        tuple(Check.at_most(f"{title} {name}: largest gap", gap, bars["solvers"]) for name, gap in gaps.items())
    )


def eigen_stall_probability(chain: Chain, start_s: float) -> float:
    """P(stall) by the eigenvectors of D W' + T W = 0, of which the decaying ones fit W = 1 where the buffer falls."""
    drift = chain.fill - chain.drain
    falls = drift < 0
    if not falls.any():
        return 0.0
    values, vectors = np.linalg.eig(-chain.killed / drift[:, None])
    decaying = values.real < 0
    basis = vectors[:, decaying]
    weights = np.linalg.solve(basis[falls], np.ones(int(falls.sum())))
    empties = (basis * np.exp(values[decaying] * start_s)) @ weights
    started = chain.initial @ RiccatiSolver().solution(chain).prefetch(start_s).starts_in
    return float((started @ empties).real)


# Two ways of simulating -----------------------------------------------------------------------------------------------


def simulated_cells(expected: Numbers) -> Findings:
    """Every cell compared with a simulation of single videos and of whole cells in which every video has a player."""
    setting, bar = expected["setting"], expected["bars"]["z"]
    rows = []
    for number, (arrivals, start_s) in enumerate(product(setting["arrivals_per_s"], setting["starts_s"])):
        rows.append(_simulated_row(setting, arrivals, start_s, setting["seed"] + number))
    columns = (
        Column("arrivals", "1/s", 2),
        Column("threshold", "s", 1),
        Column("equations", digits=6),
        Column("tagged videos", digits=6),
        Column("z", digits=2),
        Column("z of start-up", digits=2),
        Column("whole cell", digits=6),
        Column("z", digits=2),
    )
    note = f"{setting['num_videos']} videos each; those of a whole cell are correlated, their errors are of batch means"
    table = Table("P(stall) from equations and simulations", columns, tuple(rows), note)
    checks = [
        Check.at_most(f"largest |z| over the {len(rows)} cells, {name}", max(abs(row[place]) for row in rows), bar)
        for name, place in {"tagged videos": 4, "start-up of tagged videos": 5, "whole cell": 7}.items()
    ]
    return Findings(tuple(checks), (table,))


def _simulated_row(setting: Numbers, arrivals: float, start_s: float, seed: int) -> tuple[float, ...]:
    chain, player, num = reference_chain(setting, arrivals), Player(start_s), setting["num_videos"]
    exact = RiccatiSolver().solve(chain, player)
    tagged = simulate_tagged(chain, player, num_videos=num, seed=seed)
    whole = simulate_cell(reference_cell(setting, arrivals), player, num_videos=num, seed=seed)
    return (
        arrivals,
        start_s,
        exact.stall_probability.value,
        *_value_and_z(tagged, exact),
        tagged.z_scores(exact)["startup_s"],
        *_value_and_z(whole, exact),
    )


def _value_and_z(measured: QoeMetrics, exact: QoeMetrics) -> tuple[float, float]:
    return measured.stall_probability.value, measured.z_scores(exact)["stall_probability"]


# The distribution of start-up delays, and videos of constant length ---------------------------------------------------

LAW_START_S = 5.0
NUM_TIMES = 61  # enough points that only real jumps look like jumps in the chart


def startup_law(expected: Numbers) -> Findings:
    """The distribution of the start-up delay compared with simulated delays, jumps included."""
    setting, bars = expected["setting"], expected["bars"]
    curves, distances = [], []
    for arrivals in setting["arrivals_per_s"]:
        chain = reference_chain(setting, arrivals)
        times_s = _times_s(chain)
        law = startup_cdf(chain, LAW_START_S, times_s)
        curves.append(Curve(f"{arrivals:g} arrivals/s", times_s.tolist(), law.tolist()))
        distances.append(float(np.abs(law - _simulated_law(chain, times_s, setting)).max()))
    name = f"start-up law at a threshold of {LAW_START_S:g} s: largest distance to simulated delays"
    return Findings((Check.at_most(name, max(distances), bars["cdf_distance"]),), series=(cdf_series(curves),))


def _times_s(chain: Chain) -> Floats:
    """A uniform grid until the last viewer starts, and the time just after every jump."""
    jumps_s = startup_atoms(chain, LAW_START_S)[0] * (1 + 1e-9)
    return np.sort(np.concatenate([np.linspace(0.0, float(jumps_s.max()), NUM_TIMES), jumps_s]))


def _simulated_law(chain: Chain, times_s: Floats, setting: Numbers) -> Floats:
    lived = play_tagged(chain, Player(LAW_START_S), num_videos=setting["num_videos"], seed=setting["seed"])
    return np.searchsorted(np.sort(lived.startup_s), times_s, side="right") / len(lived.startup_s)


def fixed_lengths(expected: Numbers) -> Findings:
    """Videos of constant length, compared with their simulation and with exponential lengths."""
    fixed, setting = expected["fixed_length"], expected["setting"]
    chain = reference_chain(setting, expected["crowded"]["arrivals_per_s"])
    rows, checks = [], []
    for length_s, start_s, written in zip(fixed["lengths_s"], fixed["starts_s"], fixed["stalls"], strict=True):
        row = _fixed_row(chain, length_s, start_s, setting)
        name = f"P(stall) of videos of exactly {length_s:g} s, threshold {start_s:g} s"
        checks.append(digit_check(name, row[2], written, source=fixed["source"]))
        rows.append(row)
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
    exact = fixed_length_stalls(chain, length_s, start_s)
    num, seed = setting["num_videos"], setting["seed"]
    tagged = simulate_tagged(chain, Player(start_s), num_videos=num, seed=seed, length_s=length_s).stall_probability
    exponential = RiccatiSolver().solution(replace(chain, end=chain.fill / length_s)).stall_probability(start_s)
    return length_s, start_s, exact, tagged.value, (tagged.value - exact) / tagged.error, exponential
