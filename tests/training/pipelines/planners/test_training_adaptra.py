"""Schedules that adapt: warm-ups by hand, the tables of the paper's model, memory, queues, and the gap to the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.training.pipelines.planners.adaptra import Adaptra, AdaptraAsPublished, AdaptraInitial
from takeup.training.pipelines.planners.baselines import ZeroBubble, v_shaped_chunks
from takeup.training.pipelines.planners.warmups import absorbed_delays_s, adapt_warmups, clip_warmups, spread_warmups
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import OpKind
from takeup.training.pipelines.timing.evaluation import generate_schedule, search_schedule, timeline_of
from takeup.training.traces.profiles import random_profile
from training.pipeline_profiles import congested, ms, profiles, slow


def limited(profile: Profile, num: int) -> Profile:
    """The same with memory for so many micro-batches on every stage."""
    stages = tuple(replace(stage, activation_bytes=1, memory_bytes=num) for stage in profile.stages)
    return replace(profile, stages=stages)


# Warm-ups


@pytest.mark.parametrize(
    ("most", "num_stages", "expected"),
    [(10, 4, (10, 7, 4, 1)), (12, 4, (12, 8, 4, 1)), (4, 4, (4, 3, 2, 1)), (2, 4, (2, 1, 1, 1)), (5, 1, (1,))],
)
def test_warm_ups_are_spread_evenly_over_links(most: int, num_stages: int, expected: tuple[int, ...]) -> None:
    assert spread_warmups(most, num_stages) == expected


@pytest.mark.parametrize(
    ("delays_ms", "expected"),
    [({}, (7, 5, 3, 1)), ({0: 10}, (7, 5, 3, 1)), ({0: 20}, (8, 5, 3, 1)), ({2: 25}, (9, 7, 5, 1))],
)
def test_slackness_grows_with_the_delay_of_its_link(delays_ms: dict[int, float], expected: tuple[int, ...]) -> None:
    assert adapt_warmups(slow(4, 24, delays_ms)) == expected


@given(st.integers(1, 40), st.integers(1, 6))
def test_what_warm_ups_absorb_is_what_they_are_needed_for(most: int, num_stages: int) -> None:
    profile = slow(num_stages, 100, {})
    warmups = spread_warmups(most, num_stages)

    delays_s = absorbed_delays_s(profile, warmups)
    needed = adapt_warmups(profile.with_links({number: Link(delay_s) for number, delay_s in enumerate(delays_s)}))

    assert all(max(2, warmups[i] - warmups[i + 1]) == needed[i] - needed[i + 1] for i in range(num_stages - 1))


@given(st.lists(st.integers(-3, 50), min_size=4, max_size=4), st.lists(st.integers(1, 30), min_size=4, max_size=4))
def test_clipped_warm_ups_are_always_valid(wanted: list[int], caps: list[int]) -> None:
    warmups = clip_warmups(slow(4, 9, {}), wanted, caps)

    assert all(1 <= warmup <= min(9, cap) for warmup, cap in zip(warmups, caps, strict=True))
    assert list(warmups) == sorted(warmups, reverse=True)


@pytest.mark.parametrize("num_microbatches", [8, 7, 3, 1])
def test_few_micro_batches_have_a_schedule_too(num_microbatches: int) -> None:
    plan = Adaptra().plan(slow(4, num_microbatches, {2: 20}))

    assert plan.iteration_s == plan.bound_s


def test_operations_that_take_no_time_are_no_problem() -> None:
    nothing = Stage(0.0, 0.0, 0.0)
    profile = Profile((nothing, Stage(0.01, 0.01, 0.01), nothing), (Link(0.02), Link(0.01)), 5)

    plan = Adaptra().plan(profile)

    assert plan.iteration_s >= plan.bound_s > 0


# The first plan


@pytest.mark.parametrize(
    ("most", "virtual", "expected_ms"),
    [
        (10, False, [750, 860, 920, 1080]),
        (10, True, [750, 770, 770, 890]),
        (13, False, [750, 840, 920, 1080]),
        (13, True, [750, 770, 770, 780]),
    ],
)
def test_slack_is_real_only_if_the_order_is_made_for_delays(most: int, virtual: bool, expected_ms: list[float]) -> None:
    healthy = slow(4, 24, {})
    warmups = spread_warmups(most, 4)
    if virtual:
        schedule = AdaptraInitial(slackness=(most - 1) // 3).plan(healthy).schedule
    else:
        schedule = generate_schedule(healthy, warmups)

    delays: list[dict[int, float]] = [{}, {0: 20}, {2: 20}, {2: 30}]
    found = [timeline_of(schedule, slow(4, 24, each)) for each in delays]

    assert schedule.warmups() == warmups
    assert [ms(timeline.iteration_s) for timeline in found] == expected_ms


def test_the_first_plan_fills_memory_where_it_is_known() -> None:
    plan = AdaptraInitial().plan(limited(slow(4, 24, {}), 7))

    assert plan.schedule.warmups() == (7, 5, 3, 1)
    assert plan.fits_memory


# The plan for measured links


@pytest.mark.parametrize(("delay_ms", "expected"), [(20, 410), (30, 420)])
def test_the_numbers_of_the_paper(delay_ms: float, expected: float) -> None:
    assert ms(Adaptra().plan(slow(4, 12, {0: delay_ms})).iteration_s) == expected


@pytest.mark.parametrize(
    ("service_ms", "published", "ours"),
    [(20, 770, 770), (25, 890, 775), (28, 962, 798), (30, 1010, 840), (35, 1130, 965), (45, 1370, 1215)],
)
def test_a_plan_that_sees_queues_is_better_once_they_form(service_ms: float, published: float, ours: float) -> None:
    profile = congested(4, 24, {2: service_ms})

    assert ms(AdaptraAsPublished().plan(profile).iteration_s) == published
    assert ms(Adaptra().plan(profile).iteration_s) <= ours


@settings(max_examples=60, deadline=None)
@given(profiles(chunked=False))
def test_our_plan_is_never_slower_than_the_published_one(profile: Profile) -> None:
    assert Adaptra().plan(profile).iteration_s <= AdaptraAsPublished().plan(profile).iteration_s + 1e-12


def test_memory_is_bounded_at_little_cost() -> None:
    profile = slow(4, 48, {2: 40})

    free, capped = Adaptra().plan(profile), Adaptra().plan(limited(profile, 8))

    assert max(capped.peak_live) <= 8 < max(AdaptraAsPublished().plan(profile).peak_live)
    assert capped.iteration_s <= 1.02 * free.iteration_s


def test_memory_that_is_not_needed_is_not_used() -> None:
    profile = slow(4, 48, {})

    lean, greedy = (search_schedule(profile, (7, 5, 3, 1), (48,) * 4, 1, lean=lean) for lean in (True, False))

    peaks = [max(timeline_of(found.schedule, profile).peak_live) for found in (lean, greedy)]
    assert lean.iteration_s == greedy.iteration_s
    assert peaks[0] < peaks[1] == 48


def test_a_search_from_bad_warm_ups_finds_good_ones() -> None:
    profile = slow(4, 12, {0: 30})

    found = search_schedule(profile, (12, 12, 12, 12), (12,) * 4, 400)

    assert found.iteration_s < timeline_of(generate_schedule(profile, (12, 12, 12, 12)), profile).iteration_s
    assert found.num_evaluations <= 400


def test_a_search_makes_no_more_orders_than_it_may() -> None:
    profile = random_profile(np.random.default_rng(5), 6, 12)

    assert search_schedule(profile, (1,) * 6, (12,) * 6, 10, lean=False).num_evaluations <= 10


@pytest.mark.parametrize(("num_stages", "num_microbatches"), [(4, 12), (8, 24), (8, 32)])
def test_random_pipelines_are_planned_within_one_percent_of_the_bound(num_stages: int, num_microbatches: int) -> None:
    random = np.random.default_rng(1)
    pipelines = [random_profile(random, num_stages, num_microbatches) for _ in range(40)]

    gaps = [Adaptra().plan(profile).gap_share for profile in pipelines]
    static = [ZeroBubble("zb_h2", 2).plan(profile).gap_share for profile in pipelines]

    assert np.mean(gaps) <= 0.01
    assert np.mean(static) >= 0.1


def test_without_a_split_backward_the_plan_has_whole_ones_and_still_adapts() -> None:
    profile = replace(slow(4, 24, {2: 40}), can_split=False)

    plan, fixed = Adaptra().plan(profile), timeline_of(generate_schedule(profile, (4, 3, 2, 1), (4, 4, 4, 4)), profile)

    assert {op.kind for op in plan.schedule.ops(0)} == {OpKind.FORWARD, OpKind.FULL_BACKWARD}
    assert plan.iteration_s < 0.7 * fixed.iteration_s


def test_chunks_are_planned_too() -> None:
    profile = v_shaped_chunks(slow(3, 9, {1: 15}))

    plan = Adaptra().plan(profile)

    assert plan.schedule.placement == (0, 1, 2, 2, 1, 0)
    assert plan.gap_share < 0.25


def test_a_link_that_carries_too_little_is_named() -> None:
    reasons = Adaptra().plan(congested(4, 24, {2: 45})).reasons

    assert any("link 2 carries less than stages compute" in reason for reason in reasons)
    assert not any("carries less" in reason for reason in Adaptra().plan(congested(4, 24, {2: 15})).reasons)


def test_the_time_of_a_search_is_that_of_its_schedule_even_if_less_memory_is_faster() -> None:
    stage = Stage(0.001, 0.001, 0.001)
    profile = Profile((stage,) * 4, (Link(),) * 3, 5, (0, 1, 0, 1), hop_s=0.0005)

    for cap in range(1, 6):
        found = search_schedule(profile, (1,) * 4, (cap, cap), 60)
        assert timeline_of(found.schedule, profile).iteration_s == found.iteration_s
