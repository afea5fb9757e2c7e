"""Implementation of the CLI verbs on a scenario: plan, simulate, compare, lab."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from takeup.core.progress import progress
from takeup.core.report import Check, Report, Series, Table
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.training.experiment.scenario import TrainingScenario, plan_of, profile_of, slow_links_of
from takeup.training.pipelines.lab.network import uses_namespaces
from takeup.training.pipelines.lab.trials import LabTrial, RuntimeName, TrialOutcome, run_trials
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.profile import Link, Profile
from takeup.training.pipelines.schedule import PipelinePlan, Schedule
from takeup.training.pipelines.simulate import calibrate_profile, sample, simulate, with_faults
from takeup.training.pipelines.timing.evaluation import make_plan
from takeup.training.report import (
    LabRow,
    comparison_bars,
    comparison_table,
    delay_series,
    gantt,
    lab_bars,
    lab_table,
    sampled_table,
    stages_table,
)
from takeup.training.traces import load_schedule

# Implementation of the CLI verbs on a scenario: plan, simulate, compare -----------------------------------------------


def report_of(
    scenario: TrainingScenario, title: str, *parts: Table | Series | Check, notes: tuple[str, ...] = ()
) -> Report:
    """Build a report from these parts."""
    tables = tuple(part for part in parts if isinstance(part, Table))
    series = tuple(part for part in parts if isinstance(part, Series))
    checks = tuple(part for part in parts if isinstance(part, Check))
    return Report(title, "training", scenario.model_dump(), scenario.seed, tables, series, checks, notes)


def plan_one(scenario: TrainingScenario, quiet: bool) -> Report:
    """One plan, with its stages and a chart."""
    plan = plan_of(scenario)
    timeline = simulate(plan.schedule, plan.profile)
    table = comparison_table([plan], [timeline])
    return report_of(scenario, "Training: the plan", stages_table(plan), table, gantt(timeline))


def simulate_planners(scenario: TrainingScenario, quiet: bool) -> Report:
    """Simulate several planners with varying operation times."""
    profile, streams = profile_of(scenario), Streams(scenario.seed)
    if scenario.schedule is not None:
        plans = [make_plan("as given", profile, load_schedule(Path(scenario.schedule)))]
    else:
        plans = [find_policy(name).plan(profile) for name in scenario.policies]
    rows = []
    with progress("training simulate", len(plans), quiet=quiet) as tick:
        for plan in plans:
            runs = sample(
                plan, streams.stream("jitter"), jitter_share=scenario.jitter_share, num_runs=scenario.num_runs
            )
            rows.append((plan.planner, plan.iteration_s, runs.mean_s, runs.percentile_s(50), runs.percentile_s(95)))
            tick()
    timelines = [simulate(plan.schedule, plan.profile) for plan in plans]
    charts = (
        gantt(timeline, f"What ranks do, {plan.planner}") for plan, timeline in zip(plans, timelines, strict=True)
    )
    return report_of(scenario, "Training: iterations", comparison_table(plans, timelines), sampled_table(rows), *charts)


def compare_planners(scenario: TrainingScenario, quiet: bool) -> Report:
    """Compare several planners on the same pipeline."""
    profile = profile_of(scenario)
    if scenario.delays_ms:
        return _compare_delays(scenario, profile, quiet)
    plans = [find_policy(name).plan(profile) for name in scenario.policies]
    timelines = [simulate(plan.schedule, plan.profile) for plan in plans]
    return report_of(scenario, "Training: planners", comparison_table(plans, timelines), comparison_bars(plans))


def _compare_delays(scenario: TrainingScenario, profile: Profile, quiet: bool) -> Report:
    """Sweep the delay of the slow links, or of the last link if none is slow."""
    if not profile.links:
        raise BadInput("a pipeline of one stage has no link to delay; give at least two stages")
    numbers = list(slow_links_of(scenario, len(profile.links))) or [len(profile.links) - 1]
    plans: dict[float, list[PipelinePlan]] = {}
    tables = []
    with progress("training compare", len(scenario.delays_ms), quiet=quiet) as tick:
        for delay_ms in scenario.delays_ms:
            delay_s = delay_ms / 1e3
            link = Link(delay_s) if scenario.delays_are == "latency" else Link(service_s=delay_s)
            given = profile.with_links(dict.fromkeys(numbers, link))
            plans[delay_ms] = [find_policy(name).plan(given) for name in scenario.policies]
            timelines = [simulate(plan.schedule, plan.profile) for plan in plans[delay_ms]]
            table = comparison_table(plans[delay_ms], timelines)
            tables.append(replace(table, title=f"{scenario.delays_are} {delay_ms:g} ms on link {numbers}"))
            tick()
    chart = delay_series(plans, f"{scenario.delays_are} of link {', '.join(map(str, numbers))}")
    return report_of(scenario, "Training: planners by delay", *tables, chart)


# The laboratory as an experiment: iteration times predicted by the simulator, and measured on real ranks --------------
#
# How it works. Healthy runs measure how long operations and messages take on this machine, and what each runtime adds
# to every operation. Everything else is predicted from that and from the faults, before it is measured. The planner of
# the real run has no access to faults or predictions.

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
