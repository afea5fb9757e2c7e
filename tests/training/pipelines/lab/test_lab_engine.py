"""The laboratory for real: three ways to train, with exact gradients, and a slow link that is found by measuring."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from support.pipeline_lab.network import uses_namespaces
from support.pipeline_lab.trials import LabTrial, TrialOutcome, run_trials
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.profile import Link, Profile

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install 'takeup[torch]'"),
    pytest.mark.skipif(sys.platform not in {"linux", "darwin"}, reason="needs processes that fork"),
    pytest.mark.xdist_group("pytorch"),
]
HEALTHY = Profile.uniform(3, 4, 0.004)
SLOW = Profile.uniform(3, 4, 0.004, {1: Link(0.08)})
THIN = Profile.uniform(3, 4, 0.004, {1: Link(0.0, 0.2)})
ORDER = find_policy("zb_h1").plan(HEALTHY).schedule.to_csv()
MAY_MAKE_NETWORKS = uses_namespaces("auto") if sys.platform == "linux" else False


@pytest.fixture(scope="module")
def outcomes() -> dict[str, TrialOutcome]:
    """All trials, run once."""
    trials = [
        LabTrial("stock 1F1B", "stock_1f1b", SLOW, num_iterations=2),
        LabTrial("stock", "stock", SLOW, ORDER, num_iterations=2),
        LabTrial("adaptive", "adaptive", SLOW, num_iterations=4),
        LabTrial("given", "adaptive", HEALTHY, ORDER, num_iterations=3, planner="one_f_one_b"),
        LabTrial("pairs", "adaptive", HEALTHY, ORDER, num_iterations=4, planner="one_f_one_b", beside_stock=True),
        *([LabTrial("thin", "adaptive", THIN, num_iterations=4, cables=True)] if MAY_MAKE_NETWORKS else []),
    ]
    return {outcome.name: outcome for outcome in run_trials(trials)}


def test_gradients_are_those_of_a_single_process(outcomes: dict[str, TrialOutcome]) -> None:
    assert len(outcomes) == 5 + MAY_MAKE_NETWORKS
    assert max(outcome.gradient_error for outcome in outcomes.values()) < 1e-12


def test_every_iteration_was_timed(outcomes: dict[str, TrialOutcome]) -> None:
    assert [len(outcome.iterations_s) for outcome in outcomes.values()][:5] == [2, 2, 4, 3, 4]
    assert all(taken_s > 0 for outcome in outcomes.values() for taken_s in outcome.iterations_s)


def test_messages_over_a_slow_link_are_really_late(outcomes: dict[str, TrialOutcome]) -> None:
    assert min(outcomes["stock 1F1B"].iterations_s) > 2 * 0.08  # there and back


def test_the_slow_link_is_measured_and_delegated(outcomes: dict[str, TrialOutcome]) -> None:
    found = outcomes["adaptive"]

    assert found.measured is not None
    assert found.measured.links[1].delay_s > 0.07
    assert 1 in found.delegated
    assert len(found.pauses_s) == 2


def test_an_order_that_is_given_is_kept_while_there_is_no_better(outcomes: dict[str, TrialOutcome]) -> None:
    assert outcomes["given"].order == ORDER
    assert outcomes["given"].changed_after == ()


def test_iterations_of_the_stock_runtime_are_timed_beside_ours(outcomes: dict[str, TrialOutcome]) -> None:
    pairs = outcomes["pairs"]

    assert len(pairs.stock_s) == len(pairs.cpus_s) == len(pairs.stock_cpus_s) == 4
    assert all(0 < cpu_s < taken_s for cpu_s, taken_s in zip(pairs.stock_cpus_s, pairs.stock_s, strict=True))
    assert outcomes["given"].stock_s == ()


@pytest.mark.skipif(not MAY_MAKE_NETWORKS, reason="needs root, ip and tc")
def test_a_cable_that_carries_little_is_measured_as_a_slow_link(outcomes: dict[str, TrialOutcome]) -> None:
    thin = outcomes["thin"]

    assert thin.measured is not None
    assert thin.measured.links[1].delay_s > 0.16  # 200 ms for a message alone
    assert thin.measured.links[0].delay_s < 0.16
    assert 1 in thin.delegated
