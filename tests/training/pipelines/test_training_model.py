"""The nouns of training: pipelines and schedules refuse what makes no sense, and schedules travel as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from takeup.errors import BadInput
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import Op, OpKind, PipelinePlan, Schedule
from takeup.training.pipelines.timing.evaluation import generate_schedule
from training.pipeline_profiles import profiles

FINE = Profile.uniform(3, 4, 0.01)


@pytest.mark.parametrize("wrong", [-0.001, float("nan"), float("inf"), 1e9])
@pytest.mark.parametrize("make", [lambda value: Stage(0.01, value, 0.01), Link, lambda value: Link(0, value)])
def test_times_that_cannot_be_are_refused(make: Callable[[float], object], wrong: float) -> None:
    with pytest.raises(BadInput, match="give a number from 0"):
        make(wrong)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stages": (), "links": (), "placement": ()}, "at least one stage"),
        ({"links": ()}, "found 0 links for 3 stages"),
        ({"num_microbatches": 0}, "num_microbatches is 0"),
        ({"num_microbatches": 10**8}, "more than 16 million"),
        ({"placement": (0, 2, 2)}, "without gaps"),
        ({"placement": (0, 1)}, "without gaps"),
        ({"sizes": (1.0,)}, "found 1 sizes for 4 micro-batches"),
        ({"sizes": (1.0, 1.0, -1.0, 1.0)}, r"sizes\[2\] is -1"),
        ({"hop_s": float("nan")}, "hop_s is nan"),
        ({"host_s": -1.0}, "host_s is -1"),
        ({"max_sends": 0}, "max_sends is 0"),
    ],
)
def test_a_pipeline_that_cannot_be_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        replace(FINE, **change)  # type: ignore[arg-type]


def test_times_that_would_overflow_the_clock_are_refused() -> None:
    with pytest.raises(BadInput, match="all operations and messages together"):
        Profile.uniform(4, 1000, 1e5)


def test_a_link_without_channels_and_negative_memory_are_refused() -> None:
    with pytest.raises(BadInput, match="num_channels is 0"):
        Link(num_channels=0)
    with pytest.raises(BadInput, match="must not be negative"):
        Stage(0.01, 0.01, 0.01, -1)


def test_memory_is_counted_in_micro_batches() -> None:
    stage = Stage(0.01, 0.01, 0.01, activation_bytes=300, memory_bytes=1000)
    profile = Profile((stage, replace(stage, memory_bytes=None)), (Link(),), 8)

    assert (profile.max_live(0), profile.max_live(1)) == (3, None)
    assert profile.live_limits() == (3, 8)


def test_memory_for_less_than_one_micro_batch_is_refused() -> None:
    stage = Stage(0.01, 0.01, 0.01, activation_bytes=300, memory_bytes=299)

    with pytest.raises(BadInput, match="rank 0 has too little memory"):
        Profile((stage,), (), 8).live_limits()


def test_stages_of_one_rank_share_its_memory() -> None:
    stage = Stage(0.01, 0.01, 0.01, activation_bytes=100, memory_bytes=250)
    profile = Profile((stage,) * 4, (Link(),) * 3, 8, (0, 1, 1, 0))

    assert profile.chunks == ((0, 3), (1, 2))
    assert profile.max_live(0) == 2


def test_links_are_replaced_by_number() -> None:
    profile = FINE.with_links({1: Link(0.02, 0.01)})

    assert [link.delay_s for link in profile.links] == [0.0, pytest.approx(0.03)]


# Schedules


def ops(text: str) -> list[Op]:
    """Operations from text such as `0F0 0I0`."""
    return [Op(int(cell[0]), OpKind("FIWB".index(cell[1])), int(cell[2:])) for cell in text.split()]


def schedule(*orders: str, num: int = 2) -> Schedule:
    return Schedule.of_ops(map(ops, orders), range(len(orders)), num)


@pytest.mark.parametrize(
    ("orders", "words"),
    [
        (("0F0 0I0 0W0 0I1 0W1",), "micro-batch 1 on stage 0 has no F"),
        (("0F0 0F1 0I0 0I0 0W0 0I1 0W1",), "stands twice"),
        (("0F0 0F1 0I0 0W0",), "needs either I and W, or B"),
        (("0F0 0F1 0I0 0W0 0I1",), "needs a W if it has an I"),
        (("0F0 0F1 0B0 0B1 0W1",), "needs a W if it has an I"),
        (("0I0 0F0 0F1 0W0 0B1",), "backward before its F"),
        (("0F0 0F1 0W0 0I0 0B1",), "W before its I"),
        (("0F1 0F0 0B0 0B1",), "overtaken"),
        (("0F0 0F1 0B1 0B0",), "overtaken"),
        (("0F0 0F1 0I0 0I1 0W1 0W0",), "overtaken"),
        (("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"), "stage 0 has 1 forwards .* stage 1 has 2"),
        (("1F0 1F1 1B0 1B1", "0F0 0F1 0B0 0B1"), "placed on another rank"),
    ],
)
def test_orders_that_no_pipeline_can_run_are_refused(orders: tuple[str, ...], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        schedule(*orders)


def test_a_stage_that_is_not_placed_is_refused() -> None:
    with pytest.raises(BadInput, match="not in the placement"):
        Schedule.of_ops([ops("5F0 5B0")], (0,), 1)


def test_a_rank_without_an_order_is_refused() -> None:
    with pytest.raises(BadInput, match="orders for 1 ranks"):
        Schedule.of_ops([ops("0F0 0B0")], (0, 1), 1)


def test_split_and_fused_backwards_may_be_mixed() -> None:
    mixed = schedule("0F0 0F1 0I0 0B1 0W0")

    assert mixed.warmups() == (2,)
    assert [str(op) for op in mixed.ops(0)] == ["0F0", "0F1", "0I0", "0B1", "0W0"]


@settings(max_examples=30, deadline=None)
@given(profiles())
def test_a_schedule_is_the_same_after_it_travelled_as_text(profile: Profile) -> None:
    made = generate_schedule(profile, (1,) * profile.num_stages)

    assert Schedule.from_csv(made.to_csv()) == made
    assert hash(Schedule.from_csv(made.to_csv())) == hash(made)


def test_the_text_is_what_pytorch_loads() -> None:
    assert schedule("0F0 0I0 0W0", "1F0 1B0", num=1).to_csv() == "0F0,0I0,0W0\n1F0,1B0\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0F0,0X0\n", "row 1: '0X0' is no operation"),
        ("0F0,0B0\n2F0,2B0\n", r"found the stages \[0, 2\]"),
        ("", "a schedule needs all stages"),
    ],
)
def test_text_that_is_no_schedule_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Schedule.from_csv(text)


def test_empty_cells_are_skipped() -> None:
    assert Schedule.from_csv("0F0,,0B0,\n\n,1F0,1B0\n").to_csv() == "0F0,0B0\n1F0,1B0\n"


def test_orders_cannot_be_written_to() -> None:
    made = schedule("0F0 0F1 0B0 0B1")

    with pytest.raises(ValueError, match="read-only"):
        made.codes[0][0] = 1


def test_a_plan_knows_its_gap_and_whether_it_fits() -> None:
    stage = Stage(0.01, 0.01, 0.01, 1, 2)
    profile = Profile((stage,), (), 4)
    made = generate_schedule(profile, (1,), (2,))
    plan = PipelinePlan("by hand", profile, made, 0.2, 0.15, (2,))

    assert plan.gap_share == pytest.approx(0.25)
    assert plan.fits_memory
    assert not replace(plan, peak_live=(3,)).fits_memory
    assert np.isclose(replace(plan, iteration_s=0.0).gap_share, 0.0)
