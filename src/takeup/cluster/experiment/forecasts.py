"""Models of demand on their way through the hours of a trace, or of a table with one column for each pool."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from takeup.cluster.experiment.scenario import ClusterScenario, hourly_demand, load_workload, report_on
from takeup.cluster.forecast import make_forecaster
from takeup.cluster.forecast.distribution import Scope
from takeup.cluster.report import ForecastRun, forecast_series, forecast_table, next_hours_table
from takeup.core.arrays import Floats
from takeup.core.progress import progress
from takeup.core.report import Report
from takeup.core.trace import TraceColumn, column_names, read_table
from takeup.errors import BadInput, BadTrace

MEDIAN = 0.5
HOURS_A_DAY = 24
ROUNDING = 1e-6


def forecast(scenario: ClusterScenario, quiet: bool) -> Report:
    """What each model says about the next hours, at every hour of the last quarter, and what came."""
    demand, pools, capacity_gpus, notes = _demand(scenario)
    first = _first_origin(scenario, len(demand))
    runs = []
    with progress("cluster forecast", len(scenario.models) * len(demand), quiet=quiet) as tick:
        for model in scenario.models:
            runs.append(backtest(model, demand, pools, first, scenario.num_hours, scenario.probability, tick))
    tables = (forecast_table(runs), next_hours_table(runs[0], capacity_gpus))
    return report_on(scenario, "Cluster: forecasts of demand", *tables, *map(forecast_series, runs), notes=notes)


def backtest(
    model: str,
    demand: Floats,
    pools: tuple[str, ...],
    first_origin: int,
    num_hours: int,
    level: float,
    tick: Callable[[], None] = lambda: None,
) -> ForecastRun:
    """What a model says from every hour on, `demand` being `[hour, pool]`; no hour is known before it is over."""
    forecaster = make_forecaster(model, Scope(num_hours, tuple(sorted({MEDIAN, level}))))
    bounds, medians, highest = [], [], []
    for hour, values in enumerate(demand):
        forecaster.observe(hour, values)
        if first_origin <= hour < len(demand) - num_hours:
            said = forecaster.forecast()
            bounds.append(said.bound(num_hours, level))
            medians.append(said.bound(num_hours, MEDIAN))
            highest.append(demand[hour + 1 : hour + 1 + num_hours].max(axis=0))
        tick()
    last = forecaster.forecast()
    coming, middle = (
        np.stack([last.bound(hour, each) for hour in range(1, num_hours + 1)], axis=1) for each in (level, MEDIAN)
    )
    said_all = (np.array(bounds), np.array(medians), np.array(highest))
    return ForecastRun(model, pools, level, num_hours, first_origin, *said_all, coming, middle)


def _demand(scenario: ClusterScenario) -> tuple[Floats, tuple[str, ...], Floats, tuple[str, ...]]:
    if scenario.demand is None:
        workload, notes = load_workload(scenario)
        sizes = np.bincount(workload.node_pool, workload.node_gpus, len(workload.pools))
        return hourly_demand(workload), workload.pools, np.asarray(sizes), notes
    if scenario.workload is not None or scenario.trace is not None:
        raise BadInput("give either a table of hourly demand, or a workload or trace, and not both")
    path = Path(scenario.demand)
    pools = tuple(column_names(path)[1:])
    if not pools:
        raise BadInput(f"{path} has one column; expected hours in the first and one column for each pool")
    table = read_table(path, [TraceColumn(pool, "float") for pool in pools])
    demand = _not_negative(path, pools, np.stack([table[pool] for pool in pools], axis=1).astype(np.float64))
    return demand, pools, demand.max(axis=0), ("capacities are not known; the highest demand stands for them",)


def _not_negative(path: Path, pools: tuple[str, ...], demand: Floats) -> Floats:
    """Sums and differences leave traces of -0 behind; what is really negative is a mistake."""
    wrong = np.argwhere(demand < -ROUNDING)
    if len(wrong):
        row, pool = wrong[0].tolist()
        raise BadTrace(path, f"demand is {demand[row, pool]:g}; give 0 or more", line=row + 2, column=pools[pool])
    return np.maximum(demand, 0.0)


def _first_origin(scenario: ClusterScenario, num_hours: int) -> int:
    first = num_hours - max(HOURS_A_DAY, num_hours // 4) if scenario.from_day is None else int(scenario.from_day * 24)
    if not 0 <= first < num_hours - scenario.num_hours:
        raise BadInput(
            f"of {num_hours} hours none is left to compare forecasts of {scenario.num_hours} hours with, from hour "
            f"{first} on; give more hours or an earlier from_day"
        )
    return first
