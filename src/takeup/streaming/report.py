"""Answers of streaming as reports: what viewers experience, curves over the threshold, and z-scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from takeup.core.report import Cell as TableCell
from takeup.core.report import Column, Report, Series, Table
from takeup.streaming.capacity_fit import settled_law
from takeup.streaming.model import Capacity, CapacityFit, Cell, Player, QoeMetrics

QUANTITIES = {
    "startup_s": "start-up (s)",
    "stall_probability": "P(stall)",
    "num_stalls": "stalls per video",
    "stall_s": "time in stalls (s)",
    "finished_early": "downloaded before start",
    "blocked_share": "blocked",
}
SHARES = ("stall_probability", "finished_early", "blocked_share")
ANSWER_COLUMNS = (
    Column("arrivals", "1/s"),
    Column("load", digits=2),
    Column("start at", "s", digits=1),
    Column("start-up", "s", digits=2),
    Column("P(stall)", digits=5),
    Column("stalls", digits=4),
    Column("in stalls", "s", digits=3),
    Column("early", digits=4),
    Column("blocked", digits=4),
    Column("MOS", digits=2),
)
LOG_COLUMNS = (Column("P(stall) on the log", digits=5), Column("±", digits=5))


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


AnswerRow = tuple[Cell, Player, QoeMetrics, float]


def answers_table(rows: Sequence[AnswerRow], logged: Sequence[QoeMetrics] = ()) -> Table:
    """One row for each cell and player; the last of each is the mean opinion score, then P(stall) on a log, if any."""
    impatient = any(answer.gave_up.value > 0 for _, _, answer, _ in rows)
    cells = tuple(
        (
            cell.arrivals_per_s,
            cell.load,
            player.start_s,
            answer.startup_s.value,
            answer.stall_probability.value,
            answer.num_stalls.value if np.isfinite(answer.num_stalls.value) else None,
            answer.stall_s.value,
            answer.finished_early.value,
            answer.blocked_share.value,
            score,
            *((answer.gave_up.value,) if impatient else ()),
            *_on_the_log(logged[place : place + 1]),
        )
        for place, (cell, player, answer, score) in enumerate(rows)
    )
    note = "early: downloaded before playback could start; blocked: turned away; MOS: estimated opinion score (1-5)"
    gave_up = (Column("gave up", digits=4),) if impatient else ()
    columns = (*ANSWER_COLUMNS, *gave_up, *(LOG_COLUMNS if logged else ()))
    return Table("What viewers experience", columns, cells, note)


def _on_the_log(logged: Sequence[QoeMetrics]) -> tuple[float, ...]:
    return tuple(
        number for found in logged for number in (found.stall_probability.value, found.stall_probability.error)
    )


def estimates_table(answers: Mapping[str, QoeMetrics]) -> Table:
    """Every quantity of every answer with its standard error."""
    columns = (Column("quantity"), *(c for name in answers for c in (Column(name, digits=5), Column("±", digits=5))))
    rows = tuple(
        (label, *(number for answer in answers.values() for number in _numbers(answer, name)))
        for name, label in QUANTITIES.items()
    )
    return Table("Answers with standard errors", columns, rows, "equations are exact: their error is 0")


def _numbers(answer: QoeMetrics, name: str) -> tuple[TableCell, TableCell]:
    estimate = getattr(answer, name)
    return (estimate.value, estimate.error) if np.isfinite(estimate.value) else (None, None)


def zscores_table(exact: QoeMetrics, measured: Mapping[str, QoeMetrics]) -> Table:
    """By how many standard errors each measurement differs from the equations."""
    scores = {name: answer.z_scores(exact) for name, answer in measured.items()}
    columns = (Column("quantity"), *(Column(name, "z", digits=2) for name in measured))
    rows = tuple((label, *(scores[one].get(name) for one in scores)) for name, label in QUANTITIES.items())
    return Table(
        "Measured minus equations, in standard errors", columns, rows, "most should lie within 2, nearly all within 3.5"
    )


def capacity_table(capacity: Capacity) -> Table:
    """The states of a fitted capacity, from bad to good."""
    law = settled_law(capacity)
    leaves_per_s = -np.diag(capacity.generator)
    stays_s = [1 / float(rate) if rate > 0 else None for rate in leaves_per_s]  # None: for ever
    order = np.argsort(capacity.levels)
    rows = tuple((float(capacity.levels[i]), float(law[i]), stays_s[i]) for i in order)
    columns = (Column("level", "of the mean", 3), Column("share of time"), Column("stays", "s", 1))
    return Table("States of the link", columns, rows)


def curve_series(
    title: str, x: str, y: str, curves: Sequence[Curve], x_unit: str = "s", y_unit: str = "", note: str = ""
) -> Series:
    """Lines over the same axes; steps if a note explains their jumps."""
    rows: tuple[dict[str, TableCell], ...] = tuple(
        {"line": curve.name, x: float(x_value), y: float(y_value)}
        for curve in curves
        for x_value, y_value in zip(curve.x, curve.y, strict=True)
    )
    return Series(title, x, y, rows, "line", None, x_unit, y_unit, "step" if note else "line", note)


def cdf_series(curves: Sequence[Curve]) -> Series:
    """Distribution of the start-up delay; its jumps are real."""
    note = "A jump is the probability that the number of users did not change while the video waited."
    return curve_series("Start-up delay", "delay", "P(start-up ≤ delay)", curves, note=note)


def report_of(result: QoeMetrics | CapacityFit) -> Report:
    """What viewers experience, or the fitted capacity of a link, as a report."""
    if isinstance(result, CapacityFit):
        table = capacity_table(result.capacity)
        states: tuple[dict[str, TableCell], ...] = tuple({"level": row[0], "share": row[1]} for row in table.rows)
        chart = Series("Share of time at each level", "level", "share", states, x_unit="of the mean", kind="point")
        title = f"Capacity of a link of {result.mean_bps / 1e6:.3g} Mbit/s"
        return Report(title, "streaming", {}, 0, (table,), (chart,))
    table = estimates_table({result.source: result})
    bars: tuple[dict[str, TableCell], ...] = tuple(
        {"videos": label, "share": getattr(result, name).value} for name, label in QUANTITIES.items() if name in SHARES
    )
    chart = Series("Shares of the videos", "videos", "share", bars, "videos", kind="bar")
    return Report(f"Playback by {result.source}", "streaming", {}, 0, (table,), (chart,))
