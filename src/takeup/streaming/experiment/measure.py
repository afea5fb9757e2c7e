"""Measured videos, in simulators and on a real link, compared with the equations."""

from dataclasses import replace

from takeup.core.progress import progress
from takeup.core.report import Column, Report, Table
from takeup.core.seeds import Streams
from takeup.streaming.advice.qoe import solve_cell
from takeup.streaming.experiment.scenario import StreamingScenario, cells_of, players_of, scenario_report
from takeup.streaming.model import QoeMetrics
from takeup.streaming.report import estimates_table, zscores_table


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
