"""The compiled replay of job graphs decides exactly as the readable engine does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from takeup.caching.model import CachingResult, EngineModel, Workload
from takeup.caching.policies import POLICIES, find_policy
from takeup.caching.simulate.compiled.layout import POLICY_CODES
from takeup.caching.simulate.compiled.replay import replay
from takeup.caching.simulate.plain import simulate
from workloads import engines, workloads

TABLE = [f"{name}+admission" for name, spec in POLICIES.items() if spec.uses_table]
NAMES = [*POLICY_CODES, *TABLE, "dag-admission"]
TIMES = ("task_time_s", "makespan_s", "inactive_share")


def assert_same(fast: CachingResult, plain: CachingResult) -> None:
    """Counts agree exactly; times may differ in the last digit, because sums are taken in another order."""
    for name in TIMES:
        assert getattr(fast, name) == pytest.approx(getattr(plain, name), rel=1e-9)
    times = {name: getattr(plain, name) for name in TIMES}
    assert replace(fast, **times) == plain


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(workload=workloads(), engine=engines)
def test_fast_replay_equals_the_plain_simulation(name: str, workload: Workload, engine: EngineModel) -> None:
    spec = find_policy(name)

    assert_same(replay(spec, workload, engine), simulate(spec, workload, engine))
