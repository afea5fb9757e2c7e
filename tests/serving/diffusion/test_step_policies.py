"""What serving decides: calls, and how late LoRAs may come."""

from __future__ import annotations

import math
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.serving.diffusion.policies import IDLE_ROWS, PAUSED_SHARE, Grouping, TenantTurns, one_by_one
from takeup.serving.model import Candidate, ControlUse, LoraUse, Request
from takeup.serving.scheduling.adapters import bound_for, measured_bound

candidates = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 2), st.sampled_from([1.0, 2.0, math.inf])), max_size=12
).map(lambda rows: [Candidate(number, *row) for number, row in enumerate(rows)])


@given(candidates, st.integers(2, 6))
def test_everybody_is_in_one_call_of_the_own_bucket_and_calls_are_not_too_large(
    ready: list[Candidate], max_rows: int
) -> None:
    calls = Grouping(max_rows)(ready)
    by_number = {one.number: one for one in ready}

    assert sorted(chain.from_iterable(calls)) == sorted(by_number)
    for call in calls:
        assert len({by_number[number].bucket for number in call}) == 1
        assert sum(by_number[number].num_rows for number in call) <= max_rows


@given(candidates)
def test_compatible_requests_share_a_call_when_there_is_room(ready: list[Candidate]) -> None:
    assert len(Grouping(24)(ready)) == len({one.bucket for one in ready})


def test_the_nearest_deadline_is_served_first() -> None:
    ready = [Candidate(0, "a", 2), Candidate(1, "a", 2, deadline_s=5.0), Candidate(2, "a", 2, deadline_s=3.0)]

    assert Grouping(4)(ready) == [(2, 1), (0,)]


def test_alone_means_a_call_for_each() -> None:
    assert one_by_one([Candidate(3, "a", 2), Candidate(1, "a", 2)]) == [(1,), (3,)]


def test_calls_must_have_room_for_both_branches() -> None:
    with pytest.raises(BadInput, match="at least 2"):
        Grouping(1)


def test_one_tenant_never_waits_for_itself() -> None:
    assert TenantTurns()([("a", 2), ("a", 2), ("a", 1)]) == [0, 1, 2]
    assert TenantTurns()([]) == []


def test_tenants_with_about_as_many_rows_step_together() -> None:
    assert TenantTurns()([("a", 2), ("b", 2), ("b", 2)]) == [0, 1, 2]


def test_a_tenant_with_far_more_rows_pauses_while_the_others_step() -> None:
    turns = TenantTurns()
    rows = [("flood", 2)] * 8 + [("a", 2), ("b", 2)]

    assert turns(rows) == [8, 9]
    assert turns(rows[:8]) == list(range(8))


def test_a_paused_tenant_gets_its_share_of_the_rows() -> None:
    turns = TenantTurns()
    rows = [("flood", 2)] * 4 + [("a", 2)]
    taken = [len(turns(rows)) for _ in range(400)]

    assert taken.count(5) * 8 == pytest.approx(PAUSED_SHARE * 400 * 2, rel=0.1)
    assert set(taken) == {1, 5}


def test_images_that_are_encoded_or_decoded_count_as_rows_of_their_tenant() -> None:
    rows = [("flood", 2)] * 4

    assert TenantTurns()(rows, {"a": 2}) == []
    assert TenantTurns()(rows[:2], {"a": 2}) == [0, 1]
    assert TenantTurns()([*rows, ("a", 2)], {"flood": 40}) == [4]


def test_a_long_encoding_of_one_tenant_does_not_stop_the_others() -> None:
    turns = TenantTurns()
    taken = [len(turns([("flood", 2)] * 4, {"a": 2})) for _ in range(4096)]

    assert taken.count(4) == 4096 * IDLE_ROWS / 8


def test_k_is_the_last_step_until_which_all_latents_are_alike() -> None:
    assert measured_bound([1.0, 0.995, 0.991, 0.98, 0.999]) == 3
    assert measured_bound([0.5, 1.0]) == 0
    assert measured_bound([1.0, math.nan, 1.0]) == 1
    assert measured_bound([0.999] * 5) == 5


def test_a_similarity_that_nothing_reaches_is_refused() -> None:
    with pytest.raises(BadInput, match="at most 1"):
        measured_bound([1.0], least=1.5)


def test_k_shrinks_with_the_steps_and_with_the_strength() -> None:
    assert bound_for(10, 50, 50) == 10
    assert bound_for(10, 50, 25) == 5
    assert bound_for(10, 50, 50, strength=0.9) == 5
    assert bound_for(10, 50, 50, strength=0.5) == 0


def test_models_of_few_steps_wait() -> None:
    assert bound_for(10, 50, 8) == 0
    assert bound_for(10, 50, 4) == 0


@given(st.integers(0, 100), st.integers(1, 100), st.integers(1, 100), st.floats(0, 1))
def test_a_lora_always_comes_before_the_last_step(
    bound: int, profiled_steps: int, num_steps: int, strength: float
) -> None:
    late = bound_for(bound, profiled_steps, num_steps, strength)

    assert 0 <= late <= max(0, int(num_steps * strength) - 1)


def test_a_strength_above_one_is_refused() -> None:
    with pytest.raises(BadInput, match="from 0 to 1"):
        bound_for(10, 50, 50, strength=2.0)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"num_steps": 0}, "at least one step"),
        ({"late_steps": -1}, "give 0 to wait"),
        ({"seed": -1}, "from zero up"),
        ({"loras": (LoraUse("a"), LoraUse("a", 0.5))}, "name each of them once"),
    ],
)
def test_requests_that_make_no_sense_are_refused(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Request("a cat", **wrong)  # type: ignore[arg-type]


def test_a_controlnet_acts_between_its_shares() -> None:
    use = ControlUse("depth", None, scale=0.5, start_share=0.25, end_share=0.75)

    assert [use.scale_at(step, 4) for step in range(4)] == [0.0, 0.5, 0.5, 0.0]


def test_a_controlnet_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(BadInput, match="shares of the steps that rise"):
        ControlUse("depth", None, start_share=0.5, end_share=0.5)
