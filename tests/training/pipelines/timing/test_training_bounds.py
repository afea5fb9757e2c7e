"""What no schedule can beat: checked by hand, against every planner, and against exact optima of tiny pipelines."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from ortools.sat.python import cp_model

from takeup.training.pipelines.planners import POLICIES
from takeup.training.pipelines.planners.adaptra import Adaptra
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.timing.evaluation import generate_schedule, least_iteration_s, timeline_of
from takeup.training.traces.profiles import random_profile
from training.pipeline_profiles import congested, ms, profiles, slow


@pytest.mark.parametrize(
    ("profile", "expected_ms"),
    [
        (slow(4, 12, {}), 30 + 12 * 30),
        (slow(4, 12, {0: 20}), 30 + 20 + 12 * 30),
        (congested(4, 24, {2: 30}), 4 * 10 + 30 + 23 * 30 + 4 * 10 + 30 + 10),
        (slow(2, 1, {0: 7}), 10 + 7 + 10 + 10 + 7 + 10 + 10),
    ],
)
def test_bounds_by_hand(profile: Profile, expected_ms: float) -> None:
    assert ms(least_iteration_s(profile)) == expected_ms


def test_memory_for_one_micro_batch_makes_every_round_trip_count() -> None:
    stage = Stage(0.01, 0.01, 0.01, 1, 1)
    profile = Profile((stage, stage), (Link(0.05),), 4)

    assert ms(least_iteration_s(profile)) == 4 * (10 + 50 + 10 + 10 + 50 + 10 + 10)


@settings(max_examples=40, deadline=None)
@given(profiles() | profiles(shared=True))
def test_no_generated_order_beats_the_bound(profile: Profile) -> None:
    schedule = generate_schedule(profile, (1,) * profile.num_stages)

    assert timeline_of(schedule, profile).iteration_s >= least_iteration_s(profile) - 1e-12


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", POLICIES)
def test_no_planner_beats_the_bound(name: str, seed: int) -> None:
    plan = POLICIES[name].plan(random_profile(np.random.default_rng(seed), 4, 8))

    assert plan.iteration_s >= plan.bound_s - 1e-12


def optimum_ms(profile: Profile) -> float:
    """The least iteration time of all schedules, proved by a solver; for links with a latency only."""
    model, count, horizon = cp_model.CpModel(), range(profile.num_microbatches), 10_000
    whole = model.new_int_var(0, horizon, "whole")
    starts = {}
    for number, stage in enumerate(profile.stages):
        lanes = []
        for kind, seconds in (("F", stage.forward_s), ("B", stage.backward_s), ("W", stage.weight_s)):
            for m in count:
                start = model.new_int_var(0, horizon, "")
                lanes.append(model.new_fixed_size_interval_var(start, round(1e3 * seconds), ""))
                starts[number, kind, m] = start, start + round(1e3 * seconds)
                model.add(whole >= start + round(1e3 * seconds))
        model.add_no_overlap(lanes)
    for m in count:
        for number, (here, link) in enumerate(zip(profile.stages, (*profile.links, None), strict=True)):
            assert here is profile.stages[number]
            model.add(starts[number, "W", m][0] >= starts[number, "B", m][1])
            if link is None:
                model.add(starts[number, "B", m][0] >= starts[number, "F", m][1])
                continue
            delay = round(1e3 * link.latency_s)
            model.add(starts[number + 1, "F", m][0] >= starts[number, "F", m][1] + delay)
            model.add(starts[number, "B", m][0] >= starts[number + 1, "B", m][1] + delay)
    for number in range(profile.num_stages):
        for kind in "FBW":  # equal micro-batches: some optimum has them in order
            for before, after in pairwise(count):
                model.add(starts[number, kind, after][0] >= starts[number, kind, before][1])
    model.minimize(whole)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = 20
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver.objective_value


def tiny_profile(seed: int) -> Profile:
    random = np.random.default_rng(seed)
    stages = tuple(Stage(*(random.integers(1, 6, 3) / 1e3).tolist()) for _ in range(3))
    return Profile(stages, tuple(Link(int(delay) / 1e3) for delay in random.integers(0, 12, 2)), 4)


def test_tiny_pipelines_are_planned_near_the_proved_optimum() -> None:
    lost = []
    for seed in range(8):
        profile = tiny_profile(seed)
        best_ms, plan = optimum_ms(profile), Adaptra().plan(profile)
        lost.append(ms(plan.iteration_s) / best_ms - 1)

        assert ms(plan.bound_s) <= best_ms <= ms(plan.iteration_s)

    assert np.mean(lost) <= 0.03
