"""From a scenario to a report: the one place where cells, solvers, simulators, engines and reports are joined."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from takeup.core.files import write_atomically
from takeup.core.progress import progress
from takeup.core.report import Column, Report, Series, Table
from takeup.core.scenario import Scenario, validate
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Answer, Capacity, Cell, Player, Views
from takeup.streaming.policies.capacity_fit import CapacityFit, fit_capacity
from takeup.streaming.policies.mos import expected_mos
from takeup.streaming.policies.solution import Solution
from takeup.streaming.policies.whole_cell import exact_solver, solve_cell
from takeup.streaming.report import (
    Curve,
    answers_table,
    capacity_table,
    cdf_series,
    curve_series,
    estimates_table,
    zscores_table,
)
from takeup.streaming.traces import read_log

__all__ = ["StreamingScenario", "cells_of", "load_model", "run", "run_again", "save_model"]

Floats = npt.NDArray[np.float64]
Numbers = tuple[float, ...]

MOST_STATES_FOR_CDF = 20  # the law of the start-up delay takes seconds for large chains; its mean does not


class StreamingScenario(Scenario):
    """One question about a cell. Rates are in bit/s, times in seconds, buffers in seconds of video."""

    domain: Literal["streaming"] = "streaming"
    verb: Literal["predict", "optimise", "size", "fit", "simulate", "compare", "run"]
    capacity_bps: float | None = None
    bitrate_bps: float = 360e3
    arrivals_per_s: Numbers = (0.12,)
    max_users: int = 10
    mean_video_s: Numbers = (60.0,)
    view_shares: Numbers = (1.0,)
    opportunistic: bool = False
    start_s: Numbers = (5.0,)
    resume_s: float | None = None
    log: str | None = None
    model: str | None = None
    startup_cost: float = 0.01
    stall_target: float = 0.05
    simulators: tuple[str, ...] = ("tagged", "cell")
    num_videos: int | None = None
    engine: str = "dash"
    dry_run: bool = False

    @model_validator(mode="after")
    def _matching_views(self) -> StreamingScenario:
        if len(self.mean_video_s) != len(self.view_shares):
            raise ValueError("give as many view_shares as mean_video_s, one for each class of views")
        if not (self.arrivals_per_s and self.start_s and self.simulators):
            raise ValueError("give at least one arrival rate, one start threshold and one simulator")
        return self

    @model_validator(mode="after")
    def _one_question(self) -> StreamingScenario:
        if self.verb != "predict" and (len(self.arrivals_per_s) > 1 or len(self.start_s) > 1):
            raise ValueError(f"{self.verb!r} takes one arrival rate and one start threshold; 'predict' takes lists")
        if self.verb != "fit" and self.log is not None and self.model is not None:
            raise ValueError("give either a throughput log or a fitted model, not both")
        return self


def run_again(values: Mapping[str, Any], source: str, *, quiet: bool = False) -> Report:
    """Run the scenario that a file or a report holds."""
    return run(validate(StreamingScenario, values, source), quiet=quiet)


def run(scenario: StreamingScenario, *, quiet: bool = False) -> Report:
    """Carry the scenario out."""
    verbs: dict[str, Callable[[StreamingScenario, bool], Report]] = {
        "predict": _predict,
        "optimise": _optimise,
        "size": _size,
        "fit": _fit,
        "simulate": _simulate,
        "compare": _compare,
        "run": _run_engine,
    }
    return verbs[scenario.verb](scenario, quiet)


# The cell of a scenario ----------------------------------------------------------------------------------------------


def cells_of(scenario: StreamingScenario) -> list[Cell]:
    """The cell, once for each arrival rate."""
    fitted = _fitted(scenario)
    mean_bps = fitted.mean_bps if fitted else 2.8e6
    capacity_bps = mean_bps if scenario.capacity_bps is None else scenario.capacity_bps
    views = tuple(
        Views(share, mean_s) for share, mean_s in zip(scenario.view_shares, scenario.mean_video_s, strict=True)
    )
    return [
        Cell(
            capacity_bps,
            scenario.bitrate_bps,
            arrivals_per_s,
            scenario.max_users,
            views,
            scenario.opportunistic,
            fitted.capacity if fitted else None,
        )
        for arrivals_per_s in scenario.arrivals_per_s
    ]


def _fitted(scenario: StreamingScenario) -> CapacityFit | None:
    if scenario.model is not None:
        return load_model(Path(scenario.model))
    return fit_capacity(read_log(Path(scenario.log)).per_second()) if scenario.log is not None else None


def save_model(path: Path, fit: CapacityFit) -> None:
    """Keep a fitted capacity as JSON."""
    values = {
        "mean_bps": fit.mean_bps,
        "num_slow": fit.num_slow,
        "num_fast": fit.num_fast,
        "window_s": fit.window_s,
        "misfit": fit.misfit,
        "levels": fit.capacity.levels.tolist(),
        "generator_per_s": fit.capacity.generator.tolist(),
    }
    write_atomically(path, json.dumps(values, indent=1) + "\n")


def load_model(path: Path) -> CapacityFit:
    """Read what `save_model` wrote."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        capacity = Capacity(np.array(values["levels"], float), np.array(values["generator_per_s"], float))
        num_slow, num_fast, window_s = (int(values[key]) for key in ("num_slow", "num_fast", "window_s"))
        mean_bps, misfit = float(values["mean_bps"]), float(values["misfit"])
        return CapacityFit(capacity, mean_bps, num_slow, num_fast, window_s, misfit)
    except OSError as error:
        raise BadInput(f"cannot read model {path}: {error.strerror}; make one with 'takeup streaming fit'") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, BadInput) as error:
        raise BadInput(f"{path} is not a fitted model ({error!r}); make one with 'takeup streaming fit'") from error


