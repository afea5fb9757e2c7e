"""From a scenario to a report: the one package that combines cells, solvers, simulators, engines and reports.

Every verb has a separate module, imported on first use: a prediction should not wait for the simulators.
"""

from collections.abc import Mapping
from typing import Any

from takeup.core.lazy import load
from takeup.core.report import Report
from takeup.streaming.experiment.scenario import StreamingScenario, cells_of, checked_scenario

__all__ = ["StreamingScenario", "cells_of", "run", "run_again"]

_VERBS = {
    "predict": "takeup.streaming.experiment.verbs:predict",
    "fit": "takeup.streaming.experiment.logs:fit",
    "advise": "takeup.streaming.experiment.logs:advise",
    "live": "takeup.streaming.experiment.live:live",
    "optimise": "takeup.streaming.experiment.verbs:optimise",
    "size": "takeup.streaming.experiment.verbs:size",
    "simulate": "takeup.streaming.experiment.verbs:simulate",
    "compare": "takeup.streaming.experiment.verbs:compare",
}


def run_again(values: Mapping[str, Any], source: str, *, quiet: bool = False) -> Report:
    """Run the scenario that a file or a report holds."""
    return run(checked_scenario(values, source), quiet=quiet)


def run(scenario: StreamingScenario, *, quiet: bool = False) -> Report:
    """Run the scenario."""
    report = load(_VERBS[scenario.verb])(scenario, quiet)
    assert isinstance(report, Report)
    return report
