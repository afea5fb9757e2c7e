"""Fit a model of a link to a throughput log, and predict what viewers experience."""

from pathlib import Path

import numpy as np

from takeup.core.report import Column, Report, Table
from takeup.errors import BadInput
from takeup.streaming.advice.qoe import SolvedCell
from takeup.streaming.capacity_fit import fit_capacity
from takeup.streaming.experiment.scenario import StreamingScenario, cells_of, players_of, save_model, scenario_report
from takeup.streaming.model import CapacityFit, Cell, Player
from takeup.streaming.report import Curve, answers_table, capacity_table, cdf_series, curve_series
from takeup.streaming.traces import ThroughputLog, read_log

# A model of a link, fitted to a throughput log and kept for predictions -----------------------------------------------

LONGEST_SHOWN_S = 600


def fit(scenario: StreamingScenario, quiet: bool) -> Report:
    """What was fitted, its states, and a chart of the log."""
    if scenario.log is None:
        raise BadInput("there is nothing to fit; give a throughput log")
    log = read_log(Path(scenario.log))
    pieces = log.per_second()
    fitted = fit_capacity(pieces)
    if scenario.model is not None:
        save_model(Path(scenario.model), fitted)
    rates = np.concatenate(pieces)[:LONGEST_SHOWN_S] / 1e6
    line = Curve("measured", list(range(len(rates))), rates.tolist())
    chart = curve_series(f"Throughput of {log.name}", "time", "rate", [line], y_unit="Mbit/s")
    states = capacity_table(fitted.capacity)
    return scenario_report(scenario, f"Streaming: fit of {log.name}", _facts(log, fitted), states, chart)


def _facts(log: ThroughputLog, fitted: CapacityFit) -> Table:
    facts = (
        ("duration", log.duration_s, "s"),
        ("mean rate", fitted.mean_bps / 1e6, "Mbit/s"),
        ("slow states", fitted.num_slow, ""),
        ("fast states", fitted.num_fast, ""),
        ("moving average", fitted.window_s, "s"),
        ("error for a lone viewer", 100 * fitted.misfit, "%"),
    )
    return Table(f"Fit of {log.name}", (Column("what"), Column("value", digits=2), Column("unit")), facts)


# What viewers experience, for every arrival rate and start threshold of a scenario ------------------------------------

MOST_STATES_FOR_CDF = 20  # the law of the start-up delay takes seconds for large chains; its mean does not
NUM_THRESHOLDS, SHORTEST_AXIS_S = 41, 20.0


def predict(scenario: StreamingScenario, quiet: bool) -> Report:
    """A table of all cells and players, and charts over the start threshold and of the start-up delay."""
    cells, players = cells_of(scenario), players_of(scenario)
    solved = [(cell, SolvedCell(cell)) for cell in cells]
    rows = [(cell, player, each.answer(player), each.mos(player)) for cell, each in solved for player in players]
    longest_s = max(SHORTEST_AXIS_S, *(2 * player.start_s for player in players))
    stalls = [_stall_curve(cell, each, longest_s) for cell, each in solved]
    charts = [curve_series("P(stall) by start threshold", "start threshold", "P(stall)", stalls)]
    if solved[0][1].solutions[0].chain.num_states <= MOST_STATES_FOR_CDF:
        charts.append(cdf_series([_delay_curve(cell, each, players[0]) for cell, each in solved]))
    return scenario_report(scenario, "Streaming: what viewers experience", answers_table(rows), *charts)


def _name(cell: Cell) -> str:
    return f"{cell.arrivals_per_s:g} arrivals/s"


def _stall_curve(cell: Cell, solved: SolvedCell, longest_s: float) -> Curve:
    step_s = longest_s / (NUM_THRESHOLDS - 1)
    thresholds_s = step_s * np.arange(NUM_THRESHOLDS)
    return Curve(_name(cell), thresholds_s.tolist(), solved.stall_curve(step_s, NUM_THRESHOLDS).tolist())


def _delay_curve(cell: Cell, solved: SolvedCell, player: Player) -> Curve:
    from takeup.streaming.solvers.startup_cdf import startup_cdf

    parts = list(zip(solved.shares, solved.solutions, strict=True))
    mean_s = sum(share * solution.mean_prefetch(player.start_s) for share, solution in parts)
    times_s = np.linspace(0.0, max(1e-3, 4 * mean_s), 81)
    laws = [share * startup_cdf(solution.chain, player.start_s, times_s) for share, solution in parts]
    return Curve(_name(cell), times_s.tolist(), np.sum(laws, axis=0).tolist())