def _report(scenario: StreamingScenario, title: str, *parts: Table | Series, notes: tuple[str, ...] = ()) -> Report:
    tables = tuple(part for part in parts if isinstance(part, Table))
    series = tuple(part for part in parts if isinstance(part, Series))
    return Report(title, "streaming", scenario.model_dump(), scenario.seed, tables, series, notes=notes)


def _players(scenario: StreamingScenario) -> list[Player]:
    return [Player(start_s, scenario.resume_s) for start_s in scenario.start_s]


def _name(cell: Cell) -> str:
    return f"{cell.arrivals_per_s:g} arrivals/s"


# The verbs ------------------------------------------------------------------------------------------------------------


def _predict(scenario: StreamingScenario, quiet: bool) -> Report:
    cells, players = cells_of(scenario), _players(scenario)
    rows = [(cell, player, solve_cell(cell, player), _score(cell, player)) for cell in cells for player in players]
    thresholds = np.linspace(0.0, max(20.0, *(2 * player.start_s for player in players)), 41)
    stalls = [Curve(_name(cell), thresholds.tolist(), _stall_curve(cell, thresholds)) for cell in cells]
    charts = [curve_series("P(stall) by start threshold", "start threshold", "P(stall)", stalls)]
    if chain_of(cells[0]).num_states <= MOST_STATES_FOR_CDF:
        charts.append(cdf_series([_delay_curve(cell, players[0]) for cell in cells]))
    return _report(scenario, "Streaming: what viewers experience", answers_table(rows), *charts)


def _solutions(cell: Cell) -> list[tuple[float, Solution]]:
    """Every class of views solved, with its share of the videos."""
    chains = [chain_of(cell, tagged) for tagged in range(len(cell.views))]
    return [(view.share, exact_solver(chain).solution(chain)) for view, chain in zip(cell.views, chains, strict=True)]


def _score(cell: Cell, player: Player) -> float:
    return sum(share * expected_mos(solution, player) for share, solution in _solutions(cell))


def _stall_curve(cell: Cell, thresholds_s: Floats) -> list[float]:
    solutions = _solutions(cell)
    return [
        sum(share * solution.stall_probability(float(threshold_s)) for share, solution in solutions)
        for threshold_s in thresholds_s
    ]


def _delay_curve(cell: Cell, player: Player) -> Curve:
    from takeup.streaming.policies.startup_cdf import startup_cdf

    solutions = _solutions(cell)
    mean_s = sum(share * solution.mean_prefetch(player.start_s) for share, solution in solutions)
    times_s = np.linspace(0.0, max(1e-3, 4 * mean_s), 81)
    laws = [share * startup_cdf(solution.chain, player.start_s, times_s) for share, solution in solutions]
    return Curve(_name(cell), times_s.tolist(), np.sum(laws, axis=0).tolist())


def _optimise(scenario: StreamingScenario, quiet: bool) -> Report:
    from takeup.streaming.policies.configs import CONFIGS
    from takeup.streaming.policies.threshold import best_threshold, mos_cost, stall_cost

    cell = cells_of(scenario)[0]
    solutions = _solutions(cell)
    cost = _over_views(stall_cost(scenario.startup_cost), solutions)
    choices = [
        best_threshold(solutions[0][1], each, resume_s=scenario.resume_s).player
        for each in (cost, _over_views(mos_cost, solutions))
    ]
    rows = [(cell, player, solve_cell(cell, player), _score(cell, player)) for player in choices]
    grid = np.linspace(0.0, max(10.0, 2 * choices[0].start_s), 61)
    costs = [cost(solutions[0][1], Player(float(start_s), scenario.resume_s)) for start_s in grid]
    name = f"P(stall) + {scenario.startup_cost:g} per second of start-up"
    curve = curve_series("Cost by start threshold", "start threshold", "cost", [Curve(name, grid.tolist(), costs)])
    snippets = tuple((player, config(choices[0])) for player, config in CONFIGS.items())
    settings = Table("Ready settings for the first row", (Column("player"), Column("configuration")), snippets)
    notes = (f"first row: least {name}; second row: best mean opinion score",)
    return _report(scenario, "Streaming: the best start threshold", answers_table(rows), settings, curve, notes=notes)


