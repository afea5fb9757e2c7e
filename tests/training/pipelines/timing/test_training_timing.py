"""The pipeline clock: golden numbers of the paper, and agreement with a plain pipeline on whatever is drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.training.pipelines.planners.warmups import clip_warmups
from takeup.training.pipelines.profile import Link, Profile
from takeup.training.pipelines.schedule import Op, OpKind, Schedule
from takeup.training.pipelines.timing.evaluation import generate_schedule, timeline_of
from training.pipeline_profiles import congested, ms, profiles, slow
from training.pipelines.plain_pipeline import PlainPipeline, greedy, in_order

QUICK = settings(max_examples=60, deadline=None)


def iteration_ms(schedule: Schedule, profile: Profile) -> float:
    return ms(timeline_of(schedule, profile).iteration_s)


# The paper ------------------------------------------------------------------------------------------------------------


def test_a_zero_bubble_schedule_amplifies_a_delay_beyond_its_slack() -> None:
    schedule = generate_schedule(slow(4, 12, {}), (7, 5, 3, 1))

    assert [iteration_ms(schedule, slow(4, 12, {0: delay})) for delay in (0, 10, 20)] == [390, 400, 440]


@pytest.mark.parametrize(("delay_ms", "warmups", "expected"), [(20, (8, 5, 3, 1), 410), (30, (9, 5, 3, 1), 420)])
def test_an_adapted_schedule_pays_a_delay_once(delay_ms: float, warmups: tuple[int, ...], expected: float) -> None:
    profile = slow(4, 12, {0: delay_ms})

    assert iteration_ms(generate_schedule(profile, warmups), profile) == expected


@pytest.mark.parametrize(
    ("slackness", "extra_ms"),
    [
        (2, [10, 210, 410, 610, 810]),
        (3, [10, 20, 180, 340, 500]),
        (4, [10, 20, 30, 150, 270]),
        (5, [10, 20, 30, 40, 140]),
        (6, [10, 20, 30, 40, 50]),
    ],
)
def test_delays_are_absorbed_up_to_the_slackness_less_one(slackness: int, extra_ms: list[float]) -> None:
    warmups = (slackness + 1, 1)
    schedule = generate_schedule(slow(2, 30, {0: 10 * (slackness - 1)}), warmups, flights=warmups)
    healthy = iteration_ms(schedule, slow(2, 30, {}))

    found = [iteration_ms(schedule, slow(2, 30, {0: delay})) - healthy for delay in (10, 20, 30, 40, 50)]

    assert found == extra_ms


def test_a_queue_is_waited_for_in_the_plan() -> None:
    profile = congested(4, 24, {2: 30})

    blind = generate_schedule(slow(4, 24, {2: 30}), (9, 7, 5, 1))
    seeing = generate_schedule(profile, (9, 7, 5, 1))

    assert (iteration_ms(blind, profile), iteration_ms(seeing, profile)) == (1010, 840)


# The plain pipeline ---------------------------------------------------------------------------------------------------


@QUICK
@given(profiles(), st.data())
def test_orders_are_generated_as_plain_python_does(profile: Profile, data: st.DataObject) -> None:
    count = profile.num_microbatches
    caps = [data.draw(st.integers(1, count)) for _ in range(profile.num_ranks)]
    wanted = [data.draw(st.integers(1, count)) for _ in profile.stages]
    warmups = clip_warmups(profile, wanted, [min(caps)] * profile.num_ranks)
    flights = [max(warmup, data.draw(st.integers(1, count))) for warmup in warmups]
    plain = PlainPipeline(profile)
    whole = plain.run(greedy(warmups, caps, flights))

    schedule = generate_schedule(profile, warmups, caps, flights)
    timeline = timeline_of(schedule, profile)

    assert [[op for op, _, _ in spans] for spans in plain.spans] == [schedule.ops(r) for r in range(profile.num_ranks)]
    assert round(timeline.iteration_s * 1e9) == whole


@QUICK
@given(profiles(), profiles(), st.booleans(), st.integers(0, 2**32 - 1))
def test_an_order_made_for_another_pipeline_runs_as_in_plain_python(
    one: Profile, other: Profile, half_duplex: bool, seed: int
) -> None:
    count = min(one.num_microbatches, 4)
    same = Profile(other.stages, other.links, count, other.placement, max_sends=other.max_sends)
    schedule = generate_schedule(same, (1,) * same.num_stages)
    factors = np.random.default_rng(seed).uniform(0.5, 2.0, (3, same.num_stages, count)).round(2)
    links = tuple(replace(link, half_duplex=half_duplex) for link in same.links[::-1])
    run_on = Profile(same.stages[::-1], links, count, same.placement, hop_s=0.001, max_sends=one.max_sends)
    plain = PlainPipeline(run_on, factors.tolist())
    whole = plain.run(in_order(schedule))

    timeline = timeline_of(schedule, run_on, factors)

    assert round(timeline.iteration_s * 1e9) == whole
    for spans, starts_s in zip(plain.spans, timeline.starts_s, strict=True):
        assert np.rint(starts_s * 1e9).tolist() == [start for _, start, _ in spans]


def test_on_a_half_duplex_link_both_ways_wait_for_each_other() -> None:
    orders = [[Op(0, OpKind(kind), m) for kind, m in ((0, 0), (0, 1), (3, 0), (3, 1))]]
    orders.append([Op(1, OpKind(kind), m) for kind, m in ((0, 0), (3, 0), (0, 1), (3, 1))])
    schedule = Schedule.of_ops(orders, (0, 1), 2)

    full, half = (
        Profile.uniform(2, 2, 0.010, {0: Link(0.0, 0.050, half_duplex=half_duplex)}) for half_duplex in (False, True)
    )

    # Activations leave at 10 and 20 and arrive at 60 and 110. The first gradient leaves at 90: its way is free, or not.
    assert iteration_ms(schedule, full) == 140 + 50 + 20
    assert iteration_ms(schedule, half) == 110 + 50 + 50 + 20


def test_zero_bubble_over_one_stream_for_both_ways_is_as_slow_as_the_authors_saw() -> None:
    """Eight stages, a delay of 10 to 60 ms before every send on the last link, in front of what is received there."""
    healthy = Profile.uniform(8, 24, 0.770 / 79)
    schedule = generate_schedule(healthy, [15 - 2 * stage for stage in range(8)])
    logged_ms = {20: 1359, 30: 1825, 40: 2299, 50: 2828, 60: 3257}

    for delay_ms, logged in logged_ms.items():
        link = Link(service_s=delay_ms / 1e3, half_duplex=True)
        profile = replace(healthy.with_links({6: link}), max_sends=1)
        assert iteration_ms(schedule, profile) == pytest.approx(logged, rel=0.06)


# What is reported -----------------------------------------------------------------------------------------------------


def test_peaks_count_micro_batches_from_their_forward_to_their_weight_gradient() -> None:
    ops = [
        Op(0, OpKind(kind), m) for kind, m in ((0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2))
    ]
    profile = Profile.uniform(1, 3, 0.01)

    timeline = timeline_of(Schedule.of_ops([ops], (0,), 3), profile)

    assert timeline.peak_live == (3,)
    assert timeline.bubble_share == pytest.approx(0.0)
    assert ms(timeline.iteration_s) == 90


def test_caps_hold_and_flights_hold() -> None:
    profile = slow(4, 24, {2: 40})
    caps, flights = (6, 6, 6, 6), (5, 4, 3, 1)

    schedule = generate_schedule(profile, (5, 4, 3, 1), caps, flights)

    assert max(timeline_of(schedule, profile).peak_live) <= 6
    assert schedule.warmups() == flights


def test_a_blocking_send_makes_warm_up_forwards_as_far_apart_as_forward_and_send() -> None:
    profile = Profile.uniform(2, 4, 0.03, {0: Link(0.06)})
    blocking = Profile(profile.stages, profile.links, 4, hop_s=0.008, max_sends=1)

    starts_s = timeline_of(generate_schedule(profile, (4, 1)), blocking).starts_s[0]

    assert np.diff(starts_s[:4]) == pytest.approx([0.098] * 3)


def test_several_channels_serve_several_messages_at_once() -> None:
    one, three = (Profile.uniform(2, 12, 0.01, {0: Link(service_s=0.03, num_channels=num)}) for num in (1, 3))

    schedule = generate_schedule(three, (6, 1))

    assert timeline_of(schedule, three).iteration_s < timeline_of(schedule, one).iteration_s


def fused(stage: int, order: str) -> list[Op]:
    """Operations of a stage from text such as `F0 B0`."""
    return [Op(stage, OpKind("FIWB".index(cell[0])), int(cell[1:])) for cell in order.split()]


def test_orders_that_wait_for_each_other_are_refused() -> None:
    orders = [fused(0, "F0 B0 F1 B1 F2 B2"), fused(1, "F0 B0 F1 F2 B1 B2")]
    schedule = Schedule.of_ops(orders, (0, 1), 3)

    with pytest.raises(BadInput, match="wait for each other"):
        timeline_of(schedule, Profile.uniform(2, 3, 0.01))


def test_warm_ups_that_memory_has_no_room_for_are_refused() -> None:
    with pytest.raises(BadInput, match="room for them"):
        generate_schedule(Profile.uniform(2, 4, 0.01), (2, 2), (1, 1))


def test_a_schedule_of_another_pipeline_is_refused() -> None:
    schedule = generate_schedule(slow(2, 4, {}), (2, 1))

    with pytest.raises(BadInput, match="made for this pipeline"):
        timeline_of(schedule, slow(2, 5, {}))


def test_without_a_split_the_whole_backward_is_one_operation() -> None:
    profile = Profile(slow(3, 6, {}).stages, slow(3, 6, {}).links, 6, can_split=False)

    schedule = generate_schedule(profile, (3, 2, 1))

    assert {op.kind for op in schedule.ops(1)} == {OpKind.FORWARD, OpKind.FULL_BACKWARD}
    assert ms(timeline_of(schedule, profile).iteration_s) == 6 * 30 + 2 * 30
