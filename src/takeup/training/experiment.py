"""From a scenario to a report: the one place where profiles, planners, simulator and reports are joined."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from takeup.core.progress import progress
from takeup.core.report import Report, Series, Table
from takeup.core.scenario import Scenario, validate
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.training.model import Link, Plan, Profile
from takeup.training.policies import find_policy
from takeup.training.policies.planned import planned
from takeup.training.report import (
    comparison_bars,
    comparison_table,
    delay_series,
    gantt,
    sampled_table,
    stages_table,
)
from takeup.training.simulate import sample, simulate
from takeup.training.traces import load_profile, load_schedule, random_profile

__all__ = ["TrainingScenario", "plan_of", "profile_of", "run", "run_again"]

A_MICROBATCH_BYTES = 2**20  # any number that chunks can divide, where only a count was given
SLOW = re.compile(r"(\d+):(\d+\.?\d*)(?:\+(\d+\.?\d*))?")


class TrainingScenario(Scenario):
    """One question about a pipeline: one from a file, or one whose operations all take as long."""

    domain: Literal["training"] = "training"
    verb: Literal["plan", "simulate", "compare"]
    policies: tuple[str, ...] = ("adaptra",)
    profile: str | None = None
    schedule: str | None = None
    num_stages: int = Field(4, ge=1, le=4096)
    num_microbatches: int = Field(24, ge=1, le=65536)
    op_ms: float = Field(10.0, gt=0)
    uneven: bool = False
    slow: tuple[str, ...] = ()
    max_live: int | None = Field(None, ge=1)
    max_sends: int | None = Field(None, ge=1)
    hop_ms: float = Field(0.0, ge=0)
    host_ms: float = Field(0.0, ge=0)
    delays_ms: tuple[float, ...] = ()
    delays_are: Literal["latency", "service"] = "latency"
    jitter_share: float = Field(0.05, ge=0, le=10)
    num_runs: int = Field(100, ge=1)

    @field_validator("slow")
    @classmethod
    def _slow_links(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for each in given:
            if SLOW.fullmatch(each) is None:
                raise ValueError(
                    f"write LINK:LATENCY or LINK:LATENCY+SERVICE in ms, such as 2:20 or 2:0+30, not {each!r}"
                )
        return given

    @model_validator(mode="after")
    def _enough_policies(self) -> TrainingScenario:
        if not self.policies:
            raise ValueError("give at least one policy")
        if self.verb == "plan" and len(self.policies) > 1:
            raise ValueError("'plan' takes one policy; 'compare' and 'simulate' take several")
        return self


def run_again(values: Mapping[str, Any], source: str, *, quiet: bool = False) -> Report:
    """Run the scenario that a file or a report holds."""
    return run(validate(TrainingScenario, values, source), quiet=quiet)


def run(scenario: TrainingScenario, *, quiet: bool = False) -> Report:
    """Carry the scenario out."""
    verbs: dict[str, Callable[[TrainingScenario, bool], Report]] = {
        "plan": _plan,
        "simulate": _simulate,
        "compare": _compare,
    }
    return verbs[scenario.verb](scenario, quiet)


# The pipeline of a scenario -------------------------------------------------------------------------------------------


def profile_of(scenario: TrainingScenario) -> Profile:
    """The pipeline that the scenario is about."""
    profile = _base(scenario)
    if scenario.max_live is not None:
        memory_bytes = scenario.max_live * A_MICROBATCH_BYTES
        stages = tuple(
            replace(stage, activation_bytes=A_MICROBATCH_BYTES, memory_bytes=memory_bytes) for stage in profile.stages
        )
        profile = replace(profile, stages=stages)
    if scenario.max_sends is not None:
        profile = replace(profile, max_sends=scenario.max_sends)
    if scenario.hop_ms or scenario.host_ms:
        profile = replace(profile, hop_s=scenario.hop_ms / 1e3, host_s=scenario.host_ms / 1e3)
    return profile.with_links(_slow_links(scenario, len(profile.links)))


def _base(scenario: TrainingScenario) -> Profile:
    if scenario.profile is not None:
        return load_profile(Path(scenario.profile))
    if scenario.uneven:
        random, mean_ms = Streams(scenario.seed).stream("profile"), scenario.op_ms
        op_ms = (mean_ms * 2 / 3, mean_ms * 4 / 3)
        return random_profile(random, scenario.num_stages, scenario.num_microbatches, op_ms=op_ms, slow_share=0.0)
    return Profile.uniform(scenario.num_stages, scenario.num_microbatches, scenario.op_ms / 1e3)


def _slow_links(scenario: TrainingScenario, num_links: int) -> dict[int, Link]:
    found = {}
    for text in scenario.slow:
        match = SLOW.fullmatch(text)
        assert match is not None
        number = int(match[1])
        if number >= num_links:
            raise BadInput(f"there is no link {number}; the pipeline has the links 0 to {num_links - 1}")
        found[number] = Link(float(match[2]) / 1e3, float(match[3] or 0) / 1e3)
    return found


def plan_of(scenario: TrainingScenario) -> Plan:
    """The plan of the first policy."""
    return find_policy(scenario.policies[0]).plan(profile_of(scenario))


def _report(scenario: TrainingScenario, title: str, *parts: Table | Series, notes: tuple[str, ...] = ()) -> Report:
    tables = tuple(part for part in parts if isinstance(part, Table))
    series = tuple(part for part in parts if isinstance(part, Series))
    return Report(title, "training", scenario.model_dump(), scenario.seed, tables, series, notes=notes)


# The verbs ------------------------------------------------------------------------------------------------------------


def _plan(scenario: TrainingScenario, quiet: bool) -> Report:
    plan = plan_of(scenario)
    timeline = simulate(plan.schedule, plan.profile)
    table = comparison_table([plan], [timeline])
    return _report(scenario, "Training: the plan", stages_table(plan), table, gantt(timeline))


def _simulate(scenario: TrainingScenario, quiet: bool) -> Report:
    profile, streams = profile_of(scenario), Streams(scenario.seed)
    if scenario.schedule is not None:
        plans = [planned("as given", profile, load_schedule(Path(scenario.schedule)))]
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
    return _report(scenario, "Training: iterations", comparison_table(plans, timelines), sampled_table(rows), *charts)


def _compare(scenario: TrainingScenario, quiet: bool) -> Report:
    profile = profile_of(scenario)
    if scenario.delays_ms:
        return _compare_delays(scenario, profile, quiet)
    plans = [find_policy(name).plan(profile) for name in scenario.policies]
    timelines = [simulate(plan.schedule, plan.profile) for plan in plans]
    return _report(scenario, "Training: planners", comparison_table(plans, timelines), comparison_bars(plans))


def _compare_delays(scenario: TrainingScenario, profile: Profile, quiet: bool) -> Report:
    """The slow links, or the last one, with one delay after the other."""
    if not profile.links:
        raise BadInput("a pipeline of one stage has no link to delay; give at least two stages")
    numbers = list(_slow_links(scenario, len(profile.links))) or [len(profile.links) - 1]
    plans: dict[float, list[Plan]] = {}
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
    return _report(scenario, "Training: planners by delay", *tables, chart)
