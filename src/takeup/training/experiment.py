"""From a scenario to a report: combines profiles, planners, the simulator and reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from takeup.core.progress import progress
from takeup.core.report import Check, Report, Series, Table
from takeup.core.scenario import Scenario, validate
from takeup.core.seeds import Streams
from takeup.core.stats import percentile
from takeup.errors import BadInput, BadTrace
from takeup.training import report
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import PipelinePlan
from takeup.training.pipelines.simulate import sample
from takeup.training.pipelines.timing.evaluation import make_plan, timeline_of
from takeup.training.stragglers.locate.standing import standing_suspects, standings
from takeup.training.stragglers.locate.whatif import diagnose
from takeup.training.traces.flight_recorder import is_dump, load_stuck_groups
from takeup.training.traces.operations import load_operations
from takeup.training.traces.profiler import load_calls
from takeup.training.traces.profiles import load_profile, load_schedule, random_profile

# A training scenario, and the pipeline profile it describes -----------------------------------------------------------

A_MICROBATCH_BYTES = 2**20  # arbitrary, divisible into chunks; used where only a count was given
SLOW = re.compile(r"(\d+):(\d+\.?\d*)(?:\+(\d+\.?\d*))?")
PATTERNS = {
    "slow": (SLOW, "LINK:LATENCY or LINK:LATENCY+SERVICE in ms, such as 2:20 or 2:0+30"),
    "slow_stages": (re.compile(r"\d+:\d+\.?\d*"), "STAGE:FACTOR, such as 1:1.5 for operations half as long again"),
}


class TrainingScenario(Scenario):
    """A training scenario: a pipeline from a file, or one whose operations all take equally long."""

    domain: Literal["training"] = "training"
    verb: Literal["plan", "simulate", "compare", "whatif"]
    policies: tuple[str, ...] = ("adaptra",)
    profile: str | None = None
    schedule: str | None = None
    trace: str | None = None
    num_stages: int = Field(4, ge=1, le=4096)
    num_microbatches: int = Field(24, ge=1, le=65536)
    op_ms: float = Field(10.0, gt=0)
    uneven: bool = False
    slow: tuple[str, ...] = ()
    slow_stages: tuple[str, ...] = ()
    max_live: int | None = Field(None, ge=1)
    max_sends: int | None = Field(None, ge=1)
    hop_ms: float = Field(0.0, ge=0)
    host_ms: float = Field(0.0, ge=0)
    delays_ms: tuple[float, ...] = ()
    delays_are: Literal["latency", "service"] = "latency"
    jitter_share: float = Field(0.05, ge=0, le=10)
    num_runs: int = Field(100, ge=1)

    @field_validator("slow", "slow_stages")
    @classmethod
    def _as_expected(cls, given: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        pattern, expected = PATTERNS[info.field_name or ""]
        for each in given:
            if pattern.fullmatch(each) is None:
                raise ValueError(f"write {expected}, not {each!r}")
        return given

    @model_validator(mode="after")
    def _enough_policies(self) -> TrainingScenario:
        if not self.policies:
            raise ValueError("give at least one policy")
        if self.verb == "plan" and len(self.policies) > 1:
            raise ValueError("'plan' takes one policy; 'compare' and 'simulate' take several")
        return self


def profile_of(scenario: TrainingScenario) -> Profile:
    """The pipeline profile of the scenario."""
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
    stages = _slowed(scenario, profile.stages)
    return replace(profile, stages=stages).with_links(slow_links_of(scenario, len(profile.links)))


def _slowed(scenario: TrainingScenario, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages, with the slow ones scaled."""
    factors = dict(text.split(":") for text in scenario.slow_stages)
    beyond = [number for number in factors if int(number) >= len(stages)]
    if beyond:
        raise BadInput(f"there is no stage {beyond[0]}; the pipeline has the stages 0 to {len(stages) - 1}")
    scaled = []
    for number, stage in enumerate(stages):
        factor = float(factors.get(str(number), 1.0))
        forward_s, backward_s, weight_s = (
            factor * each for each in (stage.forward_s, stage.backward_s, stage.weight_s)
        )
        scaled.append(replace(stage, forward_s=forward_s, backward_s=backward_s, weight_s=weight_s))
    return tuple(scaled)


def _base(scenario: TrainingScenario) -> Profile:
    if scenario.profile is not None:
        return load_profile(Path(scenario.profile))
    if scenario.uneven:
        random, mean_ms = Streams(scenario.seed).stream("profile"), scenario.op_ms
        op_ms = (mean_ms * 2 / 3, mean_ms * 4 / 3)
        return random_profile(random, scenario.num_stages, scenario.num_microbatches, op_ms=op_ms, slow_share=0.0)
    return Profile.uniform(scenario.num_stages, scenario.num_microbatches, scenario.op_ms / 1e3)


