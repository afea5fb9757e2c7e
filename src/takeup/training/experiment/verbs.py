"""Implementation of the CLI verbs on a scenario: plan, simulate, compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from takeup.core.progress import progress
from takeup.core.report import Check, Report, Series, Table
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.training.experiment.scenario import TrainingScenario, plan_of, profile_of, slow_links_of
from takeup.training.model.pipeline import Link, Profile
from takeup.training.model.plan import PipelinePlan
from takeup.training.policies import find_policy
from takeup.training.policies.planned import make_plan
from takeup.training.report import (
    comparison_bars,
    comparison_table,
    delay_series,
    gantt,
    sampled_table,
    stages_table,
)
from takeup.training.simulate.runs import sample, simulate
from takeup.training.traces import load_schedule


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
