"""The laboratory: iteration times predicted by the simulator, and measured on real ranks with slow links and stages.

trials.py     trials and their outcomes; starts the program, with a timeout
program.py    imports PyTorch once and forks the ranks of each trial: a small transformer with prescribed operation
              times, delayed messages that the planner does not know of, and the training loop of a rank
network.py    network namespaces for ranks with rate-limited veth links; needs the privileges to create them

How it works. Healthy runs measure how long operations and messages take on this machine, and what each runtime adds
to every operation. Everything else is predicted from that and from the faults, before it is measured. The planner of
the real run has no access to faults or predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from support.pipeline_lab.trials import LabTrial, RuntimeName, TrialOutcome, run_trials
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import Schedule
from takeup.training.pipelines.timing.evaluation import timeline_of

FEW = 4  # iterations of a run whose schedule does not change
NUM_HEALTHY, RARELY = 9, 4  # iterations of a healthy adaptive run, and its measurement interval
NUM_STOCK = 6  # iterations of a healthy stock run


class LabRow(NamedTuple):
    """One system on one pipeline, predicted and measured."""

    system: str
    faults: str
    predicted_s: float
    measured_s: float
    gradient_error: float
    num_changes: int
    delegated: tuple[int, ...]
    pause_s: float | None = None
    swap_s: float | None = None

    @property
    def error_share(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_s / self.measured_s - 1


class LabSystem(NamedTuple):
    """A system under test: a runtime, and the planner whose order it follows unless it plans itself."""

    name: str
    runtime: RuntimeName
    planner: str


STOCK_1F1B = LabSystem("stock 1F1B", "stock_1f1b", "one_f_one_b")
STOCK_ZB = LabSystem("stock ZB-H1", "stock", "zb_h1")
ADAPTIVE = LabSystem("adaptive", "adaptive", "")


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
        timeline_of(_measured_row(system, truth, outcome), expected).iteration_s,
        outcome.settled_s,
        outcome.gradient_error,
        len(outcome.changed_after),
        outcome.delegated,
        max(outcome.pauses_s, default=None),
        max(outcome.swaps_s, default=None),
    )


# Faults ---------------------------------------------------------------------------------------------------------------


def _system_notes(truth: Profile) -> str:
    """The faults of a pipeline as text."""
    found = [
        f"link {number}: {' + '.join(_parts(link))}" for number, link in enumerate(truth.links) if link.delay_s > 0
    ]
    return ("; ".join(found) or "no link is slow") + (", one queue" if truth.max_sends == 1 else "")


def _parts(link: Link) -> list[str]:
    parts = ((link.latency_s, "latency"), (link.service_s, "service"))
    return [f"{1e3 * time_s:.4g} ms {name}" for time_s, name in parts if time_s > 0]


# Predict the times of a pipeline with faults from a healthy run on the same machine -----------------------------------

A_BIT_S = 1e-4


def calibrate_profile(found: Profile, schedule: Schedule, iteration_s: float) -> Profile:
    """The pipeline as measured, with the per-operation overhead that explains its iteration time.

    Host overhead is not in the measured operations: it is what a runtime does between them.
    """
    found = replace(found, host_s=0.0)
    plain_s = timeline_of(schedule, found).iteration_s
    slope = (timeline_of(schedule, replace(found, host_s=A_BIT_S)).iteration_s - plain_s) / A_BIT_S
    return replace(found, host_s=max(0.0, iteration_s - plain_s) / slope)


def with_faults(base: Profile, healthy: Profile, truth: Profile) -> Profile:
    """The calibrated pipeline `base`, whose nominal profile is `healthy`, changed to the nominal profile `truth`."""
    stages = [
        _shift_stage_times(stage, fine, found)
        for stage, fine, found in zip(truth.stages, healthy.stages, base.stages, strict=True)
    ]
    links = [
        Link(link.latency_s + found.delay_s, link.service_s)
        for link, found in zip(truth.links, base.links, strict=True)
    ]
    return replace(base, stages=tuple(stages), links=tuple(links))


def _shift_stage_times(stage: Stage, fine: Stage, found: Stage) -> Stage:
    """Predicted stage for nominal `stage`, given that nominal `fine` was measured as `found`."""
    times_s = [
        getattr(stage, name) + max(0.0, getattr(found, name) - getattr(fine, name))
        for name in ("forward_s", "backward_s", "weight_s")
    ]
    return Stage(*times_s)
