"""Requests, designs and outcomes worked by hand, and exactly at their limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from takeup.errors import BadInput
from takeup.serving.model import (
    AdapterReplay,
    Arrival,
    ControlUse,
    Design,
    LoraUse,
    QueueOutcome,
    Request,
    RowCosts,
    Served,
)

COSTS = RowCosts(((2, 1.0), (4, 1.5), (8, 2.5)))
PLAIN = Design("plain", COSTS)


def arrival(number: int = 0, arrival_s: float = 0.0, num_loras: int = 0, num_controls: int = 0) -> Arrival:
    return Arrival(number, arrival_s, 10, 2, tuple(range(num_loras)), (0.5,) * num_loras, num_controls)


@pytest.mark.parametrize(
    ("num_rows", "seconds"), [(1, 1.0), (2, 1.0), (3, 1.25), (4, 1.5), (6, 2.0), (8, 2.5), (12, 3.5)]
)
def test_calls_cost_what_was_measured_and_lines_between(num_rows: int, seconds: float) -> None:
    assert COSTS(num_rows) == pytest.approx(seconds)


def test_a_single_measurement_is_in_proportion_to_rows() -> None:
    assert [RowCosts(((2, 1.0),))(rows) for rows in (1, 2, 3, 8)] == [1.0, 1.0, 1.5, 4.0]


@pytest.mark.parametrize("points", [(), ((0, 1.0),), ((2, 1.0), (2, 2.0)), ((4, 1.0), (2, 2.0)), ((2, 0.0),)])
def test_costs_that_cannot_be_are_refused(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(BadInput, match="rising rows, above zero"):
        RowCosts(points)


def test_rows_begin_at_one() -> None:
    assert RowCosts(((1, 1.0), (2, 3.0)))(2) == 3.0


def test_a_design_adds_nothing_unless_it_says_so() -> None:
    assert PLAIN.call_s([arrival(num_loras=1, num_controls=1)]) == 1.0
    assert (PLAIN.before_s, PLAIN.after_s, PLAIN.around_s, PLAIN.switch_s, PLAIN.patch_s) == (0.0,) * 5
    assert (PLAIN.contention_share, PLAIN.max_running, PLAIN.gpus_per_instance) == (0.0, 1, 1)
    assert PLAIN.num_steps(arrival()) == 10
    assert PLAIN.late_steps(10) == 0


def test_a_call_pays_for_its_rows_its_merge_and_the_rows_of_its_controls() -> None:
    design = replace(PLAIN, merge_s=0.25, control=RowCosts(((2, 0.5),)))

    assert design.call_s([arrival(), arrival()]) == 1.5
    assert design.call_s([arrival(num_loras=2), arrival(num_loras=1)]) == 1.75
    assert design.call_s([arrival(num_controls=2), arrival(num_controls=1)]) == 1.5 + 1.5


def test_skipped_steps_leave_at_least_one() -> None:
    assert replace(PLAIN, skipped_share=0.25).num_steps(arrival()) == 8
    assert replace(PLAIN, skipped_share=1.0).num_steps(arrival()) == 1


@pytest.mark.parametrize(("num_steps", "late"), [(4, 0), (5, 2), (10, 5)])
def test_models_of_few_steps_have_no_late_ones(num_steps: int, late: int) -> None:
    assert replace(PLAIN, late_share=0.5, few_steps=4).late_steps(num_steps) == late


def test_at_least_one_step_has_the_loras() -> None:
    assert replace(PLAIN, late_share=1.0).late_steps(10) == 9


@pytest.mark.parametrize(
    "wrong", [{"max_running": 0}, {"gpus_per_instance": 0}, {"contention_share": -0.01}, {"contention_share": math.nan}]
)
def test_a_design_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        replace(PLAIN, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"num_steps": 0}, {"num_rows": 0}, {"load_s": (1.0,)}])
def test_an_arrival_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        replace(arrival(), **wrong)  # type: ignore[arg-type]


def test_alike_requests_have_one_key() -> None:
    one = Arrival(0, 0.0, loras=("a", "b"), load_s=(1.0, 2.0))

    assert one.batch_key == Arrival(1, 9.0, loras=("b", "a"), load_s=(3.0, 4.0)).batch_key
    assert one.batch_key != replace(one, num_controls=1).batch_key
    assert one.batch_key != replace(one, num_steps=31).batch_key
    assert one.batch_key != replace(one, shape="wide").batch_key
    assert (Arrival(0, 0.0).num_steps, Arrival(0, 0.0).num_rows) == (30, 2)


def test_an_outcome_counts_what_was_finished() -> None:
    first = Served(arrival(0, 1.0), "done", 11.0, 3.0, 4.0, 0, num_loads=2)
    second = Served(arrival(1, 2.0), "done", 12.0, 3.0, 5.0, 0)
    late = Served(arrival(2, 2.0), "expired", 4.0, num_loads=7)
    outcome = QueueOutcome("plain", 4, 2, (first, second, late), 30.0, 5, 9)

    assert (first.latency_s, first.queueing_s) == (10.0, 3.0)
    assert outcome.done == (first, second)
    assert outcome.images_per_gpu_minute == 60 * 2 / (30.0 * 2)
    assert outcome.loads_per_request == 1.0
    assert outcome.complete_share == 0.5


def test_an_outcome_without_images_divides_by_nothing() -> None:
    empty = QueueOutcome("plain", 4, 2, (), 0.0, 0, 0)

    assert (empty.images_per_gpu_minute, empty.loads_per_request, empty.complete_share) == (0.0, 0.0, 0.0)
    assert empty.num_most_waiting == 0


def test_a_replay_counts_per_request() -> None:
    assert AdapterReplay("lru", 4, 10, 6, 3).loads_per_request == 1.5
    assert AdapterReplay("lru", 4, 10, 6, 3).complete_share == 0.75
    assert AdapterReplay("lru", 0, 0, 0, 0).loads_per_request == 0.0


@pytest.mark.parametrize(
    ("start", "end", "active"), [(0.0, 1.0, [0, 1, 2, 3]), (0.25, 0.75, [1, 2]), (0.3, 0.75, [2]), (0.0, 0.7, [0, 1])]
)
def test_a_control_acts_in_whole_steps_of_its_range(start: float, end: float, active: list[int]) -> None:
    use = ControlUse("net", None, 0.5, start, end)

    assert [step for step in range(4) if use.scale_at(step, 4) == 0.5] == active
    assert {use.scale_at(step, 4) for step in range(4)} <= {0.0, 0.5}


@pytest.mark.parametrize(("start", "end"), [(-0.1, 1.0), (0.5, 0.5), (0.0, 1.1)])
def test_a_range_that_does_not_rise_is_refused(start: float, end: float) -> None:
    with pytest.raises(BadInput, match="rise, from 0 to 1"):
        ControlUse("net", None, 1.0, start, end)


def test_a_request_has_the_defaults_of_the_field() -> None:
    one = Request("a house")

    assert (one.num_steps, one.guidance, one.guidance_rescale, one.seed, one.eta) == (30, 5.0, 0.0, 0, 0.0)
    assert one.late_steps == 0
    assert (LoraUse("a").scale, ControlUse("n", None).scale) == (1.0, 1.0)
    assert Request("a house", num_steps=1, seed=2**63 - 1).seed == 2**63 - 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_steps": 0},
        {"late_steps": -1},
        {"seed": -1},
        {"seed": 2**63},
        {"loras": (LoraUse("a"), LoraUse("a", 0.5))},
    ],
)
def test_a_request_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        Request("a house", **wrong)  # type: ignore[arg-type]
