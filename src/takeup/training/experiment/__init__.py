"""From a scenario to a report: the only module that combines profiles, planners, simulator, engines and reports."""

from collections.abc import Callable, Mapping
from typing import Any

from takeup.core.report import Report
from takeup.core.scenario import validate
from takeup.training.experiment.scenario import TrainingScenario, plan_of, profile_of
from takeup.training.experiment.verbs import compare_planners, plan_one, run_lab, simulate_planners

__all__ = ["TrainingScenario", "plan_of", "profile_of", "run", "run_again"]


def run_again(values: Mapping[str, Any], source: str, *, quiet: bool = False) -> Report:
    """Rerun the scenario stored in a file or a report."""
    return run(validate(TrainingScenario, values, source), quiet=quiet)


def run(scenario: TrainingScenario, *, quiet: bool = False) -> Report:
    """Run the scenario."""
    verbs: dict[str, Callable[[TrainingScenario, bool], Report]] = {
        "plan": plan_one,
        "simulate": simulate_planners,
        "compare": compare_planners,
        "lab": run_lab,
    }
    return verbs[scenario.verb](scenario, quiet)
