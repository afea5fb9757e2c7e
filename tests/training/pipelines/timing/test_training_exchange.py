"""Exchanges on the critical path: never worse, always an order that runs, and as good as a solver's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.training.pipelines.planners.adaptra import Adaptra
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.timing.evaluation import (
    generate_schedule,
    least_nanoseconds,
    pipeline_arrays,
    timeline_of,
)
from takeup.training.pipelines.timing.exchange import improve_order
from training.pipeline_profiles import ms


def capped(seed: int, num_stages: int, num_microbatches: int, cap: int) -> Profile:
    """Uneven stages, some slow links, and memory for `cap` micro-batches; times are whole milliseconds."""
    random = np.random.default_rng(seed)
    times = random.integers(5, 16, (num_stages, 3)) / 1e3
    stages = tuple(Stage(f, b, w, activation_bytes=1, memory_bytes=cap) for f, b, w in times.tolist())
    delays = random.integers(0, 20, (num_stages - 1, 2)) * random.integers(0, 2, (num_stages - 1, 1)) / 1e3
    return Profile(stages, tuple(Link(*row) for row in delays.tolist()), num_microbatches)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(2, 7), st.integers(1, 4))
def test_an_improved_order_runs_within_memory_and_takes_what_is_said(
    seed: int, num_stages: int, num_microbatches: int, cap: int
) -> None:
    profile = capped(seed, num_stages, num_microbatches, cap)
    before = generate_schedule(profile, (1,) * num_stages, profile.live_limits())
    course, codes = pipeline_arrays(profile), np.stack(before.codes).copy()

    whole, _ = improve_order(course, np.array(profile.live_limits()), least_nanoseconds(profile, course), 60, codes)
    after = type(before)(tuple(codes), profile.placement, num_microbatches)
    timeline = timeline_of(after, profile)

    assert whole / 1e9 == timeline.iteration_s <= timeline_of(before, profile).iteration_s
    assert all(peak <= limit for peak, limit in zip(timeline.peak_live, profile.live_limits(), strict=True))


@pytest.mark.parametrize(("seed", "optimum_ms"), [(1, 362), (2, 295), (3, 212)])
def test_plans_under_a_cap_are_as_short_as_what_a_solver_proved(seed: int, optimum_ms: int) -> None:
    plan = Adaptra().plan(capped(seed, 4, 6, 3))

    assert plan.fits_memory
    assert ms(plan.iteration_s) <= 1.01 * optimum_ms
