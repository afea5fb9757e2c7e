"""The verbs: each answers one scenario with a report."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from takeup.core.progress import progress
from takeup.core.report import Column, Report, Table
from takeup.errors import BadInput
from takeup.streaming.advice.players import PROFILES
from takeup.streaming.advice.qoe import MANY_STATES, ImpatientCell, SolvedCell, check_quick, mean_mos
from takeup.streaming.advice.tuning import (
    Cost,
    StallTarget,
    best_threshold,
    max_admission,
    max_arrivals,
    min_capacity,
    waiting_cost,
)
from takeup.streaming.chains import PICTURES_S
from takeup.streaming.experiment.logs import checked, on_the_log
from takeup.streaming.experiment.scenario import (
    StreamingScenario,
    cells_of,
    fitted_capacity,
    players_of,
    scenario_report,
)
from takeup.streaming.model import CapacityFit, Cell, Player, QoeMetrics
from takeup.streaming.report import (
    AnswerRow,
    Curve,
    answers_table,
    cdf_series,
    curve_series,
    estimates_table,
    zscores_table,
)
from takeup.streaming.solvers.solution import SolvedChain

AnyCell = SolvedCell | ImpatientCell

# What viewers experience, for every arrival rate and start threshold of a scenario ------------------------------------

MEAN_FIELD = (
    "viewers that give up: the others are a mean field, so the equations are not exact; P(stall) was 2 to 28 % below "
    "whole-cell simulations in five cells: 'takeup streaming compare cell' measures yours",
)
LEAST_START_S = 0.1  # with a buffer goal, where a player that resumes on nothing has no solution
MOST_STATES_FOR_CDF = 20  # the law of the start-up delay takes seconds for large chains; its mean does not
NUM_THRESHOLDS, NUM_SLOW_THRESHOLDS, SHORTEST_AXIS_S = 41, 11, 20.0


def predict(scenario: StreamingScenario, quiet: bool) -> Report:
    """A table of all cells and players, and charts over the start threshold and of the start-up delay."""
    fitted = fitted_capacity(scenario)
    cells, players = cells_of(scenario, fitted), players_of(scenario)
    with progress("streaming predict", len(cells) * len(cells[0].views), quiet=quiet) as tick:
        solved = [(cell, _solved(cell, scenario, tick)) for cell in cells]
        rows = [(cell, player, each.answer(player), each.mos(player)) for cell, each in solved for player in players]
    rows, logged, notes = _with_log(rows, fitted)
    notes += (*(MEAN_FIELD if scenario.give_up_per_s > 0 else ()), *_diffusion_notes(scenario, scenario.start_s))
    longest_s = max(SHORTEST_AXIS_S, *(2 * player.start_s for player in players))
    stalls = [_stall_curve(cell, each, longest_s, players[0].goal_s) for cell, each in solved]
    charts = [curve_series("P(stall) by start threshold", "start threshold", "P(stall)", stalls)]
    plain = [(cell, each) for cell, each in solved if isinstance(each, SolvedCell)]
    if plain and plain[0][1].solutions[0].chain.num_states <= MOST_STATES_FOR_CDF:
        charts.append(cdf_series([_delay_curve(cell, each, players[0]) for cell, each in plain]))
    return scenario_report(
        scenario, "Streaming: what viewers experience", answers_table(rows, logged), *charts, notes=notes
    )


def _solved(cell: Cell, scenario: StreamingScenario, tick: Callable[[], None] = lambda: None) -> AnyCell:
    return ImpatientCell(cell, scenario.give_up_per_s) if scenario.give_up_per_s > 0 else SolvedCell(cell, tick)


def _diffusion_notes(scenario: StreamingScenario, starts_s: Iterable[float]) -> tuple[str, ...]:
    """Where a variable bit rate is more than a small variance: thresholds that few groups of pictures fill."""
    short = sorted({start_s for start_s in starts_s if start_s < 10 * PICTURES_S * scenario.variation**2})
    starts = ", ".join(f"{start_s:.3g}" for start_s in short)
    found = f"a start at {starts} s is short for this variation: a diffusion says too many stalls"
    return (f"{found}; 'takeup streaming compare slots' measures it",) if short else ()


def _with_log(
    rows: list[AnswerRow], fitted: CapacityFit | None
) -> tuple[list[AnswerRow], list[QoeMetrics], tuple[str, ...]]:
    """The rows with the answer of the log where it contradicts the equations, what the log shows, and why."""
    if fitted is None or not fitted.pieces:
        return rows, [], ()
    answers, logged, notes = checked([row[:3] for row in rows], fitted)
    scores = [row[3] if row[2] is answer else mean_mos(answer) for row, answer in zip(rows, answers, strict=True)]
    trusted = [(row[0], row[1], *pair) for row, pair in zip(rows, zip(answers, scores, strict=True), strict=True)]
    return trusted, logged, notes


def _name(cell: Cell) -> str:
    return f"{cell.arrivals_per_s:g} arrivals/s"


def _stall_curve(cell: Cell, solved: AnyCell, longest_s: float, goal_s: float) -> Curve:
    is_quick = isinstance(solved, SolvedCell) and solved.solutions[0].chain.num_states <= MANY_STATES
    num = NUM_THRESHOLDS if is_quick else NUM_SLOW_THRESHOLDS
    step_s = longest_s / (num - 1)
    return Curve(_name(cell), (step_s * np.arange(num)).tolist(), solved.stall_curve(step_s, num, goal_s).tolist())


def _delay_curve(cell: Cell, solved: SolvedCell, player: Player) -> Curve:
    from takeup.streaming.solvers.transforms import startup_cdf

    parts = list(zip(solved.shares, solved.solutions, strict=True))
    start_s = min(player.start_s, player.goal_s)
    mean_s = sum(share * solution.answer(player).startup_s.value for share, solution in parts)
    times_s = np.linspace(0.0, max(1e-3, 4 * mean_s), 81)
    laws = [share * startup_cdf(solution.chain, start_s, times_s) for share, solution in parts]
    return Curve(_name(cell), times_s.tolist(), np.sum(laws, axis=0).tolist())


# Advice from the equations: the best start threshold, and how much a cell carries -------------------------------------


def optimise(scenario: StreamingScenario, quiet: bool) -> Report:
    """The start threshold of least cost, with settings for players computed by their own rules."""
    fitted = fitted_capacity(scenario)
    cell = cells_of(scenario, fitted)[0]
    check_quick(cell)
    solved = SolvedCell(cell)
    first, cost = solved.solutions[0], _over_views(waiting_cost(scenario.stall_cost), solved)
    goal_s = np.inf if scenario.goal_s is None else scenario.goal_s
    least_s = 0.0 if scenario.goal_s is None else LEAST_START_S
    player = best_threshold(first, cost, least_s=least_s, resume_s=scenario.resume_s, goal_s=goal_s)
    rows: list[AnswerRow] = [(cell, player, solved.answer(player), solved.mos(player))]
    rows, logged, notes = _with_log(rows, fitted)
    if fitted is not None and notes:
        player = _best_on_the_log(cell, fitted, scenario)
        rows, logged, _ = _with_log([(cell, player, solved.answer(player), solved.mos(player)), *rows], fitted)
        notes = ("first row: the best threshold on the log itself; second row: what the equations chose", *notes)
    grid = np.linspace(least_s, max(10.0, 2 * player.start_s), 61)
    line = [cost(first, Player(float(start_s), scenario.resume_s, goal_s)) for start_s in grid]
    name = f"seconds of start-up + {scenario.stall_cost:g} x seconds in stalls"
    curve = curve_series("Cost by start threshold", "start threshold", "cost", [Curve(name, grid.tolist(), line)])
    settings = _settings_table(solved, player, scenario)
    notes = (f"least {name}", *notes, *_diffusion_notes(scenario, [player.start_s]))
    table = answers_table(rows, logged)
    return scenario_report(scenario, "Streaming: the best start threshold", table, settings, curve, notes=notes)


def _best_on_the_log(cell: Cell, fitted: CapacityFit, scenario: StreamingScenario) -> Player:
    """The threshold of least cost, by simulation with the capacity of the log."""
    thresholds_s = (60.0 * np.linspace(0, 1, 16)[1:] ** 2).tolist()
    players = [Player(start_s, scenario.resume_s) for start_s in thresholds_s]
    answers = [on_the_log(cell, player, fitted.pieces) for player in players]
    costs = [each.startup_s.value + scenario.stall_cost * each.stall_s.value for each in answers]
    return players[int(np.argmin(costs))]


def _settings_table(solved: SolvedCell, player: Player, scenario: StreamingScenario) -> Table:
    """What viewers experience with each product at this threshold, by its own rules, and the code that sets it."""
    rows = []
    for name, profile in PROFILES.items():
        product = profile.with_start(player.start_s, scenario.segment_s, scenario.bitrate_bps)
        goal_s = np.inf if scenario.opportunistic else product.full_s
        answer = solved.answer(Player(player.start_s, product.again_s, goal_s))
        stalls = (answer.stall_probability.value, answer.num_stalls.value, answer.stall_s.value)
        rows.append((name, product.again_s, product.full_s, *stalls, profile.snippet(product)))
    columns = (
        Column("player"),
        Column("resumes at", "s", 1),
        Column("goal", "s", 1),
        Column("P(stall)", digits=5),
        Column("stalls", digits=4),
        Column("in stalls", "s", digits=3),
        Column("configuration"),
    )
    note = f"segments of {scenario.segment_s:g} s after a stall; goal: 'takeup streaming advise' replays whole segments"
    return Table("Settings of players", columns, tuple(rows), note)


def _over_views(cost: Cost, solved: SolvedCell) -> Cost:
    """The mean cost of all classes of views; a player has one threshold for all of them."""
    parts = list(zip(solved.shares, solved.solutions, strict=True))

    def mean(_: SolvedChain, player: Player) -> float:
        return sum(share * cost(solution, player) for share, solution in parts)

    return mean


def size(scenario: StreamingScenario, quiet: bool) -> Report:
    """How many arrivals, how little capacity and how many users keep a stall target."""
    fitted = fitted_capacity(scenario)
    cell, player = cells_of(scenario, fitted)[0], players_of(scenario)[0]
    check_quick(cell)
    target = StallTarget(scenario.stall_target)
    questions: dict[str, tuple[Callable[[], float], str]] = {
        "most arrivals": (lambda: max_arrivals(cell, player, target), "1/s"),
        "least capacity": (lambda: min_capacity(cell, player, target) / 1e6, "Mbit/s"),
        "most users at a time": (lambda: float(max_admission(cell, player, target)), "users"),
    }
    rows = tuple((name, *_answered(ask), unit) for name, (ask, unit) in questions.items())
    columns = (Column("question"), Column("answer", digits=4), Column("why not"), Column("unit"))
    note = f"everything else as in the scenario; at most {scenario.stall_target:g} of the videos may stall"
    notes = (*_limit_on_the_log(cell, player, fitted, rows[0][1]), *_diffusion_notes(scenario, scenario.start_s))
    limits = Table("Limits", columns, rows, note)
    return scenario_report(scenario, "Streaming: how much the cell carries", limits, notes=notes)


def _limit_on_the_log(
    cell: Cell, player: Player, fitted: CapacityFit | None, arrivals_per_s: float | None
) -> tuple[str, ...]:
    if fitted is None or not fitted.pieces or arrivals_per_s is None:
        return ()
    found = on_the_log(replace(cell, arrivals_per_s=arrivals_per_s), player, fitted.pieces).stall_probability
    return (f"on the log itself P(stall) at the most arrivals is {found.value:.4f} ± {found.error:.1g}",)


def _answered(ask: Callable[[], float]) -> tuple[float | None, str]:
    """The number, or why there is none; one question without an answer does not spoil the others."""
    try:
        number = ask()
    except BadInput as error:
        return None, str(error)
    return (number, "") if np.isfinite(number) else (None, "no limit: admission alone keeps the target")


# Videos in simulators, compared with the equations --------------------------------------------------------------------


def simulate(scenario: StreamingScenario, quiet: bool) -> Report:
    """What the simulators of a scenario measure."""
    return scenario_report(scenario, "Streaming: simulated", estimates_table(_simulated(scenario, quiet)))


def compare(scenario: StreamingScenario, quiet: bool) -> Report:
    """What the simulators measure, compared with the equations."""
    exact = _solved(cells_of(scenario)[0], scenario).answer(players_of(scenario)[0])
    tables = _comparison_tables(exact, _simulated(scenario, quiet))
    notes = MEAN_FIELD if scenario.give_up_per_s > 0 else ()
    return scenario_report(scenario, "Streaming: equations and simulations", *tables, notes=notes)


def _simulated(scenario: StreamingScenario, quiet: bool) -> dict[str, QoeMetrics]:
    from takeup.streaming.simulate import simulate as play

    cell, player = cells_of(scenario)[0], players_of(scenario)[0]
    answers = {}
    with progress("streaming simulate", len(scenario.simulators), quiet=quiet) as tick:
        for name in scenario.simulators:
            answers[name] = play(
                cell,
                player,
                simulator=name,
                num_videos=scenario.num_videos,
                seed=scenario.seed,
                give_up_per_s=scenario.give_up_per_s,
            )
            tick()
    return answers


def _comparison_tables(exact: QoeMetrics, measured: dict[str, QoeMetrics]) -> tuple[Table, Table]:
    return estimates_table({"equations": exact, **measured}), zscores_table(exact, measured)
