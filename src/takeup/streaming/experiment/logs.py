"""Answers from throughput logs: the fit of a model, the check of its answers on the log, and advice by replay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.report import Column, Report, Table
from takeup.errors import BadInput, UnknownName
from takeup.streaming import capacity_fit
from takeup.streaming.advice.p1203 import LENGTH_S, mean_p1203, p1203_package
from takeup.streaming.advice.players import PROFILES
from takeup.streaming.advice.qoe import solve_cell
from takeup.streaming.advice.tuning import check_stall_cost
from takeup.streaming.experiment.scenario import MOST_LOAD, StreamingScenario, scenario_report
from takeup.streaming.model import CapacityFit, Cell, Player, QoeMetrics, Views
from takeup.streaming.playback import play
from takeup.streaming.report import Curve, capacity_table, curve_series
from takeup.streaming.traces import ThroughputLog, read_log, read_logs

if TYPE_CHECKING:
    from takeup.streaming.simulate.replay import SteadyLog

# A model of a link, fitted to a throughput log ------------------------------------------------------------------------

LONGEST_SHOWN_S = 600
SHORT_S = 600.0
LARGEST_ERROR = 0.25  # of P(stall) on the log; a chain that is further off is contradicted
LEAST_ERROR = 1e-4
NUM_LOG_VIDEOS = 20_000


def fit(scenario: StreamingScenario, quiet: bool) -> Report:
    """What was fitted, its states, how it does for a lone viewer, and a chart of the log."""
    if scenario.log is None:
        raise BadInput("there is nothing to fit; give a throughput log")
    log = read_log(Path(scenario.log))
    pieces = log.per_second()
    fitted = capacity_fit.fit_capacity(pieces)
    rates = np.concatenate(pieces)[:LONGEST_SHOWN_S] / 1e6
    line = Curve("measured", list(range(len(rates))), rates.tolist())
    chart = curve_series(f"Throughput of {log.name}", "time", "rate", [line], y_unit="Mbit/s")
    lone, contradictions = _lone_viewer(fitted)
    tables = (_facts(log, fitted), capacity_table(fitted.capacity), lone)
    notes = (f"read as {log.form}", *log_warnings(log), *contradictions)
    return scenario_report(scenario, f"Streaming: fit of {log.name}", *tables, chart, notes=notes)


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


def log_warnings(log: ThroughputLog) -> tuple[str, ...]:
    """Whether the log is short."""
    if log.duration_s >= SHORT_S:
        return ()
    return (f"the log lasts {log.duration_s:.0f} s; what it lacks cannot be predicted: take ten minutes or more",)


def _lone_viewer(fitted: CapacityFit) -> tuple[Table, tuple[str, ...]]:
    """P(stall) of a viewer with exclusive use of the link, replayed and modelled, and where the two disagree."""
    replayed = capacity_fit.measured_stalls(fitted.pieces)
    modelled = capacity_fit.modelled_stalls(fitted.capacity)
    rows = tuple(
        (speed, start_s, float(replayed[i, j]), float(modelled[i, j]))
        for i, speed in enumerate(capacity_fit.SPEEDS)
        for j, start_s in enumerate(capacity_fit.THRESHOLDS_S)
    )
    columns = (
        Column("speed", "s/s", 1),
        Column("start at", "s", 0),
        Column("on the log", digits=4),
        Column("model", digits=4),
    )
    note = "speed: mean rate of the link over the bitrate; videos of 60 s"
    missed = [row for row in rows if contradicts(row[3], row[2])]
    reason = f"the model contradicts the log in {len(missed)} of {len(rows)} cases: {_reason(fitted)}"
    return Table("P(stall) of a lone viewer", columns, rows, note), (reason,) if missed else ()


# The check: the same cell and player on the log itself ----------------------------------------------------------------


def contradicts(predicted: float, found: float, error: float = 0.0) -> bool:
    """Whether a prediction is off by more than noise and a quarter of what the log shows, or practically zero."""
    is_off = abs(predicted - found) > max(LEAST_ERROR, 3 * error, LARGEST_ERROR * found)
    return is_off or (predicted < found / 10 and found > max(LEAST_ERROR, error))


def on_the_log(cell: Cell, player: Player, pieces: Sequence[Floats]) -> QoeMetrics:
    """The cell simulated with the capacity of the log itself."""
    from takeup.streaming.simulate.cell import simulate_log  # compiled code, which a plain prediction does not need

    rates = np.concatenate(list(pieces))
    steady = replace(cell, capacity=None)
    resumes = replace(player, resume_s=max(player.again_s, 0.01))  # a player that resumes on nothing stalls for ever
    return simulate_log(steady, resumes, np.ones(len(rates)), rates, num_videos=NUM_LOG_VIDEOS, seed=1)


def checked(
    rows: Sequence[tuple[Cell, Player, QoeMetrics]], fitted: CapacityFit
) -> tuple[list[QoeMetrics], list[QoeMetrics], tuple[str, ...]]:
    """Answers to trust, what the log shows, and notes: where the two disagree, the log is right about itself."""
    logged = [on_the_log(cell, player, fitted.pieces) for cell, player, _ in rows]
    wrong = [_is_wrong(row[2], found) for row, found in zip(rows, logged, strict=True)]
    answers = [found if bad else row[2] for row, found, bad in zip(rows, logged, wrong, strict=True)]
    notes = tuple(
        f"start at {player.start_s:g} s, {cell.arrivals_per_s:g} arrivals/s: equations {_share(answer)}, the log "
        f"itself {_share(found)} ± {found.stall_probability.error:.1g}, which is shown"
        for (cell, player, answer), found, bad in zip(rows, logged, wrong, strict=True)
        if bad
    )
    return answers, logged, (*notes, f"why they disagree: {_reason(fitted)}") if notes else ()


def _is_wrong(answer: QoeMetrics, found: QoeMetrics) -> bool:
    return contradicts(answer.stall_probability.value, found.stall_probability.value, found.stall_probability.error)


def _share(answer: QoeMetrics) -> str:
    return f"P(stall) {answer.stall_probability.value:.5f}"


def _reason(fitted: CapacityFit) -> str:
    slowest = float(fitted.capacity.levels.min())
    below = float((np.concatenate(fitted.pieces) < slowest).mean())
    states = f"the slowest of its {len(fitted.capacity.levels)} states has {slowest:.2f} of the mean rate"
    if below > 0.005:
        return f"{states}, and {100 * below:.1f} % of the seconds of the log are slower"
    return f"{states}; the log has bad spells that are longer, or closer together, than two time scales describe"


# Advice by replay -----------------------------------------------------------------------------------------------------

LONGEST_START_S = 60.0


def advise(scenario: StreamingScenario, quiet: bool) -> Report:
    """For every player product the start threshold of least cost on the log, with intervals and settings."""
    check_stall_cost(scenario.stall_cost)
    if scenario.p1203:
        p1203_package()
    log = log_of(scenario)
    pieces = log.per_second()
    steady = steady_log(log, scenario)
    best, rows, curves = {}, [], []
    for name in scenario.players:
        best[name], curve = _best(name, steady, scenario)
        default = PROFILES[name].default(scenario.segment_s, max(_rungs(scenario)))
        rows += [_row((name, "default"), _with_rule(default, scenario), steady, scenario)]
        rows += [_row((name, "best"), best[name], steady, scenario)]
        curves.append(curve)
    snippets = tuple((name, PROFILES[name].version, PROFILES[name].snippet(player)) for name, player in best.items())
    chart = curve_series("P(stall) by start threshold", "start threshold", "P(stall)", curves)
    first = best[scenario.players[0]]
    held_out, notes = _held_out(steady, first, scenario), _advice_notes(log, pieces, steady, first, scenario)
    settings = Table(
        "Settings of the best rows", (Column("player"), Column("version"), Column("configuration")), snippets
    )
    tables = (_outcome_table(rows, scenario), settings, held_out, *_back_test(log, scenario))
    return scenario_report(scenario, f"Streaming: advice from {log.name}", *tables, chart, notes=notes)


def steady_log(log: ThroughputLog, scenario: StreamingScenario) -> SteadyLog:
    """The log second by second, at the mean rate that is expected."""
    from takeup.streaming.simulate.replay import SteadyLog

    scale = 1.0 if scenario.capacity_bps is None else scenario.capacity_bps / log.mean_bps
    rates_bps = scale * np.concatenate(log.per_second())
    steady = SteadyLog(np.ones(len(rates_bps)), rates_bps)
    if steady.mean_bps < min(_rungs(scenario)) / MOST_LOAD:
        raise BadInput(f"the log has {steady.mean_bps:g} bit/s, a {MOST_LOAD:g}th of the bitrate; check the units")
    return steady


def _rungs(scenario: StreamingScenario) -> Sequence[float]:
    return scenario.bitrates_bps or (scenario.bitrate_bps,)


def _with_rule(player: Player, scenario: StreamingScenario) -> Player:
    return player if scenario.rule is None else replace(player, rule=scenario.rule)


def log_of(scenario: StreamingScenario) -> ThroughputLog:
    """All logs of a scenario as one."""
    if unknown := [name for name in scenario.players if name not in PROFILES]:
        raise UnknownName("player", unknown[0], PROFILES)
    paths = [Path(name) for name in scenario.logs]
    if not paths:
        raise BadInput("there is nothing to replay; give a throughput log")
    return read_log(paths[0]) if len(paths) == 1 else read_logs(paths, f"{len(paths)} logs")


def _best(name: str, steady: SteadyLog, scenario: StreamingScenario) -> tuple[Player, Curve]:
    """The player of least cost among thresholds of whole segments, and P(stall) at each."""
    profile, segment_s = PROFILES[name], scenario.segment_s
    starts_s = [(1 + place) * segment_s for place in range(max(1, int(LONGEST_START_S / segment_s)))]
    players = [
        _with_rule(profile.with_start(start_s, segment_s, max(_rungs(scenario))), scenario) for start_s in starts_s
    ]
    means = [steady.outcomes(each, _rungs(scenario), scenario.mean_video_s[0]).mean(axis=0) for each in players]
    costs = [mean[3] + scenario.stall_cost * mean[2] for mean in means]
    return players[int(np.argmin(costs))], Curve(name, starts_s, [float(mean[0]) for mean in means])


def _row(
    label: tuple[str, str], player: Player, steady: SteadyLog, scenario: StreamingScenario
) -> tuple[str | float, ...]:
    from takeup.streaming.simulate.replay import replay_intervals

    found = replay_intervals(steady, player, _rungs(scenario), scenario.mean_video_s[0])
    stalls, time, startup = found["stall_probability"], found["stall_s"], found["startup_s"].value
    rules = (player.start_s, player.again_s, player.full_s)
    shares = (stalls.value, stalls.low, stalls.high, found["num_stalls"].value)
    ladder = (
        (player.rule, found["bitrate_bps"].value / 1e6, found["num_switches"].value) if _is_ladder(scenario) else ()
    )
    cost = startup + scenario.stall_cost * time.value
    score = (_p1203(player, steady, scenario),) if scenario.p1203 else ()
    return (*label, *rules, *shares, time.value, time.high, startup, cost, *ladder, *score)


def _p1203(player: Player, steady: SteadyLog, scenario: StreamingScenario) -> float:
    return mean_p1203(steady.outcomes(player, _rungs(scenario), math.inf, length_s=LENGTH_S))


def _is_ladder(scenario: StreamingScenario) -> bool:
    return len(_rungs(scenario)) > 1


def _outcome_table(rows: Sequence[tuple[str | float, ...]], scenario: StreamingScenario) -> Table:
    ladder = (Column("rule"), Column("bitrate", "Mbit/s", 2), Column("switches", digits=1))
    columns = (
        Column("player"),
        Column("settings"),
        *(Column(name, "s", 1) for name in ("start at", "resume at", "goal")),
        *(Column(name, digits=4) for name in ("P(stall)", "from", "to", "stalls")),
        *(Column(name, "s", 2) for name in ("in stalls", "at most", "start-up", "cost")),
        *(ladder if _is_ladder(scenario) else ()),
        *((Column("P.1203", digits=2),) if scenario.p1203 else ()),
    )
    note = (
        f"videos of {scenario.mean_video_s[0]:g} s on average in segments of {scenario.segment_s:g} s; cost: seconds "
        f"of start-up + {scenario.stall_cost:g} x seconds in stalls; 'from', 'to', 'at most': 90 % intervals for the "
        "next log of this link"
    )
    return Table("Replay of the log", columns, tuple(rows), note)


def _held_out(steady: SteadyLog, player: Player, scenario: StreamingScenario) -> Table:
    from takeup.streaming.simulate.replay import held_out_errors

    pairs = held_out_errors(steady.outcomes(player, _rungs(scenario), scenario.mean_video_s[0]))
    rows = tuple((number, told, found, found - told) for number, (told, found) in enumerate(pairs, start=1))
    columns = (Column("part"), *(Column(name, digits=4) for name in ("from the others", "in this part", "difference")))
    return Table("P(stall) of each quarter of the log, predicted from the other three", columns, rows)


def _advice_notes(
    log: ThroughputLog, pieces: Sequence[Floats], steady: SteadyLog, player: Player, scenario: StreamingScenario
) -> tuple[str, ...]:
    notes = [
        f"read as {log.form}: {log.duration_s:.0f} s with a mean of {log.mean_bps / 1e6:.3g} Mbit/s",
        *log_warnings(log),
    ]
    if not _is_ladder(scenario):
        notes.append(_chain_note(capacity_fit.fit_capacity(pieces), steady, player, scenario))
    return tuple(notes)


def _back_test(log: ThroughputLog, scenario: StreamingScenario) -> tuple[Table, ...]:
    """The stalls that the sessions of a log report, and those of the same downloads by the rules of each player."""
    reported = [session.num_stalls for session in log.sessions if session.num_stalls is not None]
    if not reported:
        return ()
    rows: list[tuple[str | float, ...]] = [("reported", len(reported), sum(reported), _positive(reported))]
    known = [session for session in log.sessions if session.is_known]
    for name in scenario.players if known else ():
        player = PROFILES[name].default(scenario.segment_s, max(_rungs(scenario)))
        played = [play(each.content_s, each.took_s, player).num_stalls for each in known]
        rows.append((f"predicted, {name}", len(known), sum(played), _positive(played)))
    note = "predicted: the recorded segments and download times, played by the default rules of each player"
    columns = (Column("stalls"), Column("sessions"), Column("number"), Column("sessions with stalls", "%", 1))
    return (Table("Stalls in the log, and predicted", columns, tuple(rows), note),)


def _positive(counts: Sequence[int]) -> float:
    return 100 * sum(count > 0 for count in counts) / len(counts)


def _chain_note(fitted: CapacityFit, steady: SteadyLog, player: Player, scenario: StreamingScenario) -> str:
    """What the equations say about the same viewer, and why that differs from the replay."""
    mean_s = scenario.mean_video_s[0]
    alone = Cell(steady.mean_bps, scenario.bitrate_bps, 1e-9, 1, (Views(1.0, mean_s),), capacity=fitted.capacity)
    fluid = Player(player.start_s, player.start_s, player.full_s)
    chain = solve_cell(alone, fluid).stall_probability.value
    small = replace(fluid, segment_s=min(0.5, player.segment_s))
    flowing, whole = (
        float(steady.outcomes(each, scenario.bitrate_bps, mean_s)[:, 0].mean()) for each in (small, player)
    )
    start = f"at {player.start_s:g} s the equations say P(stall) {chain:.4f}, the replay {whole:.4f}"
    if not contradicts(chain, whole):
        return f"{start}: they agree"
    if contradicts(chain, flowing):
        return f"{start}; trust the replay: {_reason(fitted)}"
    return f"{start}; trust the replay: the equations have no whole segments ({flowing:.4f} without)"
