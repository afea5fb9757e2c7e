"""A model of a link, fitted to a throughput log and kept for predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from takeup.core.report import Column, Report, Table
from takeup.errors import BadInput
from takeup.streaming.experiment.cells import save_model
from takeup.streaming.experiment.scenario import StreamingScenario, scenario_report
from takeup.streaming.model import CapacityFit
from takeup.streaming.policies.capacity_fit import fit_capacity
from takeup.streaming.report import Curve, capacity_table, curve_series
from takeup.streaming.traces import ThroughputLog, read_log

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
