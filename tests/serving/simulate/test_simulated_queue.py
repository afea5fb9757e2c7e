"""The simulated queue: against a plain twin, against queueing theory, and by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.naive_queue import serve_naively
from takeup.errors import BadInput
from takeup.serving.contract import Admit, Choose, Group, Route
from takeup.serving.diffusion.policies import Grouping, one_by_one
from takeup.serving.model import Arrival, Design, QueueOutcome, RowCosts
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES, fewest_loads
from takeup.serving.scheduling.queue import Admission
from takeup.serving.scheduling.routing import NearbyAffinity, least_busy
from takeup.serving.simulate.instance import InstancePolicies, LoraResidency, simulate_queue
from takeup.serving.traces.arrivals import poisson_arrivals

SECOND = RowCosts(((2, 1.0),))  # a step of one request takes a second, of two together two
FREE = RowCosts(((2, 1.0), (16, 1.0)))  # however many share a call, it takes a second
ONE = Design("one", SECOND)
TOGETHER = Design("together", FREE, max_running=4, parallel_loads=True)


def serve(
    arrivals: Sequence[Arrival],
    design: Design,
    *,
    num_gpus: int = 1,
    group: Group | None = None,
    capacity: int = 10,
    choose: Choose | None = None,
    route: Route = least_busy,
    admit: Admit | None = None,
) -> QueueOutcome:
    rules = InstancePolicies(group or Grouping(16), ADAPTER_POLICIES["lru"], capacity, choose, patience=4)
    return simulate_queue(arrivals, design, num_gpus=num_gpus, rules=rules, route=route, admit=admit or Admission())


def ends(outcome: QueueOutcome) -> list[float]:
    return [one.end_s for one in outcome.served]


def request(number: int, arrival_s: float, num_steps: int, *loras: int, **more: float) -> Arrival:
    load_s = (more.pop("load_s", 0.0),) * len(loras)
    return Arrival(number, arrival_s, num_steps, loras=loras, load_s=load_s, **more)  # type: ignore[arg-type]


# Against others -----------------------------------------------------------------------------------------------------

# Sixty-fourths are exact in binary, so that both ways of adding up give the same bits.
times = st.integers(0, 64 * 40).map(lambda number: number / 64)


@st.composite
def traffic(draw: st.DrawFn) -> list[Arrival]:
    arrivals = []
    for number in range(draw(st.integers(1, 12))):
        num_loras, arrival_s = draw(st.integers(0, 2)), draw(times)
        arrivals.append(
            Arrival(
                number,
                arrival_s,
                draw(st.integers(1, 9)),
                draw(st.sampled_from([1, 2, 4])),
                tuple((number, one) for one in range(num_loras)),  # nobody else has them
                tuple(draw(times) / 4 for _ in range(num_loras)),
                draw(st.integers(0, 2)),
                draw(st.sampled_from(["", "other"])),
                arrival_s + draw(st.sampled_from([math.inf, math.inf, 8.0])),
            )
        )
    return arrivals


@given(
    traffic(),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([Grouping(4), Grouping(16), one_by_one]),
    st.sampled_from([0.0, 0.375]),
)
def test_stretches_are_what_single_steps_add_up_to(
    arrivals: list[Arrival], max_running: int, late_share: float, group: Group, before_s: float
) -> None:
    costs, control = RowCosts(((1, 0.5), (2, 0.75), (4, 1.0), (8, 2.5))), RowCosts(((2, 0.25),))
    design = Design(
        "x",
        costs,
        control,
        max_running=max_running,
        parallel_loads=True,
        late_share=late_share,
        before_s=before_s,
    )
    expected = serve_naively(arrivals, design, group)
    outcome = serve(arrivals, design, group=group)

    assert [one.arrival for one in outcome.served] == arrivals
    for one in outcome.served:
        twin = expected[one.arrival.number]
        assert one.ending == twin.ending
        if one.ending == "done":
            assert (one.start_s, one.end_s) == (twin.start_s, twin.end_s)


@pytest.mark.parametrize("busy_share", [0.3, 0.6, 0.8])
def test_one_server_waits_as_long_as_theory_says(busy_share: float) -> None:
    service_s = 4.0
    arrivals = poisson_arrivals(8_000, busy_share / service_s, seed=3, num_steps=4)
    outcome = serve(arrivals, ONE)
    expected_s = busy_share * service_s / (2 * (1 - busy_share))  # Pollaczek and Khinchine, equal services

    assert np.mean([one.queueing_s for one in outcome.served]) == pytest.approx(expected_s, rel=0.1)
    assert outcome.busy_s == pytest.approx(8_000 * service_s)


@given(traffic(), st.integers(1, 3), st.sampled_from(["any step", "empty"]), st.integers(0, 3))
def test_everybody_has_one_ending_and_the_work_is_conserved(
    arrivals: list[Arrival], num_gpus: int, joins: Literal["any step", "empty"], max_waiting: int
) -> None:
    design = replace(TOGETHER, joins=joins)
    outcome = serve(arrivals, design, num_gpus=num_gpus, admit=Admission(max_waiting))
    lasting = all(one.arrival.deadline_s == math.inf for one in outcome.served)

    assert [one.arrival for one in outcome.served] == arrivals
    assert all(one.end_s >= one.start_s >= one.arrival.arrival_s for one in outcome.done)
    if lasting:
        assert outcome.num_call_rows == sum(one.arrival.num_steps * one.arrival.num_rows for one in outcome.done)
        assert outcome.num_calls <= sum(one.arrival.num_steps for one in outcome.done)


# By hand ------------------------------------------------------------------------------------------------------------


def test_one_at_a_time_the_second_waits_for_the_first() -> None:
    outcome = serve([request(0, 0.0, 3), request(1, 1.0, 2)], ONE)

    assert ends(outcome) == [3.0, 5.0]
    assert [one.queueing_s for one in outcome.served] == [0.0, 2.0]
    assert [one.latency_s for one in outcome.served] == [3.0, 4.0]


def test_who_comes_in_the_middle_of_a_step_joins_at_the_next() -> None:
    outcome = serve([request(0, 0.0, 4), request(1, 0.5, 3), request(2, 2.0, 2)], TOGETHER)

    assert ends(outcome) == [4.0, 4.0, 4.0]
    assert outcome.num_calls == 4  # not 9
    assert outcome.num_call_rows == 18


def test_work_before_and_after_the_steps_takes_a_place_but_not_the_loop() -> None:
    shop = Design("x", FREE, max_running=2, before_s=0.5, after_s=0.25)
    outcome = serve([request(number, 0.0, 2) for number in range(3)], shop)

    assert ends(outcome) == [2.75, 2.75, 5.5]
    assert [one.start_s for one in outcome.served] == [0.0, 0.0, 2.75]
    assert [one.queueing_s for one in outcome.served] == [0.5, 0.5, 3.25]


def test_who_is_decoded_leaves_in_the_middle_of_a_step_of_others() -> None:
    shop = Design("x", FREE, max_running=2, after_s=0.25)
    outcome = serve([request(0, 0.0, 1), request(1, 0.0, 3), request(2, 0.0, 1)], shop)

    assert [one.start_s for one in outcome.served] == [0.0, 0.0, 1.25]
    assert ends(outcome) == [1.25, 3.25, 3.25]


def test_a_static_batch_takes_those_who_want_the_same_and_nobody_while_it_runs() -> None:
    batch = replace(TOGETHER, joins="empty")
    requests = [request(0, 0.0, 2), request(1, 0.5, 2, 7), request(2, 0.5, 2), request(3, 0.6, 2, 7)]

    assert ends(serve(requests, batch)) == [2.0, 4.0, 6.0, 4.0]


def test_loras_are_waited_for_or_come_while_steps_are_made() -> None:
    requests = [request(0, 0.0, 4, 1, load_s=3.0)]
    late = replace(ONE, late_share=0.5)

    assert ends(serve(requests, ONE)) == [7.0]
    assert ends(serve(requests, late)) == [5.0]  # two steps, a second of waiting, two steps
    assert ends(serve([request(0, 0.0, 4, 1, load_s=1.5)], late)) == [4.0]
    assert ends(serve(requests, replace(late, few_steps=4))) == [7.0]


def test_loads_one_after_the_other_take_longer_than_at_once() -> None:
    requests = [request(0, 0.0, 1, 1, 2, load_s=2.0)]

    assert ends(serve(requests, ONE)) == [5.0]
    assert ends(serve(requests, replace(ONE, parallel_loads=True))) == [3.0]


def test_what_is_there_is_not_loaded_again() -> None:
    requests = [request(number, 10.0 * number, 1, lora, load_s=2.0) for number, lora in enumerate((1, 2, 1, 3, 2))]
    outcome = serve(requests, ONE, capacity=2)

    assert [one.num_loads for one in outcome.served] == [1, 1, 0, 1, 1]
    assert outcome.loads_per_request == 0.8
    assert outcome.complete_share == 0.2


def test_two_who_want_the_same_wait_for_one_load() -> None:
    outcome = serve([request(0, 0.0, 1, 1, load_s=4.0), request(1, 1.0, 1, 1, load_s=4.0)], TOGETHER)

    assert [one.num_loads for one in outcome.served] == [1, 0]
    assert ends(outcome) == [5.0, 5.0]


def test_patching_controlnets_skipped_steps_and_the_rest_cost_what_they_cost() -> None:
    stock = Design("x", SECOND, SECOND, switch_s=0.5, patch_s=3.0, around_s=0.25, skipped_share=0.25)
    requests = [replace(request(number, 100.0 * number, 4, 1), num_controls=2) for number in range(2)]
    outcome = serve(requests, stock)

    assert [one.latency_s for one in outcome.served] == [3.0 + 2 * 0.5 + 3 * (1 + 2) + 0.25, 1.0 + 9.0 + 0.25]


def test_a_call_with_loras_takes_longer_by_the_time_to_merge_them() -> None:
    design = replace(TOGETHER, merge_s=0.25)

    assert ends(serve([request(0, 0.0, 1, 1), request(1, 0.0, 1, 1)], design)) == [1.25, 1.25]
    assert ends(serve([request(0, 0.0, 1), request(1, 0.0, 1)], design)) == [1.0, 1.0]


def test_different_weights_do_not_share_a_call() -> None:
    assert ends(serve([request(0, 0.0, 1, 1), request(1, 0.0, 1, 1)], TOGETHER)) == [1.0, 1.0]
    assert ends(serve([request(0, 0.0, 1, 1), request(1, 0.0, 1, 2)], TOGETHER)) == [2.0, 2.0]


def test_the_late_leave_and_the_others_are_faster_for_it() -> None:
    requests = [request(0, 0.0, 10, deadline_s=3.5), request(1, 0.0, 2), request(2, 0.0, 1, deadline_s=2.0)]
    outcome = serve(requests, ONE)

    assert [one.ending for one in outcome.served] == ["expired", "done", "expired"]
    assert ends(outcome)[:2] == [4.0, 6.0]


def test_a_full_queue_refuses() -> None:
    outcome = serve([request(number, 0.1 * number, 5) for number in range(4)], ONE, admit=Admission(1))

    assert [one.ending for one in outcome.served] == ["done", "done", "refused", "refused"]
    assert outcome.num_most_waiting == 1


def test_where_nobody_may_wait_who_finds_a_place_is_served() -> None:
    arrivals = [Arrival(number, 0.1 * number, num_steps=1) for number in range(3)]
    rules = InstancePolicies(one_by_one, ADAPTER_POLICIES["lru"])
    design = Design("two at a time", RowCosts(((2, 1.0),)), max_running=2)
    outcome = simulate_queue(arrivals, design, num_gpus=1, rules=rules, route=least_busy, admit=Admission(0))

    assert [one.ending for one in outcome.served] == ["done", "done", "refused"]


def test_nobody_is_let_in_who_would_be_late() -> None:
    requests = [request(number, 0.0, 5, deadline_s=11.0) for number in range(4)]
    eager, careful = (serve(requests, ONE, admit=Admission(in_time=in_time)) for in_time in (False, True))

    assert [one.ending for one in careful.served] == ["done", "done", "refused", "refused"]
    assert [one.ending for one in eager.served] == ["done", "done", "expired", "expired"]


def test_gpus_make_instances_and_images_are_counted_for_each_gpu() -> None:
    pair = replace(ONE, gpus_per_instance=2)
    outcome = serve([request(number, 0.0, 6) for number in range(2)], pair, num_gpus=5)

    assert outcome.num_gpus == 4
    assert ends(outcome) == [6.0, 6.0]
    assert outcome.images_per_gpu_minute == 5.0
    with pytest.raises(BadInput, match="needs 2 GPUs, found 1"):
        serve([], pair, num_gpus=1)


def test_affinity_saves_loads_and_the_least_busy_does_not() -> None:
    requests = [request(number, 10.0 * (number // 2), 1, (number + number // 2) % 2) for number in range(20)]
    spread, near = (
        serve(requests, ONE, num_gpus=2, capacity=1, route=route) for route in (least_busy, NearbyAffinity())
    )

    assert spread.loads_per_request == 1.0  # both come at once, every time the other way round
    assert near.loads_per_request == 0.1


def test_in_any_order_those_who_need_no_load_go_first() -> None:
    requests = [request(number, 0.0, 1, lora, load_s=1.0) for number, lora in enumerate((1, 2, 1, 2))]
    free = serve(requests, ONE, capacity=1, choose=fewest_loads)

    assert ends(free) == [2.0, 5.0, 3.0, 6.0]
    assert serve(requests, ONE, capacity=1).loads_per_request == 1.0
    assert free.loads_per_request == 0.5


# The memory of an instance ------------------------------------------------------------------------------------------


def test_what_is_in_use_stays_even_if_there_is_no_room() -> None:
    residents = LoraResidency(ADAPTER_POLICIES["lru"](), 1)
    residents.use("a", 1.0, 0.0, ())
    residents.use("b", 1.0, 0.0, ())
    both = set(residents.names)
    residents.release(("a",), ())

    assert both == {"a", "b"}
    assert set(residents.names) == {"b"}
