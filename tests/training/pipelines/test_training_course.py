"""From a profile to the arrays of the kernels: nanoseconds, wires, and what a rank has to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import OpKind
from takeup.training.pipelines.timing.evaluation import pipeline_arrays
from takeup.training.pipelines.timing.replay import NO_WIRE
from training.pipeline_profiles import profiles, slow

MS = 1_000_000
UNEVEN = Profile((Stage(0.001, 0.002, 0.003), Stage(0.004, 0.005, 0.006)), (Link(0.007, 0.008),), 2)


def test_times_are_whole_nanoseconds_by_kind_stage_and_micro_batch() -> None:
    course = pipeline_arrays(UNEVEN)

    assert course.lasts.shape == (4, 2, 2)
    assert (course.lasts[:, :, 0] // MS).tolist() == [[1, 4], [2, 5], [3, 6], [5, 11]]
    assert (course.service // MS).tolist() == [[8, 8]]
    assert (course.latency // MS).tolist() == [7]
    assert (course.work // MS).tolist() == [12, 30]


def test_sizes_scale_operations_and_messages_but_not_overheads() -> None:
    course = pipeline_arrays(replace(UNEVEN, sizes=(1.0, 3.0), host_s=0.01, hop_s=0.02))

    assert (course.lasts[OpKind.FORWARD] // MS).tolist() == [[11, 13], [14, 22]]
    assert (course.service // MS).tolist() == [[8, 24]]
    assert (course.latency // MS).tolist() == [27]


def test_a_whole_backward_has_the_overhead_of_one_operation() -> None:
    course = pipeline_arrays(replace(UNEVEN, host_s=0.01))

    apart = course.lasts[OpKind.INPUT_GRADIENT] + course.lasts[OpKind.WEIGHT_GRADIENT]

    assert (apart - course.lasts[OpKind.FULL_BACKWARD] == 10 * MS).all()


def test_factors_scale_single_operations_and_whole_backwards_alike() -> None:
    factors = np.ones((3, 2, 2))
    factors[OpKind.WEIGHT_GRADIENT, 1, 0] = 2.0

    course = pipeline_arrays(UNEVEN, factors)

    assert (course.lasts[OpKind.WEIGHT_GRADIENT] // MS).tolist() == [[3, 3], [12, 6]]
    assert (course.lasts[OpKind.FULL_BACKWARD] // MS).tolist() == [[5, 5], [17, 11]]


def test_without_a_split_the_input_gradient_has_all_of_the_backward() -> None:
    course = pipeline_arrays(replace(UNEVEN, can_split=False, host_s=0.01))

    assert (course.lasts[OpKind.INPUT_GRADIENT, :, 0] // MS).tolist() == [15, 21]
    assert course.lasts[OpKind.WEIGHT_GRADIENT].tolist() == [[0, 0], [0, 0]]


def test_every_pair_of_ranks_has_a_wire_in_each_direction() -> None:
    course = pipeline_arrays(slow(3, 2, {}))

    assert course.forward_wire.tolist() == [0, 2]
    assert course.backward_wire.tolist() == [1, 3]


def test_stages_of_one_rank_need_no_wire_and_stages_of_two_ranks_share_one() -> None:
    stages = (Stage(0.001, 0.001, 0.001),) * 4

    course = pipeline_arrays(Profile(stages, (Link(), Link(), Link(num_channels=2)), 2, (0, 1, 1, 0)))

    assert course.forward_wire.tolist() == [0, NO_WIRE, 1]
    assert course.backward_wire.tolist() == [1, NO_WIRE, 0]
    assert course.num_channels.tolist() == [1, 1]
    assert (course.stage_list.tolist(), course.first.tolist()) == ([0, 3, 1, 2], [0, 2, 4])


@settings(max_examples=40, deadline=None)
@given(profiles())
def test_the_work_of_ranks_is_that_of_their_operations(profile: Profile) -> None:
    course = pipeline_arrays(profile)

    for rank, stages in enumerate(profile.chunks):
        assert course.work[rank] == course.lasts[:3, list(stages)].sum()


@pytest.mark.parametrize(("given_sends", "expected"), [(None, 0), (1, 1), (10**12, 3 * 2 * 2)])
def test_compute_never_waits_for_more_sends_than_there_are(given_sends: int | None, expected: int) -> None:
    assert pipeline_arrays(replace(UNEVEN, max_sends=given_sends)).max_sends == expected
