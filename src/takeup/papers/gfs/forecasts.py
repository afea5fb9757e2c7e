"""The forecast on drawn demand: whether its 90 % quantile is calibrated, and what last week's peak would reserve."""

from __future__ import annotations

from takeup.cluster.experiment.forecasts import backtest
from takeup.cluster.experiment.workloads import hourly_demand
from takeup.cluster.report import forecast_series, forecast_table
from takeup.cluster.traces import generate
from takeup.core.report import Check
from takeup.core.seeds import Streams
from takeup.papers.findings import Findings
from takeup.papers.gfs.loads import Numbers

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
