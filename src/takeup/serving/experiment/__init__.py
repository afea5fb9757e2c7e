"""From a scenario to a report: wires arrivals, designs, policies, simulator and reports together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from takeup.core.progress import progress
from takeup.core.report import Report
from takeup.core.scenario import validate
from takeup.serving.experiment.designs import DESIGNS, design_of
from takeup.serving.experiment.scenario import ServingScenario, arrivals_of
from takeup.serving.policies.adapters import ADAPTER_POLICIES, ORDERS
from takeup.serving.policies.admission import Admission
from takeup.serving.policies.batching import Grouping
from takeup.serving.policies.routing import ROUTES
from takeup.serving.report import RatePoint, queue_report
from takeup.serving.simulate.instance import InstancePolicies
from takeup.serving.simulate.queue import simulate_queue
from takeup.serving.simulate.residents import Tiers
from takeup.serving.traffic import Arrival, QueueOutcome

__all__ = ["DESIGNS", "ServingScenario", "run", "run_again", "serve"]

OWN_DESIGN = "takeup"


def run_again(values: Mapping[str, Any], source: str, *, quiet: bool = False) -> Report:
    """Run a scenario that was read from a file or a report."""
    return run(validate(ServingScenario, values, source), quiet=quiet)


def run(scenario: ServingScenario, *, quiet: bool = False) -> Report:
    """Simulate the scenario with every design, at every arrival rate."""
    points = []
    with progress(f"serving {scenario.verb}", len(scenario.rates_per_s) * len(scenario.designs), quiet=quiet) as tick:
        for rate_per_s in scenario.rates_per_s:
            arrivals = arrivals_of(scenario, rate_per_s)
            for name in scenario.designs:
                points.append(RatePoint(rate_per_s, serve(arrivals, name, scenario)))
                tick()
    title = f"Serving: {', '.join(scenario.designs)} on {scenario.workload}"
    return queue_report(points, title, scenario.model_dump(), scenario.seed)


def serve(arrivals: list[Arrival], name: str, scenario: ServingScenario) -> QueueOutcome:
    """Simulate one design. Only `takeup` uses the scenario's policies; others use least-busy routing and LRU."""
    is_ours = name == OWN_DESIGN
    make_policy = ADAPTER_POLICIES[scenario.eviction if is_ours else "lru"]
    tiers = Tiers(make_policy, scenario.cache, scenario.host_cache, scenario.host_load_s)
    order = ORDERS[scenario.order] if is_ours and scenario.order != "in_order" else None
    max_waiting = math.inf if scenario.max_waiting is None else scenario.max_waiting
    return simulate_queue(
        arrivals,
        design_of(name, max_running=scenario.max_running, costs=scenario.costs),
        num_gpus=scenario.num_gpus,
        rules=InstancePolicies(Grouping(scenario.max_rows), tiers, order, scenario.patience),
        route=ROUTES[scenario.route if is_ours else "least_busy"],
        admit=Admission(max_waiting, scenario.in_time),
    )
