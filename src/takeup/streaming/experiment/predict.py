"""What viewers experience, for every arrival rate and start threshold of a scenario."""

from __future__ import annotations

import numpy as np

from takeup.core.report import Report
from takeup.streaming.experiment.cells import cells_of, players_of
from takeup.streaming.experiment.scenario import StreamingScenario, scenario_report
from takeup.streaming.model import Cell, Player
from takeup.streaming.policies.whole_cell import SolvedCell
from takeup.streaming.report import Curve, answers_table, cdf_series, curve_series

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
    from takeup.streaming.policies.startup_cdf import startup_cdf

    parts = list(zip(solved.shares, solved.solutions, strict=True))
    mean_s = sum(share * solution.mean_prefetch(player.start_s) for share, solution in parts)
    times_s = np.linspace(0.0, max(1e-3, 4 * mean_s), 81)
    laws = [share * startup_cdf(solution.chain, player.start_s, times_s) for share, solution in parts]
    return Curve(_name(cell), times_s.tolist(), np.sum(laws, axis=0).tolist())