def _over_views(
    cost: Callable[[Solution, Player], float], solutions: list[tuple[float, Solution]]
) -> Callable[[Solution, Player], float]:
    """The mean cost of all classes of views; a player has one threshold for all of them."""
    return lambda _, player: sum(share * cost(solution, player) for share, solution in solutions)


def _size(scenario: StreamingScenario, quiet: bool) -> Report:
    from takeup.streaming.policies.sizing import Target, max_admission, max_arrivals, min_capacity

    cell, player, target = cells_of(scenario)[0], _players(scenario)[0], Target(scenario.stall_target)
    questions: dict[str, tuple[Callable[[], float], str]] = {
        "most arrivals": (lambda: max_arrivals(cell, player, target), "1/s"),
        "least capacity": (lambda: min_capacity(cell, player, target) / 1e6, "Mbit/s"),
        "most users at a time": (lambda: float(max_admission(cell, player, target)), "users"),
    }
    rows = tuple((name, *_answered(ask), unit) for name, (ask, unit) in questions.items())
    columns = (Column("question"), Column("answer", digits=4), Column("why not"), Column("unit"))
    note = f"everything else as in the scenario; at most {scenario.stall_target:g} of the videos may stall"
    return _report(scenario, "Streaming: how much the cell carries", Table("Limits", columns, rows, note))


def _answered(ask: Callable[[], float]) -> tuple[float | None, str]:
    """The number, or why there is none; one question without an answer does not spoil the others."""
    try:
        number = ask()
    except BadInput as error:
        return None, str(error)
    return (number, "") if np.isfinite(number) else (None, "no limit: admission alone keeps the target")


def _fit(scenario: StreamingScenario, quiet: bool) -> Report:
    if scenario.log is None:
        raise BadInput("there is nothing to fit; give a throughput log")
    log = read_log(Path(scenario.log))
    fit = fit_capacity(log.per_second())
    if scenario.model is not None:
        save_model(Path(scenario.model), fit)
    facts = (
        ("duration", log.duration_s, "s"),
        ("mean rate", fit.mean_bps / 1e6, "Mbit/s"),
        ("slow states", fit.num_slow, ""),
        ("fast states", fit.num_fast, ""),
        ("moving average", fit.window_s, "s"),
        ("error for a lone viewer", 100 * fit.misfit, "%"),
    )
    summary = Table(f"Fit of {log.name}", (Column("what"), Column("value", digits=2), Column("unit")), facts)
    seconds = np.concatenate(log.per_second())[:600]
    line = Curve("measured", list(range(len(seconds))), (seconds / 1e6).tolist())
    chart = curve_series(f"Throughput of {log.name}", "time", "rate", [line], y_unit="Mbit/s")
    return _report(scenario, f"Streaming: fit of {log.name}", summary, capacity_table(fit.capacity), chart)


def _simulate(scenario: StreamingScenario, quiet: bool) -> Report:
    measured = _simulated(scenario, quiet)
    return _report(scenario, "Streaming: simulated", estimates_table(measured))


def _simulated(scenario: StreamingScenario, quiet: bool) -> dict[str, Answer]:
    from takeup.streaming.simulate import simulate

    cell, player = cells_of(scenario)[0], _players(scenario)[0]
    answers = {}
    with progress("streaming simulate", len(scenario.simulators), quiet=quiet) as tick:
        for name in scenario.simulators:
            answers[name] = simulate(cell, player, simulator=name, num_videos=scenario.num_videos, seed=scenario.seed)
            tick()
    return answers


def _compare(scenario: StreamingScenario, quiet: bool) -> Report:
    exact = solve_cell(cells_of(scenario)[0], _players(scenario)[0])
    measured = _simulated(scenario, quiet)
    tables = (estimates_table({"equations": exact, **measured}), zscores_table(exact, measured))
    return _report(scenario, "Streaming: equations and simulations", *tables)


def _run_engine(scenario: StreamingScenario, quiet: bool) -> Report:
    from takeup.streaming.engines import find_engine

    whole, player = cells_of(scenario)[0], _players(scenario)[0]
    cell = replace(whole, capacity=None)
    notes = () if whole.capacity is None else ("the link of an engine has one rate: the mean of the log or model",)
    engine = find_engine(scenario.engine)()
    num_videos = 200 if scenario.num_videos is None else scenario.num_videos
    if scenario.dry_run:
        table = Table(
            "What would run", (Column("plan"),), ((str(engine.plan(cell, num_videos)),),), "nothing was opened"
        )
        return _report(scenario, f"Streaming: plan for {scenario.engine}", table, notes=notes)
    rng = Streams(scenario.seed).stream("streaming run")
    measured = {scenario.engine: engine.measure(cell, player, num_videos=num_videos, rng=rng)}
    exact = solve_cell(cell, player)
    tables = (estimates_table({"equations": exact, **measured}), zscores_table(exact, measured))
    return _report(scenario, f"Streaming: {scenario.engine} and equations", *tables, notes=notes)
