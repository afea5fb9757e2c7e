"""Laws that every timeline and every search obeys, whatever the pipeline: dependencies, monotony, scale, theorem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from takeup.training.pipelines.planners.adaptra import Adaptra
from takeup.training.pipelines.planners.warmups import clip_warmups
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import Op, OpKind, Timeline
from takeup.training.pipelines.timing.evaluation import generate_schedule, search_schedule, timeline_of
from training.pipeline_profiles import ms, profiles, slow

QUICK = settings(max_examples=50, deadline=None)
BACKWARDS = (OpKind.INPUT_GRADIENT, OpKind.FULL_BACKWARD)


def spans_of(timeline: Timeline) -> dict[Op, tuple[float, float]]:
    return {span.op: (span.start_s, span.end_s) for span in timeline.spans()}


def latest_end(spans: dict[Op, tuple[float, float]], stage: int, kinds: tuple[OpKind, ...], microbatch: int) -> float:
    found = [spans[op][1] for kind in kinds if (op := Op(stage, kind, microbatch)) in spans]
    assert len(found) == 1
    return found[0]


def least_delay_s(profile: Profile, link: int) -> float:
    if profile.placement[link] == profile.placement[link + 1]:
        return 0.0
    return profile.links[link].latency_s + profile.hop_s


@QUICK
@given(profiles(), st.booleans())
def test_nothing_starts_before_its_input_and_ranks_do_one_thing_at_a_time(profile: Profile, split: bool) -> None:
    profile = replace(profile, can_split=split)
    timeline = timeline_of(generate_schedule(profile, (1,) * profile.num_stages), profile)
    spans = spans_of(timeline)

    for starts_s, ends_s in zip(timeline.starts_s, timeline.ends_s, strict=True):
        assert (starts_s[1:] >= ends_s[:-1] - 1e-12).all()
    for op, (start_s, _) in spans.items():
        if op.kind == OpKind.FORWARD and op.stage > 0:
            ready_s = latest_end(spans, op.stage - 1, (OpKind.FORWARD,), op.microbatch) + least_delay_s(
                profile, op.stage - 1
            )
        elif op.kind in BACKWARDS and op.stage + 1 < profile.num_stages:
            ready_s = latest_end(spans, op.stage + 1, BACKWARDS, op.microbatch) + least_delay_s(profile, op.stage)
        elif op.kind in BACKWARDS:
            ready_s = latest_end(spans, op.stage, (OpKind.FORWARD,), op.microbatch)
        elif op.kind == OpKind.WEIGHT_GRADIENT:
            ready_s = latest_end(spans, op.stage, BACKWARDS, op.microbatch)
        else:
            ready_s = 0.0
        assert start_s >= ready_s - 1e-12


@QUICK
@given(profiles(), st.data())
def test_a_longer_operation_or_message_never_ends_a_fixed_order_sooner(profile: Profile, data: st.DataObject) -> None:
    assume(all(link.num_channels == 1 for link in profile.links))
    schedule = generate_schedule(profile, (1,) * profile.num_stages)
    number = data.draw(st.integers(0, profile.num_stages - 1))
    stage = profile.stages[number]
    longer = [*profile.stages]
    longer[number] = Stage(stage.forward_s + 0.003, stage.backward_s, stage.weight_s + 0.002, tail_s=stage.tail_s)
    links = tuple(Link(link.latency_s + 0.001, link.service_s + 0.002) for link in profile.links)

    worse = replace(profile, stages=tuple(longer), links=links)

    assert timeline_of(schedule, worse).iteration_s >= timeline_of(schedule, profile).iteration_s


@QUICK
@given(profiles(chunked=False))
def test_waiting_for_sends_never_ends_a_fixed_order_sooner(profile: Profile) -> None:
    schedule = generate_schedule(profile, (1,) * profile.num_stages)

    times_s = [timeline_of(schedule, replace(profile, max_sends=most)).iteration_s for most in (1, 2, 8, None)]

    assert times_s == sorted(times_s, reverse=True)


def scaled(profile: Profile, factor: int) -> Profile:
    stages = tuple(
        Stage(factor * s.forward_s, factor * s.backward_s, factor * s.weight_s, tail_s=factor * s.tail_s)
        for s in profile.stages
    )
    links = tuple(Link(factor * link.latency_s, factor * link.service_s, link.num_channels) for link in profile.links)
    return replace(profile, stages=stages, links=links, hop_s=factor * profile.hop_s, host_s=factor * profile.host_s)


@QUICK
@given(profiles(), st.sampled_from([2, 10, 1000]))
def test_slower_machines_are_planned_alike(profile: Profile, factor: int) -> None:
    plan, slower = Adaptra().plan(profile), Adaptra().plan(scaled(profile, factor))

    assert slower.schedule == plan.schedule
    assert slower.iteration_s == pytest.approx(factor * plan.iteration_s)
    assert slower.bound_s == pytest.approx(factor * plan.bound_s)


@QUICK
@given(st.integers(2, 8), st.integers(1, 20), st.integers(1, 9), st.integers(0, 8))
def test_theorem_1_with_equal_times(slackness: int, op_ms: int, more: int, steps: int) -> None:
    """A delay of up to (D - 1) t is paid once; one beyond that, by every group of micro-batches."""
    count, warmups = slackness * (3 + more), (slackness + 1, 1)
    most_ms = (slackness - 1) * op_ms
    schedule = generate_schedule(slow(2, count, {0: most_ms}, op_ms), warmups, flights=warmups)
    healthy_ms = ms(timeline_of(schedule, slow(2, count, {}, op_ms)).iteration_s)

    absorbed_ms = most_ms * steps / 8
    within, beyond = (
        ms(timeline_of(schedule, slow(2, count, {0: delay_ms}, op_ms)).iteration_s) - healthy_ms
        for delay_ms in (absorbed_ms, most_ms + op_ms)
    )

    assert within == pytest.approx(absorbed_ms, abs=1e-5)
    assert beyond > most_ms + op_ms


@QUICK
@given(profiles(), st.data())
def test_a_search_is_never_worse_than_its_start_and_keeps_to_its_limits(profile: Profile, data: st.DataObject) -> None:
    count = profile.num_microbatches
    caps = [data.draw(st.integers(1, count)) for _ in range(profile.num_ranks)]
    wanted = [data.draw(st.integers(1, count)) for _ in profile.stages]
    start = clip_warmups(profile, wanted, [min(caps)] * profile.num_ranks)
    before_s = timeline_of(generate_schedule(profile, start, caps), profile).iteration_s

    found = search_schedule(profile, start, caps, 60)

    timeline = timeline_of(found.schedule, profile)
    chunks = np.array([len(stages) for stages in profile.chunks])
    assert timeline.iteration_s == found.iteration_s <= before_s
    assert found.iteration_s >= found.bound_s
    assert (np.array(timeline.peak_live) <= np.array(caps) * chunks).all()
    assert list(found.warmups) == sorted(found.warmups, reverse=True)
    assert found.num_evaluations <= 60


@QUICK
@given(profiles())
def test_time_is_either_computing_or_bubble(profile: Profile) -> None:
    timeline = timeline_of(generate_schedule(profile, (1,) * profile.num_stages), profile)

    whole_s = timeline.iteration_s * profile.num_ranks

    assert timeline.busy_s + timeline.bubble_share * whole_s == pytest.approx(whole_s)
    assert 0 <= timeline.bubble_share < 1


def test_a_plan_is_the_same_on_every_machine() -> None:
    """Bit for bit: ranks that plan for themselves must agree."""
    stages = (Stage(0.0113, 0.0171, 0.0127), Stage(0.0159, 0.0109, 0.0193), Stage(0.0131, 0.0149, 0.0167))
    profile = Profile(stages, (Link(0.0207), Link(0.0011, 0.0301)), 5)

    plan = Adaptra().plan(profile)

    assert plan.schedule.to_csv() == (
        "0F0,0F1,0F2,0F3,0F4,0I0,0W0,0I1,0W1,0I2,0W2,0I3,0W3,0I4,0W4\n"
        "1F0,1F1,1F2,1F3,1F4,1I0,1W0,1I1,1W1,1I2,1W2,1I3,1W3,1I4,1W4\n"
        "2F0,2I0,2F1,2I1,2F2,2I2,2F3,2I3,2F4,2I4,2W0,2W1,2W2,2W3,2W4\n"
    )