def slow_links_of(scenario: TrainingScenario, num_links: int) -> dict[int, Link]:
    """The slow links of a scenario by index; rejects an index that the pipeline does not have."""
    found = {}
    for text in scenario.slow:
        match = SLOW.fullmatch(text)
        assert match is not None
        number = int(match[1])
        if number >= num_links:
            raise BadInput(f"there is no link {number}; the pipeline has the links 0 to {num_links - 1}")
        found[number] = Link(float(match[2]) / 1e3, float(match[3] or 0) / 1e3)
    return found


def plan_of(scenario: TrainingScenario) -> PipelinePlan:
    """The plan of the first policy."""
    return find_policy(scenario.policies[0]).plan(profile_of(scenario))


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
    timeline = timeline_of(plan.schedule, plan.profile)
    table = report.comparison_table([plan], [timeline])
    return report_of(scenario, "Training: the plan", report.stages_table(plan), table, report.gantt(timeline))


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
            jitter_share, num_runs = scenario.jitter_share, scenario.num_runs
            times_s = sample(plan, streams.stream("jitter"), jitter_share=jitter_share, num_runs=num_runs)
            middle_s, late_s = percentile(times_s, 50), percentile(times_s, 95)
            rows.append((plan.planner, plan.iteration_s, float(times_s.mean()), middle_s, late_s))
            tick()
    timelines = [timeline_of(plan.schedule, plan.profile) for plan in plans]
    charts = (
        report.gantt(timeline, f"What ranks do, {plan.planner}")
        for plan, timeline in zip(plans, timelines, strict=True)
    )
    return report_of(
        scenario, "Training: iterations", report.comparison_table(plans, timelines), report.sampled_table(rows), *charts
    )


def compare_planners(scenario: TrainingScenario, quiet: bool) -> Report:
    """Compare several planners on the same pipeline."""
    profile = profile_of(scenario)
    if scenario.delays_ms:
        return _compare_delays(scenario, profile, quiet)
    plans = [find_policy(name).plan(profile) for name in scenario.policies]
    timelines = [timeline_of(plan.schedule, plan.profile) for plan in plans]
    return report_of(
        scenario, "Training: planners", report.comparison_table(plans, timelines), report.comparison_bars(plans)
    )


def explain_trace(scenario: TrainingScenario, quiet: bool) -> Report:
    """What a recorded job lost, or where it hangs: from operations, traces of the profiler, or the Flight Recorder."""
    if scenario.trace is None:
        raise BadInput("there is no trace to explain; give the path of a file, or of a folder with one for every rank")
    path = Path(scenario.trace)
    if is_dump(path):
        tables = [report.stuck_table(load_stuck_groups(path))]
    elif path.is_dir() or ".json" in path.suffixes:
        tables = [_ranks_compared(path)]
    else:
        tables = _causes(path)
    return report_of(scenario, "Training: what if", *tables)


def _causes(path: Path) -> list[Table]:
    """What a job would gain without each cause of delay."""
    trace = load_operations(path)
    found = diagnose(trace.durations_s, trace.orders)
    note = f"{trace.num_incomplete} steps without all operations were left out" if trace.num_incomplete else ""
    return [report.causes_table(found, note), report.workers_table(found)]


def _ranks_compared(path: Path) -> Table:
    """Which rank delays the others, from their calls."""
    rows = standings(load_calls(path))
    if not rows:
        raise BadTrace(
            path, "has too few steps to compare ranks; profile six or more, with `profiler.step()` after each"
        )
    return report.ranks_table(rows, standing_suspects(rows))


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
            timelines = [timeline_of(plan.schedule, plan.profile) for plan in plans[delay_ms]]
            table = report.comparison_table(plans[delay_ms], timelines)
            tables.append(replace(table, title=f"{scenario.delays_are} {delay_ms:g} ms on link {numbers}"))
            tick()
    chart = report.delay_series(plans, f"{scenario.delays_are} of link {', '.join(map(str, numbers))}")
    return report_of(scenario, "Training: planners by delay", *tables, chart)


# Verbs ----------------------------------------------------------------------------------------------------------------


def run_again(values: Mapping[str, Any], source: str, *, quiet: bool = False) -> Report:
    """Rerun the scenario stored in a file or a report."""
    return run(validate(TrainingScenario, values, source), quiet=quiet)


def run(scenario: TrainingScenario, *, quiet: bool = False) -> Report:
    """Run the scenario."""
    verbs: dict[str, Callable[[TrainingScenario, bool], Report]] = {
        "plan": plan_one,
        "simulate": simulate_planners,
        "compare": compare_planners,
        "whatif": explain_trace,
    }
    return verbs[scenario.verb](scenario, quiet)
