"""From a scenario to a report: the one module where traces, schedulers, replays, engines and reports are joined.

Every verb has a separate module, imported on first use: an offer should not wait for the engines.
"""

from collections.abc import Callable, Mapping
from typing import Any

from takeup.cluster.experiment.scenario import ClusterScenario
from takeup.core.lazy import load
from takeup.core.report import Report
from takeup.core.scenario import validate

__all__ = ["ClusterScenario", "run", "run_again"]

_VERBS = {
    "simulate": "takeup.cluster.experiment.replays:simulate",
    "compare": "takeup.cluster.experiment.replays:compare",
    "benefit": "takeup.cluster.experiment.replays:benefit",
    "whatif": "takeup.cluster.experiment.whatif:whatif",
    "offer": "takeup.cluster.experiment.replays:offer",
    "forecast": "takeup.cluster.experiment.replays:forecast",
    "run": "takeup.cluster.experiment.live:run_engine",
}


def run_again(values: Mapping[str, Any], source: str, *, quiet: bool = False) -> Report:
    """Run the scenario that a file or a report holds."""
    return run(validate(ClusterScenario, values, source), quiet=quiet)


def run(scenario: ClusterScenario, *, quiet: bool = False, tell: Callable[[str], None] | None = None) -> Report:
    """Carry the scenario out; `tell` receives every decision that an engine is given."""
    verb = load(_VERBS[scenario.verb])
    report = verb(scenario, quiet, tell) if scenario.verb == "run" else verb(scenario, quiet)
    assert isinstance(report, Report)
    return report
