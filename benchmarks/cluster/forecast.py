"""How well demand is forecast: `python -m benchmarks.cluster forecast --data FOLDER [--part validation]`.

Rolls over hourly demand of several series and scores what each model says about the next four hours: mean absolute and
root mean square error of the median, the share of outcomes under the 90 % bound, its pinball loss, and the sum of the
bounds of all series (what would be reserved). `--part validation` scores the three months before the test period;
settings were chosen there. OrgLinear joins in where torch is installed. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import benchmarks.support.one_thread  # noqa: F401  before numpy
from takeup.core.arrays import Floats

# isort: split
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.support.dated import options_of, publish, versions
from support.orglinear import OrgLinear
from takeup.cluster.forecast import make_forecaster
from takeup.cluster.forecast.anchored import pinball
from takeup.cluster.forecast.features import WeekCalendar
from takeup.cluster.forecast.forecaster import Forecaster, Scope
from takeup.core.report import Check, Column, Report, Table

SEED = 0
FILE = "hourly_concurrency_top_models.csv"
SCOPE = Scope(num_hours=4, levels=(0.5, 0.9))
NUM_HOURS, NUM_TEST_HOURS, NUM_VALIDATION_HOURS = 4416, 744, 2208
HOURS_A_DAY, HOURS_A_WEEK, EIGHT_WEEKS = 24, 168, 1344
MODELS = ("persistence", "last_week_peak", "orglinear", "anchored")
PINBALL_BAR, COVERAGE_BARS = 33.0, (0.88, 0.92)
MANY_SERIES, NUM_TIMED_DAYS, COST_BAR_MS = 84, 5, 5.0


@dataclass(frozen=True, slots=True)
class Period:
    """Demand `[hour, series]` and the origins from which it is forecast."""

    demand: Floats
    start: int
    end: int
    first_weekday: int

    def outcomes(self) -> Floats:
        """`[origin, series, hour ahead]`."""
        ahead = range(1, SCOPE.num_hours + 1)
        return np.stack([self.demand[self.start + hours : self.end + hours] for hours in ahead], axis=2)


@dataclass(frozen=True, slots=True)
class Score:
    """One row of the table."""

    name: str
    mean_absolute: float
    root_mean_square: float
    coverage: float
    pinball: float
    reserve: float
    maximum_coverage: float = float("nan")
    maximum_pinball: float = float("nan")
    cpu_s: float = float("nan")


def read(path: Path) -> Floats:
    """`[hour, series]`; the first column counts hours."""
    return np.maximum(np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)[:, 1:], 0.0)


# Models ---------------------------------------------------------------------------------------------------------------


def roll(model: Forecaster, period: Period) -> tuple[Floats, Floats]:
    """Bounds of values and of maxima, `[origin, series, hour ahead, level]`; only OrgLinear is trained, once."""
    said = []
    for hour in range(period.end):
        model.observe(hour, period.demand[hour])
        if hour == period.start and isinstance(model, OrgLinear):
            model.train(SEED)
        if hour >= period.start:
            forecast = model.forecast()
            said.append((forecast.values.quantiles, forecast.maxima.quantiles))
    values, maxima = zip(*said, strict=True)
    return np.stack(values), np.stack(maxima)


def score(name: str, period: Period, values: Floats, maxima: Floats | None = None, cpu_s: float = np.nan) -> Score:
    """Compare with what came."""
    outcomes = period.outcomes()
    error, bound = outcomes - values[..., 0], values[..., 1]
    loss, covered = _bound_score(bound, outcomes)
    peaks = np.maximum.accumulate(outcomes, axis=2)
    peak_loss, peak_covered = (np.nan, np.nan) if maxima is None else _bound_score(maxima[..., 1], peaks)
    root = float(np.sqrt(np.square(error).mean()))
    reserve = float(bound.mean(axis=(0, 2)).sum())
    return Score(name, float(np.abs(error).mean()), root, covered, loss, reserve, peak_covered, peak_loss, cpu_s)


def _bound_score(bound: Floats, outcomes: Floats) -> tuple[float, float]:
    loss = pinball(bound[..., None], outcomes, np.array(SCOPE.levels[1:]))
    return float(loss.mean()), float((outcomes <= bound).mean())


def fixed_persistence(period: Period) -> Floats:
    """Last value, plus quantiles of the changes in the eight weeks before the period, never updated."""
    columns = []
    for hours in range(1, SCOPE.num_hours + 1):
        origins = np.arange(max(0, period.start - EIGHT_WEEKS - hours + 1), period.start - hours + 1)
        change = np.quantile(period.demand[origins + hours] - period.demand[origins], SCOPE.levels[1], axis=0)
        now = period.demand[period.start : period.end]
        columns.append(np.stack([now, now + change], axis=2))
    return np.stack(columns, axis=2)


def last_week(period: Period) -> Floats:
    """The same hour one week before, as every quantile."""
    ahead = range(1, SCOPE.num_hours + 1)
    shift = [period.demand[period.start + hours - HOURS_A_WEEK : period.end + hours - HOURS_A_WEEK] for hours in ahead]
    return np.repeat(np.stack(shift, axis=2)[..., None], len(SCOPE.levels), axis=3)


def scores(period: Period) -> Iterator[Score]:
    """Every row, ours last."""
    yield score("persistence, quantiles fixed at the start", period, fixed_persistence(period))
    yield score("same hour last week", period, last_week(period))
    attributes = [(series, 0, series) for series in range(period.demand.shape[1])]
    for name in MODELS:
        if name != "orglinear" or find_spec("torch"):
            calendar = WeekCalendar(period.first_weekday)
            is_theirs = name == "orglinear"
            model = OrgLinear(attributes, SCOPE, calendar) if is_theirs else make_forecaster(name, SCOPE, calendar)
            began_s = time.process_time()
            values, maxima = roll(model, period)
            yield score(name, period, values, maxima, time.process_time() - began_s)


def hourly_ms() -> float:
    """CPU milliseconds of one observation and forecast of many series with full windows, the best of five days."""
    rng, model = np.random.default_rng(SEED), make_forecaster()
    num_hours = EIGHT_WEEKS + NUM_TIMED_DAYS * HOURS_A_DAY
    demand = 100.0 + np.abs(np.cumsum(rng.normal(0.0, 5.0, (num_hours, MANY_SERIES)), axis=0))
    for hour in range(EIGHT_WEEKS):
        model.observe(hour, demand[hour])
    starts = range(EIGHT_WEEKS, num_hours, HOURS_A_DAY)
    return min(_day_s(model, demand, start) for start in starts) / HOURS_A_DAY * 1e3


def _day_s(model: Forecaster, demand: Floats, start: int) -> float:
    began_s = time.process_time()
    for hour in range(start, start + HOURS_A_DAY):
        model.observe(hour, demand[hour])
        model.forecast()
    return time.process_time() - began_s


# The report -----------------------------------------------------------------------------------------------------------


def table(rows: list[Score], demand: float) -> Table:
    """Table 4.7 of the comparison, with two columns on the maximum over the coming hours."""
    columns = (
        Column("model"),
        Column("MAE", "GPUs", 1),
        Column("RMSE", "GPUs", 1),
        Column("coverage", digits=3),
        Column("pinball", "GPUs", 2),
        Column("reserve", "GPUs", 0),
        Column("coverage of maxima", digits=3),
        Column("pinball of maxima", "GPUs", 2),
        Column("time", "cpu s", 1),
    )
    cells = tuple(tuple(getattr(row, field) for field in Score.__slots__) for row in rows)
    blank = tuple(tuple(None if cell != cell else cell for cell in row) for row in cells)  # noqa: PLR0124  not a number
    note = f"Next {SCOPE.num_hours} hours, 90 % bounds. Mean demand of all series together: {demand:.0f} GPUs."
    return Table("Forecasts from every hour", columns, blank, note)


def checks_of(rows: list[Score], cost_ms: float, *, own_bar: bool) -> tuple[Check, ...]:
    """The default against its bars; the absolute one is for the test period of the known trace."""
    found = {row.name: row for row in rows}
    ours, others = found["anchored"], ("persistence", "orglinear")
    absolute = [Check.at_most("pinball of the default", ours.pinball, PINBALL_BAR, unit="GPUs")] if own_bar else []
    return (
        *absolute,
        Check.at_least("coverage of the default", ours.coverage, COVERAGE_BARS[0]),
        Check.at_most("coverage of the default, not wasteful", ours.coverage, COVERAGE_BARS[1]),
        *(
            Check.at_most(f"pinball of the default over {name}", ours.pinball / found[name].pinball, 1.0, unit="times")
            for name in others
            if name in found
        ),
        Check.at_most(f"one hour of {MANY_SERIES} series", cost_ms, COST_BAR_MS, unit="cpu ms"),
    )


def measure(period: Period, command: str, *, own_bar: bool) -> Report:
    """Score all models and report."""
    rows = list(scores(period))
    demand = float(period.demand[period.start : period.end].sum(axis=1).mean())
    return Report(
        title="Cluster: forecasts of GPU demand",
        domain="cluster",
        scenario={"command": command, "first_origin": period.start, "num_origins": period.end - period.start},
        seed=SEED,
        tables=(table(rows, demand),),
        checks=checks_of(rows, hourly_ms(), own_bar=own_bar),
        notes=(
            f"Command: {command}. Versions: {versions(('takeup', 'numpy', 'scipy', 'numba'))}.",
            "Settings of our models were chosen on the months before the test period and on synthetic shapes. "
            "OrgLinear is trained once, before the first origin; the other models learn on, hour by hour.",
        ),
    )


def period_of(demand: Floats, part: str, num_test_hours: int, first_weekday: int) -> Period:
    """The test period at the end, or the three months before it, which never see it."""
    start = len(demand) - num_test_hours
    if part == "validation":
        return Period(demand[:start], start - NUM_VALIDATION_HOURS, start - SCOPE.num_hours, first_weekday)
    return Period(demand, start, len(demand) - SCOPE.num_hours, first_weekday)


def main() -> int:
    """Parse, measure, print."""
    parser = options_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help=f"holds {FILE}, or see --file")
    parser.add_argument("--file", default=FILE, help="hourly demand as CSV with a header; the first column is the hour")
    parser.add_argument("--part", choices=("test", "validation"), default="test")
    parser.add_argument("--test-hours", type=int, default=NUM_TEST_HOURS, metavar="N")
    parser.add_argument("--first-weekday", type=int, default=4, help="of hour 0, Monday is 0; the known trace: Friday")
    options = parser.parse_args()
    known = options.file == FILE
    demand = read(options.data / options.file)[: NUM_HOURS if known else None]
    period = period_of(demand, options.part, options.test_hours, options.first_weekday)
    command = f"python -m benchmarks.cluster forecast --data FOLDER --part {options.part}"
    report = measure(period, command, own_bar=known and options.part == "test")
    return publish(report, f"forecast-{options.part}", options)
