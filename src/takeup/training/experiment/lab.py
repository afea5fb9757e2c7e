"""The laboratory as an experiment: iteration times predicted by the simulator, and measured on real ranks.

How it works. Healthy runs measure how long operations and messages take on this machine, and what each runtime adds to
every operation. Everything else is predicted from that and from the faults, before it is measured. The planner of the
real run has no access to faults or predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from takeup.core.progress import progress
from takeup.core.report import Check, Report
from takeup.errors import BadInput
from takeup.training.engines.pytorch.lab.launch import run_trials
from takeup.training.engines.pytorch.lab.network import uses_namespaces
from takeup.training.engines.pytorch.lab.trials import LabTrial, RuntimeName, TrialOutcome
from takeup.training.experiment.scenario import TrainingScenario, profile_of
from takeup.training.experiment.verbs import report_of
from takeup.training.model.pipeline import Link, Profile
from takeup.training.model.schedule import Schedule
from takeup.training.policies import find_policy
from takeup.training.report import LabRow, lab_bars, lab_table
from takeup.training.simulate.predicted import calibrate_profile, with_faults
from takeup.training.simulate.runs import simulate

GRADIENT_BAR = 1e-6
FEW = 4  # iterations of a run whose schedule does not change
NUM_HEALTHY, RARELY = 9, 4  # iterations of a healthy adaptive run, and its measurement interval
NUM_STOCK = 6  # iterations of a healthy stock run
SLOW_OPERATIONS = 2.0  # default delay of the last link, in operations, if the scenario has no fault


class LabSystem(NamedTuple):
    """A system under test: a runtime, and the planner whose order it follows unless it plans itself."""

    name: str
    runtime: RuntimeName
    planner: str


STOCK_1F1B = LabSystem("stock 1F1B", "stock_1f1b", "one_f_one_b")
STOCK_ZB = LabSystem("stock ZB-H1", "stock", "zb_h1")
ADAPTIVE = LabSystem("adaptive", "adaptive", "")
SYSTEMS = (STOCK_1F1B, STOCK_ZB, ADAPTIVE)


def run_lab(scenario: TrainingScenario, quiet: bool) -> Report:
    """Run stock schedules and the adaptive one on the pipeline of the scenario with real processes."""
    truth = _slow_somewhere(scenario, profile_of(scenario))
    cables = uses_namespaces(scenario.link)
    with progress("training lab", 2 * len(SYSTEMS), quiet=quiet) as tick:
        rows = measure([truth], SYSTEMS, scenario.num_iterations, tick, cables=cables)
    worst = max(row.gradient_error for row in rows)
    check = Check.at_most("gradients, largest difference from a single process, relative", worst, GRADIENT_BAR)
    words = _system_notes(truth) + (", cables between namespaces" if cables else "")
    return report_of(scenario, "Training: the laboratory", lab_table(rows, words), lab_bars(rows), check)


def measure(
    truths: Sequence[Profile],
    systems: Sequence[LabSystem],
    num_iterations: int,
    tick: Callable[[], object] = lambda: None,
    *,
    cables: bool = False,
) -> list[LabRow]:
    """One row per system and pipeline, after one healthy run of each runtime.

    With `cables`, link service is limited by network bandwidth; otherwise messages are delayed at the sender.
    """
    healthy = replace(truths[0], links=(Link(),) * len(truths[0].links), max_sends=None)
    runtimes = [ADAPTIVE, *(system for system in systems if system.runtime != "adaptive")]
    pairs = [(truth, system) for truth in truths for system in systems]
    trials = [_healthy_trial(system, healthy) for system in runtimes]
    trials += [_trial(system, truth, num_iterations) for truth, system in pairs]
    outcomes = run_trials([replace(trial, cables=cables) for trial in trials], tick)
    bases = _bases(healthy, runtimes, outcomes[: len(runtimes)])
    return [
        _row(system, truth, with_faults(bases[system.name], healthy, truth), outcome)
        for (truth, system), outcome in zip(pairs, outcomes[len(runtimes) :], strict=True)
    ]


def _trial(system: LabSystem, truth: Profile, num_iterations: int) -> LabTrial:
    name = f"{system.name}, {_system_notes(truth)}"
    if system.runtime == "adaptive":
        return LabTrial(name, system.runtime, truth, num_iterations=num_iterations)
    return LabTrial(name, system.runtime, truth, _order_of(system, truth), num_iterations=FEW)


def _healthy_trial(system: LabSystem, healthy: Profile) -> LabTrial:
    """A run for the predictions, long enough that its typical iteration is one in which nothing is measured."""
    if system.runtime != "adaptive":
        return replace(_trial(system, healthy, 0), num_iterations=NUM_STOCK)
    order = _order_of(STOCK_ZB, healthy)  # with a planner that never has a better one
    options = {"num_iterations": NUM_HEALTHY, "every": RARELY, "planner": "one_f_one_b"}
    return LabTrial("healthy", "adaptive", healthy, order, **options)  # type: ignore[arg-type]


def _order_of(system: LabSystem, truth: Profile) -> str:
    return find_policy(system.planner).plan(truth).schedule.to_csv()


# Predictions ----------------------------------------------------------------------------------------------------------


def _bases(healthy: Profile, runtimes: Sequence[LabSystem], outcomes: Sequence[TrialOutcome]) -> dict[str, Profile]:
    """The healthy pipeline as measured, with the overhead of each runtime."""
    measured = outcomes[0].measured
    assert measured is not None
    found = replace(healthy, stages=measured.stages, links=measured.links)
    return {
        system.name: calibrate_profile(
            replace(found, max_sends=_max_sends(system, healthy, outcome)),
            _measured_row(system, healthy, outcome),
            outcome.settled_s,
        )
        for system, outcome in zip(runtimes, outcomes, strict=True)
    }


def _measured_row(system: LabSystem, truth: Profile, outcome: TrialOutcome) -> Schedule:
    """The order that was executed."""
    return Schedule.from_csv(outcome.order or _order_of(system, truth))


def _max_sends(system: LabSystem, truth: Profile, outcome: TrialOutcome) -> int | None:
    """PyTorch's 1F1B computes behind one send, not two; other runtimes wait if the link makes them; delegates never."""
    if system.runtime == "stock_1f1b":
        return min(2, truth.max_sends or 2)
    slow = {number for number, link in enumerate(truth.links) if link.delay_s > 0}
    return None if slow <= set(outcome.delegated) else truth.max_sends


