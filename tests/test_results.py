"""Every result of the library carries a report, and shows itself in a notebook, in pandas and in Arrow."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, get_type_hints

import numpy as np
import pytest

from cluster.cluster_outcomes import outcome
from takeup import caching, edge, serving, streaming, training
from takeup.core.report import Reported
from takeup.edge.simulate.site import simulate
from takeup.serving.diffusion.policies import Grouping
from takeup.serving.scheduling.routing import ROUTES
from test_public_api import DOMAINS

INSTANCE = edge.generate("paper", 1, 6)
PROFILE = training.random_profile(np.random.default_rng(1), 3, 6)
CELL = streaming.Cell(capacity_bps=1e7, bitrate_bps=2e6, arrivals_per_s=0.05, max_users=5)


def caching_result() -> Reported:
    workload = caching.generate("zip", seed=1)
    return caching.replay(caching.find_policy("lrc"), workload, caching.EngineModel(workload.working_set_bytes // 2))


def played() -> Reported:
    task = edge.PlayedTask(3, 1000, 0.0, 0.1, 0.1, 0.2, 0.3, upload_s=0.1, start_s=0.11, end_s=0.21, core=0)
    return edge.Played((task,), "user-space", "planned", 1.0, 1.0, 0.002)


def simulated_site() -> Reported:
    return simulate(edge.find_policy("greedy"), INSTANCE)


def queue_outcome() -> Reported:
    rules = serving.InstancePolicies(Grouping(4), serving.ADAPTER_POLICIES["lru"])
    design = serving.Design("ours", serving.RowCosts(((1, 0.1),)), max_running=4)
    arrivals = serving.poisson_arrivals(5, 1.0, seed=1)
    return serving.simulate_queue(
        arrivals, design, num_gpus=1, rules=rules, route=ROUTES["least_busy"], admit=serving.Admission()
    )


def adapter_replay() -> Reported:
    accesses = [serving.Access(0, (1, 2)), serving.Access(0, (1,))]
    return serving.replay_adapters("lru", serving.ADAPTER_POLICIES["lru"], accesses, capacity=2)


RESULTS: dict[str, Callable[[], Reported]] = {
    "CachingResult": caching_result,
    "Outcome": outcome,
    "Answer": lambda: edge.solve(INSTANCE, "greedy"),
    "Played": played,
    "SimulationResult": simulated_site,
    "QueueOutcome": queue_outcome,
    "AdapterReplay": adapter_replay,
    "QoeMetrics": lambda: streaming.solve_cell(CELL, streaming.Player(start_s=4.0)),
    "CapacityFit": lambda: streaming.fit_capacity([np.repeat([1e6, 4e6, 2e6, 6e6], 30)]),
    "PipelinePlan": lambda: training.find_policy("one_f_one_b").plan(PROFILE),
    "Timeline": lambda: training.timeline_of(training.find_policy("one_f_one_b").plan(PROFILE).schedule, PROFILE),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_shows_itself_as_its_report(name: str) -> None:
    result = RESULTS[name]()
    report = result.report()
    shown = result._repr_html_()

    assert type(result).__name__ == name
    assert report == type(report).from_json(report.to_json())
    assert ("<svg" in shown, shown.count("<table")) == (True, len(report.tables))
    assert result.to_arrow().num_rows == len(result.to_pandas()) == len(report.tables[0].rows) > 0


@pytest.mark.parametrize("domain", DOMAINS)
def test_what_public_functions_compute_can_be_shown(domain: str) -> None:
    module = import_module(domain)
    kinds = [answer_of(getattr(module, name)) for name in module.__all__]
    results = {kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, Reported)}

    assert results
    assert {kind.__name__ for kind in results} <= RESULTS.keys()


def answer_of(value: object) -> Any:
    return get_type_hints(value).get("return") if inspect.isfunction(value) else None
