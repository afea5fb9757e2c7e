"""GFS reproduced: spot jobs under a forecast quota, against four baselines, plain FIFO, and ablations.

The trace of the paper is not public as a whole. A fleet of its size, 287 nodes of eight A100, is drawn with the
statistics that are published, at three spot loads, and replayed. So ratios between schedulers are compared, not times.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from takeup.cluster.experiment.replays import backtest
from takeup.cluster.experiment.scenario import hourly_demand
from takeup.cluster.report.benefit import GpuPrices, benefit_of, benefit_table
from takeup.cluster.report.forecasts import forecast_series, forecast_table
from takeup.cluster.traces import generate
from takeup.core.progress import progress
from takeup.core.report import Cell, Check, Column, Report, Table
from takeup.core.seeds import Streams
from takeup.papers import Findings, Numbers, numbers, of_kind, paper_report
from takeup.papers.gfs.ablations import PURPOSES, ablation_findings
from takeup.papers.gfs.baselines import (
    STOCK,
    SpotLoad,
    against_baselines,
    baseline_forms_table,
    published_baselines,
    replay_load,
    spot_work_table,
)
from takeup.papers.gfs.daily_windows import one_day_findings, replay_one_day_windows
from takeup.papers.gfs.fifo import COMPARED, against_fifo

FORECAST_MODELS = ("anchored", "persistence", "last_week_peak")
HOURS_A_DAY = 24


def forecast_calibration(expected: Numbers) -> Findings:
    """Scores of the models that need no manual training."""
    part, setting = expected["forecast"], expected["setting"]
    workload = generate(setting["loads"]["medium"], Streams(setting["seed"]), num_days=part["num_days"])
    hourly, first = hourly_demand(workload), HOURS_A_DAY * part["num_history_days"]
    level, ahead = setting["probability"], part["num_hours"]
    runs = {model: backtest(model, hourly, workload.pools, first, ahead, level) for model in FORECAST_MODELS}
    ours = runs["anchored"]
    low, high = part["coverage"]
    over_peak = ours.pinball / runs["last_week_peak"].pinball
    checks = (
        Check.at_least("forecast, coverage of the 90 % bound", ours.coverage, low),
        Check.at_most("forecast, coverage of the 90 % bound, not more", ours.coverage, high),
        Check.at_most("forecast, pinball over last week's peak", over_peak, part["pinball_over_last_week_peak"]),
    )
    return Findings(checks, (forecast_table(list(runs.values())),), (forecast_series(ours),))


def monetary_benefit(expected: Numbers, medium: SpotLoad) -> Findings:
    """The price of a GPU-hour implied by the printed benefit, and the benefit of GFS here at that price."""
    part = expected["production"]
    gained = {
        "A100": part["a100_gpus"] * part["a100_allocation_percent"] / 100 * part["hours_a_month"],
        "A800": part["a800_gpus"] * part["a800_allocation_percent"] / 100 * part["hours_a_month"],
    }
    price = part["month_usd"] / sum(gained.values())
    prices = GpuPrices(dict.fromkeys(medium.workload.pools, price))
    tables, checks = [], []
    for other in ("yarn_cs", "fifo"):
        found = benefit_of(medium.outcomes["gfs"], medium.outcomes[other], prices)
        table = benefit_table(found, expected["setting"]["seed"])
        tables.append(replace(table, title=f"Benefit of gfs over {other}, medium load"))
        interval = found.interval_usd(expected["setting"]["seed"])
        if other == "yarn_cs" and interval is not None:
            name = "medium load, a month of gfs over yarn_cs, low end of the interval"
            checks.append(Check.at_least(name, interval.low, expected["benefit"]["least_usd"], unit="USD"))
    columns = (Column("pool"), Column("gained a month", "GPU-h", 0), Column("price", "USD/GPU-h", 2))
    rows: tuple[tuple[Cell, ...], ...] = tuple((pool, hours, price) for pool, hours in gained.items())
    note = f"GPUs of the public list of nodes times the printed gain; {part['month_usd']} USD a month divided by them"
    return Findings(tuple(checks), (Table("The printed benefit", columns, rows, note), *tables))


def reproduce(*, quiet: bool = False) -> Report:
    """All loads, ablations, the forecast and the monetary benefit, checked."""
    expected = numbers("gfs")
    with progress("reproduce gfs", _num_steps(expected), quiet=quiet) as tick:
        draws = _replay_draws(expected, tick)
        loads = [load for load in draws if load.seed == expected["setting"]["seed"]]
        parts = [
            against_baselines(expected, loads),
            Findings((), (baseline_forms_table(expected, loads), spot_work_table(loads))),
        ]
        parts.append(against_fifo(expected, draws, tick))
        parts.append(
            one_day_findings(expected, [replay_one_day_windows(expected, some, tick) for some in _by_load(draws)])
        )
        parts.append(ablation_findings(expected, [load for load in draws if load.name == "medium"], tick))
        parts.append(monetary_benefit(expected, loads[1]))
    parts = [part._replace(checks=of_kind("simulation", part.checks)) for part in parts]
    parts.append(forecast_calibration(expected))
    return paper_report("gfs", expected["setting"]["seed"], parts, tuple(expected["setting"]["notes"]))


def _compared_policies(expected: Numbers, seed: int) -> tuple[str, ...]:
    """All policies on the draw shown in tables; on other draws only those compared hour by hour."""
    if seed != expected["setting"]["seed"]:
        return COMPARED
    baselines = (*expected["setting"]["baselines"], *published_baselines(expected))
    return tuple(dict.fromkeys((*baselines, *COMPARED, *STOCK, "gfs_promised")))


def _by_load(draws: Sequence[SpotLoad]) -> list[list[SpotLoad]]:
    names = dict.fromkeys(load.name for load in draws)
    return [[load for load in draws if load.name == name] for name in names]


def _num_steps(expected: Numbers) -> int:
    setting = expected["setting"]
    num_replays = sum(len(_compared_policies(expected, seed)) for seed in setting["seeds"]) * len(setting["loads"])
    num_draws = len(setting["seeds"]) * len(setting["loads"])
    num_priced = len(expected["frontier"]["prices"]) * len(setting["loads"])
    num_parts = sum(1 + len(parts) for parts in PURPOSES.values())
    return num_replays + num_draws + num_priced + num_parts


def _replay_draws(expected: Numbers, tick: Callable[[], None]) -> list[SpotLoad]:
    setting = expected["setting"]
    return [
        replay_load(expected, name, seed, _compared_policies(expected, seed), tick)
        for seed in setting["seeds"]
        for name in setting["loads"]
    ]
