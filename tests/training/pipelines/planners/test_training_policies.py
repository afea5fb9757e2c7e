"""Planners that do not adapt: their orders by hand, beside those of PyTorch, and what all planners keep to."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from takeup.errors import BadInput, UnknownName
from takeup.training.pipelines.planners import POLICIES, find_policy
from takeup.training.pipelines.planners.baselines import Interleaved, round_robin_chunks, v_shaped_chunks
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.timing.evaluation import timeline_of
from training.pipeline_profiles import ms, profiles, slow

ONE_STAGE_EACH = profiles(chunked=False)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(POLICIES)), ONE_STAGE_EACH)
def test_every_planner_gives_a_schedule_that_ends_and_gives_it_again(name: str, profile: Profile) -> None:
    num_rounds = max(1, profile.num_microbatches // profile.num_ranks)
    assume(name != "interleaved_1f1b" or profile.num_microbatches % num_rounds == 0)
    plan = POLICIES[name].plan(profile)

    assert plan.schedule == POLICIES[name].plan(profile).schedule
    assert plan.planner == name
    assert timeline_of(plan.schedule, plan.profile).iteration_s == plan.iteration_s >= plan.bound_s - 1e-12
    assert plan.reasons


@settings(max_examples=40, deadline=None)
@given(ONE_STAGE_EACH, st.integers(1, 5))
def test_planners_with_a_choice_keep_to_memory(profile: Profile, limit: int) -> None:
    stages = tuple(Stage(s.forward_s, s.backward_s, s.weight_s, 10, 10 * limit + 9) for s in profile.stages)
    limited = Profile(stages, profile.links, profile.num_microbatches)

    for name in ("zb_h1", "zb_h2", "adaptra", "adaptra_initial"):
        plan = POLICIES[name].plan(limited)
        assert plan.fits_memory
        assert max(plan.peak_live) <= limit


@pytest.mark.parametrize("name", POLICIES)
def test_memory_for_no_micro_batch_is_refused_by_all(name: str) -> None:
    stage = Stage(0.01, 0.01, 0.01, 100, 99)

    with pytest.raises(BadInput, match="too little memory"):
        POLICIES[name].plan(Profile((stage,) * 2, (Link(),), 4))


def test_orders_by_hand() -> None:
    profile = slow(2, 3, {})

    assert POLICIES["gpipe"].plan(profile).schedule.to_csv() == (
        "0F0,0F1,0F2,0B0,0B1,0B2\n" + "1F0,1F1,1F2,1B0,1B1,1B2\n"
    )
    assert POLICIES["one_f_one_b"].plan(profile).schedule.to_csv() == (
        "0F0,0F1,0B0,0F2,0B1,0B2\n" + "1F0,1B0,1F1,1B1,1F2,1B2\n"
    )


def test_iteration_times_by_hand() -> None:
    profile = slow(4, 12, {})

    times = {
        name: ms(POLICIES[name].plan(profile).iteration_s) for name in ("gpipe", "one_f_one_b", "zb_h2", "adaptra")
    }

    assert times == {"gpipe": 450, "one_f_one_b": 450, "zb_h2": 390, "adaptra": 390}


def test_zb_h1_holds_what_1f1b_holds_and_is_faster() -> None:
    plain, split = (POLICIES[name].plan(slow(4, 12, {})) for name in ("one_f_one_b", "zb_h1"))

    assert max(split.peak_live) == max(plain.peak_live) == 4
    assert split.iteration_s < plain.iteration_s


def test_zero_bubble_schedules_do_not_see_links() -> None:
    healthy, delayed = slow(4, 12, {}), slow(4, 12, {1: 50})

    assert POLICIES["zb_h1"].plan(healthy).schedule == POLICIES["zb_h1"].plan(delayed).schedule


def test_chunks_divide_the_work_and_keep_the_links() -> None:
    profile = slow(3, 6, {1: 7})

    rounds, vee = round_robin_chunks(profile, 2), v_shaped_chunks(profile)

    assert (rounds.placement, vee.placement) == ((0, 1, 2, 0, 1, 2), (0, 1, 2, 2, 1, 0))
    assert [ms(link.latency_s) for link in rounds.links] == [0, 7, 7, 0, 7]
    assert [ms(link.latency_s) for link in vee.links] == [0, 7, 0, 7, 0]
    assert sum(stage.work_s for stage in vee.stages) == pytest.approx(sum(stage.work_s for stage in profile.stages))
    assert (round_robin_chunks(rounds, 2), v_shaped_chunks(vee)) == (rounds, vee)


def test_chunks_divide_memory_too_and_never_make_it_look_larger() -> None:
    stage = Stage(0.01, 0.01, 0.01, activation_bytes=3, memory_bytes=10)
    profile = Profile((stage, stage), (Link(),), 8)

    assert profile.live_limits() == (3, 3)
    assert v_shaped_chunks(profile).live_limits() == (2, 2)  # bytes are whole, and rounded to the safe side


def test_chunks_of_chunks_are_refused() -> None:
    with pytest.raises(BadInput, match="one stage for each rank"):
        v_shaped_chunks(round_robin_chunks(slow(3, 6, {}), 2))
    with pytest.raises(BadInput, match="needs one stage on every rank"):
        POLICIES["one_f_one_b"].plan(round_robin_chunks(slow(3, 6, {}), 2))


def test_micro_batches_that_do_not_fill_rounds_are_refused() -> None:
    with pytest.raises(BadInput, match="cannot share 9 micro-batches among 2 rounds"):
        Interleaved().plan(slow(4, 9, {}))


def test_more_chunks_have_smaller_bubbles() -> None:
    shares = []
    for num_chunks in (1, 2, 4):
        plan = Interleaved(num_chunks=num_chunks).plan(slow(4, 8, {}))
        shares.append(timeline_of(plan.schedule, plan.profile).bubble_share)

    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == 3


def test_a_v_has_no_bubbles_but_those_of_its_start() -> None:
    plan = POLICIES["zbv"].plan(slow(4, 16, {}))

    assert plan.iteration_s == plan.bound_s
    assert max(plan.peak_live) == 2 * 4  # half stages: as much as 1F1B


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'adaptra'"):
        find_policy("adapta")


# PyTorch --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("interleaved_1f1b", "Interleaved1F1B"), ("zbv", "ZBVZeroBubble"), ("gpipe", "GPipe")],
)
@pytest.mark.parametrize(("num_ranks", "count"), [(4, 8), (2, 6), (3, 6)])
def test_orders_are_those_of_pytorch(name: str, theirs: str, num_ranks: int, count: int) -> None:
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    num_chunks = 2 if theirs in {"Interleaved1F1B", "ZBVZeroBubble"} else 1
    rows = visualizer.get_schedule_ops(theirs, num_ranks, count, num_chunks)
    computes = re.compile(r"\d+[FIWB]\d+")
    expected = [[str(action) for action in row if computes.fullmatch(str(action))] for row in rows]

    ours = POLICIES[name].plan(slow(num_ranks, count, {})).schedule

    assert [[str(op) for op in ours.ops(rank)] for rank in range(num_ranks)] == expected
