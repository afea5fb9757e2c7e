"""The laboratory as an experiment: what the simulator predicts, and what real ranks then take, side by side.

How it works. One healthy run says how long operations and messages really take on this machine, and what the host adds
to every operation. Everything else is predicted from that and from the faults, before it is measured. Who plans in the
real run knows nothing of faults or predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from takeup.core.progress import progress
from takeup.core.report import Check, Report
from takeup.errors import BadInput
from takeup.training.engines.pytorch.lab import Outcome, Trial, run_trials
from takeup.training.engines.pytorch.lab.trials import Runtime
from takeup.training.experiment.scenario import TrainingScenario, profile_of
from takeup.training.experiment.verbs import report_of
from takeup.training.model import Link, Profile, Schedule, Stage
from takeup.training.policies import find_policy
from takeup.training.report import LabRow, lab_bars, lab_table
from takeup.training.simulate import simulate

__all__ = ["ADAPTIVE", "STOCK_1F1B", "STOCK_ZB", "System", "measure", "try_out"]

GRADIENT_BAR = 1e-6
FEW = 4  # iterations of what does not change
SLOW_OPERATIONS = 2.0  # the delay of the last link, in operations, if nothing else is slow


class System(NamedTuple):
    """A way to train: a runtime, and the planner whose order it follows, if it does not choose for itself."""

    name: str
    runtime: Runtime
    planner: str


STOCK_1F1B = System("stock 1F1B", "stock_1f1b", "one_f_one_b")
STOCK_ZB = System("stock ZB-H1", "stock", "zb_h1")
ADAPTIVE = System("adaptive", "adaptive", "")
SYSTEMS = (STOCK_1F1B, STOCK_ZB, ADAPTIVE)


def try_out(scenario: TrainingScenario, quiet: bool) -> Report:
    """Stock schedules and the adaptive one on the pipeline of the scenario, for real."""
    truth = _slow_somewhere(scenario, profile_of(scenario))
    with progress("training lab", 1 + len(SYSTEMS), quiet=quiet) as tick:
        rows = measure([truth], SYSTEMS, scenario.num_iterations, tick)
    worst = max(row.gradient_error for row in rows)
    check = Check.at_most("gradients, largest difference from a single process, relative", worst, GRADIENT_BAR)
    return report_of(scenario, "Training: the laboratory", lab_table(rows, _words(truth)), lab_bars(rows), check)


def measure(
    truths: Sequence[Profile],
    systems: Sequence[System],
    num_iterations: int,
    tick: Callable[[], object] = lambda: None,
) -> list[LabRow]:
    """A row for every system on every pipeline; the first run is a healthy one, for the predictions."""
    healthy = replace(truths[0], links=(Link(),) * len(truths[0].links), max_sends=None)
    order = _order_of(STOCK_ZB, healthy)
    # A planner that never has a better order, asked seldom, so that the typical iteration is one without a pause.
    trials = [Trial("healthy", "adaptive", healthy, order, num_iterations=9, every=4, planner="one_f_one_b")]
    trials += [_trial(system, truth, num_iterations) for truth in truths for system in systems]
    calibration, *outcomes = run_trials(trials, tick)
    base = _calibrated(healthy, calibration)
    pairs = [(truth, system) for truth in truths for system in systems]
    return [
        _row(system, truth, base, healthy, outcome) for (truth, system), outcome in zip(pairs, outcomes, strict=True)
    ]


def _trial(system: System, truth: Profile, num_iterations: int) -> Trial:
    name = f"{system.name}, {_words(truth)}"
    if system.runtime == "adaptive":
        return Trial(name, system.runtime, truth, num_iterations=num_iterations)
    return Trial(name, system.runtime, truth, _order_of(system, truth), num_iterations=FEW)


def _order_of(system: System, truth: Profile) -> str:
    return find_policy(system.planner).plan(truth).schedule.to_csv()


# Predictions ----------------------------------------------------------------------------------------------------------


def _calibrated(healthy: Profile, outcome: Outcome) -> Profile:
    """The healthy pipeline as it was measured, with an overhead for every operation that explains the iteration."""
    assert outcome.measured is not None
    found = replace(healthy, stages=outcome.measured.stages, links=outcome.measured.links)
    schedule, a_bit_s = Schedule.from_csv(outcome.order), 1e-4
    plain_s = simulate(schedule, found).iteration_s
    slope = (simulate(schedule, replace(found, host_s=a_bit_s)).iteration_s - plain_s) / a_bit_s
    return replace(found, host_s=max(0.0, outcome.settled_s - plain_s) / slope)


def _predicted_s(system: System, truth: Profile, base: Profile, healthy: Profile, outcome: Outcome) -> float:
    """What the simulator says of the order that was run, from the calibration and the faults."""
    stages = [
        _shifted(stage, fine, found)
        for stage, fine, found in zip(truth.stages, healthy.stages, base.stages, strict=True)
    ]
    links = [
        Link(link.latency_s + found.delay_s, link.service_s)
        for link, found in zip(truth.links, base.links, strict=True)
    ]
    order = outcome.order or _order_of(system, truth)
    expected = replace(base, stages=tuple(stages), links=tuple(links), max_sends=_max_sends(system, truth, outcome))
    return simulate(Schedule.from_csv(order), expected).iteration_s


def _shifted(stage: Stage, fine: Stage, found: Stage) -> Stage:
    """What a stage takes that should take `stage`, if one that should take `fine` takes `found`."""
    times_s = [
        getattr(stage, name) + max(0.0, getattr(found, name) - getattr(fine, name))
        for name in ("forward_s", "backward_s", "weight_s")
    ]
    return Stage(*times_s)


def _max_sends(system: System, truth: Profile, outcome: Outcome) -> int | None:
    """PyTorch's 1F1B computes behind one send, not two; other runtimes wait if the link makes them; delegates never."""
    if system.runtime == "stock_1f1b":
        return min(2, truth.max_sends or 2)
    slow = {number for number, link in enumerate(truth.links) if link.delay_s > 0}
    return None if slow <= set(outcome.delegated) else truth.max_sends


def _row(system: System, truth: Profile, base: Profile, healthy: Profile, outcome: Outcome) -> LabRow:
    return LabRow(
        system.name,
        _words(truth),
        _predicted_s(system, truth, base, healthy, outcome),
        outcome.settled_s,
        outcome.gradient_error,
        len(outcome.changed_after),
        outcome.delegated,
        max(outcome.pauses_s, default=None),
        max(outcome.swaps_s, default=None),
    )


# Faults ---------------------------------------------------------------------------------------------------------------


def _slow_somewhere(scenario: TrainingScenario, profile: Profile) -> Profile:
    """The pipeline with a slow last link, if the scenario makes nothing slow."""
    if profile.num_stages < 2:
        raise BadInput("a pipeline of one stage has no link that could be slow; give at least two stages")
    if scenario.slow or scenario.slow_stages or scenario.profile is not None:
        return profile
    return profile.with_links({len(profile.links) - 1: Link(SLOW_OPERATIONS * scenario.op_ms / 1e3)})


def _words(truth: Profile) -> str:
    """The faults of a pipeline in words."""
    found = [
        f"link {number}: {' + '.join(_parts(link))}" for number, link in enumerate(truth.links) if link.delay_s > 0
    ]
    return ("; ".join(found) or "no link is slow") + (", one queue" if truth.max_sends == 1 else "")


def _parts(link: Link) -> list[str]:
    parts = ((link.latency_s, "latency"), (link.service_s, "service"))
    return [f"{1e3 * time_s:.4g} ms {name}" for time_s, name in parts if time_s > 0]
