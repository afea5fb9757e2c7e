"""From a scenario to a report: the one module that combines instances, policies, simulator, engine and reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from takeup.core.progress import progress
from takeup.core.report import Cell, Column, Report, Series, Table
from takeup.core.scenario import Scenario, validate
from takeup.core.seeds import Streams
from takeup.edge import report
from takeup.edge.contract import Policy
from takeup.edge.model import Answer, Instance, with_objective
from takeup.edge.planning import least_enough, served_share, solve
from takeup.edge.policies import find_policy
from takeup.edge.traces.files import CQI_64QAM, load_instance, read_channel, with_channel
from takeup.edge.traces.generators import SETTINGS, poisson_times, with_arrivals
from takeup.edge.traces.library import NUM_CELLS, best_known, cell_traits
from takeup.edge.validate import violation_of_answer
from takeup.errors import BadInput, UnknownName

PLENTY = {"subcarriers": 273, "cores": 64}  # 273 blocks are 100 MHz in 5G


class EdgeScenario(Scenario):
    """One question about a cell and its site. Values that are not given default to those of the setting."""

    domain: Literal["edge"] = "edge"
    verb: Literal["solve", "simulate", "compare", "run", "size", "instances"]
    instance: str | None = None
    cell: int | None = Field(None, ge=0)
    channel: str | None = None
    setting: str = "radio_tight"
    num_devices: int = Field(20, ge=1, le=1_000_000)
    num_subcarriers: int | None = Field(None, ge=1, le=10_000)
    num_cores: int | None = Field(None, ge=1)
    edge_hz: float | None = Field(None, gt=0)
    objective: str = "energy"
    contiguous: bool | None = None
    modulations: Literal["shannon", "cqi"] | None = None
    policies: tuple[str, ...] = ("auto",)
    budget_ms: float = Field(500.0, ge=0)
    num_instances: int = Field(10, ge=1)
    arrivals_per_s: float = Field(20.0, gt=0)
    patience_s: float = Field(0.0, ge=0)
    cycles_shape: float = Field(inf, gt=0)
    gain_error_db: float = Field(0.0, ge=0)
    quantile: float = Field(0.95, gt=0, lt=1)
    target_share: float = Field(0.9, gt=0, le=1)
    engine: str = "cloudlet"
    link: str = "auto"
    slowdown: float = Field(1.0, gt=0)
    real_time: bool = False
    dry_run: bool = False

    @model_validator(mode="after")
    def _enough_policies(self) -> EdgeScenario:
        if not self.policies:
            raise ValueError("give at least one policy")
        if self.verb in {"solve", "run", "size"} and len(self.policies) > 1:
            raise ValueError(f"{self.verb!r} takes one policy; 'compare' and 'simulate' take several")
        return self


def run_again(values: Mapping[str, Any], source: str, *, quiet: bool = False) -> Report:
    """Run the scenario that a file or a report holds."""
    return run(validate(EdgeScenario, values, source), quiet=quiet)


def run(scenario: EdgeScenario, *, quiet: bool = False) -> Report:
    """Run the scenario."""
    verbs: dict[str, Callable[[EdgeScenario, bool], Report]] = {
        "solve": _solve,
        "simulate": _simulate,
        "compare": _compare,
        "run": _run_engine,
        "size": _size,
        "instances": _instances,
    }
    return verbs[scenario.verb](scenario, quiet)


# The instances of a scenario ------------------------------------------------------------------------------------------


def instances_of(scenario: EdgeScenario, count: int = 1) -> list[Instance]:
    """Draw `count` random instances, or load the one in the file."""
    streams = Streams(scenario.seed)
    if scenario.instance is not None:
        return [_adjusted(load_instance(Path(scenario.instance)), scenario, streams)]
    if scenario.setting not in SETTINGS:
        raise UnknownName("edge setting", scenario.setting, SETTINGS)
    return [_drawn(scenario, streams.child(f"instance {number}")) for number in range(count)]


def _drawn(scenario: EdgeScenario, streams: Streams) -> Instance:
    given: dict[str, Any] = {"num_subcarriers": scenario.num_subcarriers, "edge_hz": scenario.edge_hz}
    given = {name: value for name, value in given.items() if value is not None}
    drawn = SETTINGS[scenario.setting](streams.stream("cell"), scenario.num_devices, **given)
    return _adjusted(drawn, scenario, streams)


def _adjusted(instance: Instance, scenario: EdgeScenario, streams: Streams) -> Instance:
    """The instance with the overrides of the scenario."""
    if scenario.channel is not None:
        instance = with_channel(instance, read_channel(Path(scenario.channel)), streams.stream("channel"))
    if scenario.modulations is not None:
        table = CQI_64QAM if scenario.modulations == "cqi" else ()
        instance = replace(instance, radio=replace(instance.radio, modulations=table))
    if scenario.num_cores is not None:
        instance = replace(instance, num_cores=scenario.num_cores)
    if scenario.contiguous is not None:
        instance = replace(instance, contiguous=scenario.contiguous)
    return with_objective(instance, scenario.objective)


def _answer(instance: Instance, policy: str, scenario: EdgeScenario) -> Answer:
    """The answer of a policy, checked by the validator."""
    answer = solve(instance, policy, scenario.budget_ms)
    violation = violation_of_answer(instance, answer, ignores_cpu=find_policy(policy).ignores_cpu)
    if violation is not None:
        raise BadInput(f"the plan of {policy!r} breaks the constraint {violation.constraint!r}: {violation.detail}")
    return answer


def _report(scenario: EdgeScenario, title: str, *parts: Table | Series | None, notes: tuple[str, ...] = ()) -> Report:
    tables = tuple(part for part in parts if isinstance(part, Table))
    series = tuple(part for part in parts if isinstance(part, Series))
    values = scenario.model_dump()
    if scenario.cycles_shape == inf:
        del values["cycles_shape"]  # JSON has no infinity; it is the default
    return Report(title, "edge", values, scenario.seed, tables, series, notes=notes)


# The verbs ------------------------------------------------------------------------------------------------------------


def _solve(scenario: EdgeScenario, quiet: bool) -> Report:
    (instance,) = instances_of(scenario)
    answer = _answer(instance, scenario.policies[0], scenario)
    plan = answer.allocation
    charts = (report.cpu_gantt(instance, plan), report.radio_gantt(instance, plan)) if plan.num_accepted else ()
    tables = (report.decisions_table(instance, answer), report.certificate_table(answer), report.prices_table(answer))
    return _report(scenario, "Edge: offloading decisions", *tables, *charts)


def _compare(scenario: EdgeScenario, quiet: bool) -> Report:
    instances = instances_of(scenario, scenario.num_instances)
    answers: dict[str, list[Answer]] = {policy: [] for policy in scenario.policies}
    with progress("edge compare", len(instances) * len(answers), quiet=quiet) as tick:
        for instance in instances:
            for policy in scenario.policies:
                answers[policy].append(_answer(instance, policy, scenario))
                tick()
    reference = [name for name in answers if find_policy(name).ignores_cpu]
    notes = tuple(f"{name} lets tasks overlap on the CPU: a reference, not a contender" for name in reference)
    return _report(
        scenario, "Edge: policies", report.comparison_table(answers), *report.comparison_bars(answers), notes=notes
    )


def _simulate(scenario: EdgeScenario, quiet: bool) -> Report:
    from takeup.edge.simulate.policy_view import Uncertainty
    from takeup.edge.simulate.site import simulate

    (instance,) = instances_of(scenario)
    if not instance.releases_s.any():
        random = Streams(scenario.seed).stream("arrivals")
        instance = with_arrivals(instance, poisson_times(random, instance.num_devices, scenario.arrivals_per_s))
    uncertainty = Uncertainty(scenario.cycles_shape, scenario.gain_error_db, scenario.quantile)
    runs = []
    with progress("edge simulate", len(scenario.policies), quiet=quiet) as tick:
        for name in scenario.policies:
            policy = find_policy(name)
            runs.append(
                simulate(policy, instance, uncertainty=uncertainty, patience_s=scenario.patience_s, seed=scenario.seed)
            )
            tick()
    return _report(scenario, "Edge: tasks that arrive over time", report.served_table(runs), report.served_series(runs))


def _run_engine(scenario: EdgeScenario, quiet: bool) -> Report:
    from takeup.edge.engines import find_engine

    (instance,) = instances_of(scenario)
    plan = _answer(instance, scenario.policies[0], scenario).allocation
    engine = find_engine(scenario.engine)(slowdown=scenario.slowdown, link=scenario.link, real_time=scenario.real_time)
    if scenario.dry_run:
        row = (str(engine.plan(instance, plan)),)
        table = Table("What would be played", (Column("plan"),), (row,), "nothing was opened")
        return _report(scenario, f"Edge: plan for {scenario.engine}", table)
    played = engine.play(instance, plan)
    return _report(scenario, f"Edge: {scenario.engine}", report.played_table(played), report.played_gantt(played))


def _size(scenario: EdgeScenario, quiet: bool) -> Report:
    """The least of each resource, with the other one as in the scenario, and with plenty of it."""
    if scenario.instance is not None:
        raise BadInput("'size' draws cells with more and fewer resources; give a setting instead of an instance")
    policy = find_policy(scenario.policies[0])
    rows: list[tuple[Cell, ...]] = []
    curves: list[dict[str, Cell]] = []
    with progress("edge size", 4, quiet=quiet) as tick:
        for what, other in (("subcarriers", "cores"), ("cores", "subcarriers")):
            for amount, words in ((None, "as in the setting"), (PLENTY[other], "plenty")):
                given = scenario if amount is None else scenario.model_copy(update={f"num_{other}": amount})
                make = partial(_cells_with, given, what)
                needed = least_enough(make, policy, scenario.target_share, PLENTY[what])
                rows.append((what, f"{other}: {words}", needed.amount, 100 * needed.served_share))
                curves += _shares(make, f"{what}, {other}: {words}", needed.amount or 16, policy)
                tick()
    columns = (Column("resource"), Column("the other"), Column("least"), Column("served", "%", 1))
    note = f"so that {policy.name} serves {scenario.target_share:.0%} of the devices; a dash: no amount does"
    table = Table("What the site needs", columns, tuple(rows), note)
    chart = Series("Devices served", "amount", "served", tuple(curves), "resource", y_unit="%")
    return _report(scenario, "Edge: required site size", table, chart)


def _cells_with(scenario: EdgeScenario, what: str, amount: int) -> Sequence[Instance]:
    return instances_of(scenario.model_copy(update={f"num_{what}": amount}), scenario.num_instances)


def _shares(
    make: Callable[[int], Sequence[Instance]], label: str, amount: int, policy: Policy
) -> list[dict[str, Cell]]:
    """The share served with some amounts below and above."""
    amounts = np.unique(np.linspace(1, 2 * amount, 9).astype(int)).tolist()
    return [{"resource": label, "amount": each, "served": 100 * served_share(make(each), policy)} for each in amounts]


def _instances(scenario: EdgeScenario, quiet: bool) -> Report:
    """The instance library, or one cell of it."""
    numbers = range(NUM_CELLS) if scenario.cell is None else (scenario.cell,)
    table = report.library_table([cell_traits(number) for number in numbers], best_known())
    return _report(scenario, "Edge: the instance library", table)
