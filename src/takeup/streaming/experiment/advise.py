"""Advice from the equations: the best start threshold, and how much a cell carries."""

from collections.abc import Callable

import numpy as np

from takeup.core.report import Column, Report, Table
from takeup.errors import BadInput
from takeup.streaming.advice.qoe import SolvedCell
from takeup.streaming.advice.sizing import StallTarget, max_admission, max_arrivals, min_capacity
from takeup.streaming.advice.threshold import PLAYER_SETTINGS, Cost, best_threshold, mos_cost, stall_cost
from takeup.streaming.experiment.scenario import StreamingScenario, cells_of, players_of, scenario_report
from takeup.streaming.model import Player
from takeup.streaming.report import Curve, answers_table, curve_series
from takeup.streaming.solvers.solution import Solution


def optimise(scenario: StreamingScenario, quiet: bool) -> Report:
    """The best start threshold by cost and by score, with settings for players."""
    cell = cells_of(scenario)[0]
    solved = SolvedCell(cell)
    first, cost = solved.solutions[0], _over_views(stall_cost(scenario.startup_cost), solved)
    costs = cost, _over_views(mos_cost, solved)
    choices = [best_threshold(first, each, resume_s=scenario.resume_s).player for each in costs]
    rows = [(cell, player, solved.answer(player), solved.mos(player)) for player in choices]
    grid = np.linspace(0.0, max(10.0, 2 * choices[0].start_s), 61)
    line = [cost(first, Player(float(start_s), scenario.resume_s)) for start_s in grid]
    name = f"P(stall) + {scenario.startup_cost:g} per second of start-up"
    curve = curve_series("Cost by start threshold", "start threshold", "cost", [Curve(name, grid.tolist(), line)])
    snippets = tuple((player, config(choices[0])) for player, config in PLAYER_SETTINGS.items())
    settings = Table("Ready settings for the first row", (Column("player"), Column("configuration")), snippets)
    notes = (f"first row: least {name}; second row: best mean opinion score",)
    return scenario_report(
        scenario, "Streaming: the best start threshold", answers_table(rows), settings, curve, notes=notes
    )


def _over_views(cost: Cost, solved: SolvedCell) -> Cost:
    """The mean cost of all classes of views; a player has one threshold for all of them."""
    parts = list(zip(solved.shares, solved.solutions, strict=True))

    def mean(_: Solution, player: Player) -> float:
        return sum(share * cost(solution, player) for share, solution in parts)

    return mean


def size(scenario: StreamingScenario, quiet: bool) -> Report:
    """How many arrivals, how little capacity and how many users keep a stall target."""
    cell, player, target = cells_of(scenario)[0], players_of(scenario)[0], StallTarget(scenario.stall_target)
    questions: dict[str, tuple[Callable[[], float], str]] = {
        "most arrivals": (lambda: max_arrivals(cell, player, target), "1/s"),
        "least capacity": (lambda: min_capacity(cell, player, target) / 1e6, "Mbit/s"),
        "most users at a time": (lambda: float(max_admission(cell, player, target)), "users"),
    }
    rows = tuple((name, *_answered(ask), unit) for name, (ask, unit) in questions.items())
    columns = (Column("question"), Column("answer", digits=4), Column("why not"), Column("unit"))
    note = f"everything else as in the scenario; at most {scenario.stall_target:g} of the videos may stall"
    return scenario_report(scenario, "Streaming: how much the cell carries", Table("Limits", columns, rows, note))


def _answered(ask: Callable[[], float]) -> tuple[float | None, str]:
    """The number, or why there is none; one question without an answer does not spoil the others."""
    try:
        number = ask()
    except BadInput as error:
        return None, str(error)
    return (number, "") if np.isfinite(number) else (None, "no limit: admission alone keeps the target")