def _row(system: LabSystem, truth: Profile, expected: Profile, outcome: TrialOutcome) -> LabRow:
    expected = replace(expected, max_sends=_max_sends(system, truth, outcome))
    return LabRow(
        system.name,
        _system_notes(truth),
        simulate(_measured_row(system, truth, outcome), expected).iteration_s,
        outcome.settled_s,
        outcome.gradient_error,
        len(outcome.changed_after),
        outcome.delegated,
        max(outcome.pauses_s, default=None),
        max(outcome.swaps_s, default=None),
    )


# Faults ---------------------------------------------------------------------------------------------------------------


def _slow_somewhere(scenario: TrainingScenario, profile: Profile) -> Profile:
    """The pipeline with a slow last link, if the scenario has no fault."""
    if profile.num_stages < 2:
        raise BadInput("a pipeline of one stage has no link that could be slow; give at least two stages")
    if scenario.slow or scenario.slow_stages or scenario.profile is not None:
        return profile
    return profile.with_links({len(profile.links) - 1: Link(SLOW_OPERATIONS * scenario.op_ms / 1e3)})


def _system_notes(truth: Profile) -> str:
    """The faults of a pipeline as text."""
    found = [
        f"link {number}: {' + '.join(_parts(link))}" for number, link in enumerate(truth.links) if link.delay_s > 0
    ]
    return ("; ".join(found) or "no link is slow") + (", one queue" if truth.max_sends == 1 else "")


def _parts(link: Link) -> list[str]:
    parts = ((link.latency_s, "latency"), (link.service_s, "service"))
    return [f"{1e3 * time_s:.4g} ms {name}" for time_s, name in parts if time_s > 0]
