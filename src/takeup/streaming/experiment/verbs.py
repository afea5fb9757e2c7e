"""The verbs: each answers one scenario with a report."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from takeup.core.progress import progress
from takeup.core.report import Column, Report, Table
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.advice.qoe import SolvedCell, solve_cell
from takeup.streaming.advice.tuning import (
    PLAYER_SETTINGS,
    Cost,
    StallTarget,
    best_threshold,
    max_admission,
    max_arrivals,
    min_capacity,
    mos_cost,
    stall_cost,
)
from takeup.streaming.capacity_fit import fit_capacity
from takeup.streaming.experiment.scenario import StreamingScenario, cells_of, players_of, save_model, scenario_report
from takeup.streaming.model import CapacityFit, Cell, Player, QoeMetrics
from takeup.streaming.report import (
    Curve,
    answers_table,
    capacity_table,
    cdf_series,
    curve_series,
    estimates_table,
    zscores_table,
)
from takeup.streaming.solvers.solution import Solution
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
    from takeup.streaming.solvers.transforms import startup_cdf

    parts = list(zip(solved.shares, solved.solutions, strict=True))
    mean_s = sum(share * solution.mean_prefetch(player.start_s) for share, solution in parts)
    times_s = np.linspace(0.0, max(1e-3, 4 * mean_s), 81)
    laws = [share * startup_cdf(solution.chain, player.start_s, times_s) for share, solution in parts]
    return Curve(_name(cell), times_s.tolist(), np.sum(laws, axis=0).tolist())


# Advice from the equations: the best start threshold, and how much a cell carries -------------------------------------


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


# Measured videos, in simulators and on a real link, compared with the equations ---------------------------------------


def simulate(scenario: StreamingScenario, quiet: bool) -> Report:
    """What the simulators of a scenario measure."""
    return scenario_report(scenario, "Streaming: simulated", estimates_table(_simulated(scenario, quiet)))


def compare(scenario: StreamingScenario, quiet: bool) -> Report:
    """What the simulators measure, compared with the equations."""
    exact = solve_cell(cells_of(scenario)[0], players_of(scenario)[0])
    tables = _comparison_tables(exact, _simulated(scenario, quiet))
    return scenario_report(scenario, "Streaming: equations and simulations", *tables)


def run_engine(scenario: StreamingScenario, quiet: bool) -> Report:
    """What an engine measures, compared with the equations; for a dry run, what it would run."""
    from takeup.streaming.engines import find_engine

    whole, player = cells_of(scenario)[0], players_of(scenario)[0]
    cell = replace(whole, capacity=None)
    notes = () if whole.capacity is None else ("the link of an engine has one rate: the mean of the log or model",)
    engine = find_engine(scenario.engine)()
    num_videos = 200 if scenario.num_videos is None else scenario.num_videos
    if scenario.dry_run:
        plan = ((str(engine.plan(cell, num_videos)),),)
        table = Table("What would run", (Column("plan"),), plan, "nothing was opened")
        return scenario_report(scenario, f"Streaming: plan for {scenario.engine}", table, notes=notes)
    rng = Streams(scenario.seed).stream("streaming run")
    measured = {scenario.engine: engine.measure(cell, player, num_videos=num_videos, rng=rng)}
    tables = _comparison_tables(solve_cell(cell, player), measured)
    return scenario_report(scenario, f"Streaming: {scenario.engine} and equations", *tables, notes=notes)


def _simulated(scenario: StreamingScenario, quiet: bool) -> dict[str, QoeMetrics]:
    from takeup.streaming.simulate import simulate as play

    cell, player = cells_of(scenario)[0], players_of(scenario)[0]
    answers = {}
    with progress("streaming simulate", len(scenario.simulators), quiet=quiet) as tick:
        for name in scenario.simulators:
            answers[name] = play(cell, player, simulator=name, num_videos=scenario.num_videos, seed=scenario.seed)
            tick()
    return answers


def _comparison_tables(exact: QoeMetrics, measured: dict[str, QoeMetrics]) -> tuple[Table, Table]:
    return estimates_table({"equations": exact, **measured}), zscores_table(exact, measured)
