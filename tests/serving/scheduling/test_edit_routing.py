"""Where edits go and with whom: worked by hand, and simulated over a fleet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.serving.scheduling.edit_routing import (
    EDIT_ROUTES,
    EarliestFinish,
    EditJob,
    StepCosts,
    WorkerView,
    fewest_tokens,
    fifo,
    round_robin,
    shortest_step,
    similar_masks,
)
from takeup.serving.simulate.edits import EditFleet, EditOutcome, generate_edits, simulate_edits

COSTS = StepCosts(call_s=1.0, edit_s=1.0, mask_s=10.0)


def job(number: int = 0, share: float = 0.1, arrival_s: float = 0.0, template: int = 0) -> EditJob:
    return EditJob(number, arrival_s, share, template, num_steps=2)


def view(*running: EditJob, waiting: tuple[EditJob, ...] = (), templates: tuple[int, ...] = (0,)) -> WorkerView:
    return WorkerView([(one, one.num_steps) for one in running], waiting, templates, max_batch=2)


def served(
    jobs: list[EditJob], fleet: EditFleet, route: Callable[..., int] = round_robin, **others: int
) -> EditOutcome:
    return simulate_edits(jobs, fleet, route, fifo, COSTS, **others)


# Routes -----------------------------------------------------------------------------------------------------------


def test_a_step_is_padded_to_the_largest_mask() -> None:
    assert COSTS([]) == 0.0
    assert COSTS([0.1]) == pytest.approx(1 + 1 + 1)
    assert COSTS([0.1, 0.5]) == pytest.approx(1 + 2 * (1 + 5))


def test_turns_go_round() -> None:
    assert [round_robin(job(number), [view()] * 3) for number in range(4)] == [0, 1, 2, 0]


def test_tokens_that_are_left_count_not_edits() -> None:
    many_small = view(job(1, 0.05), job(2, 0.05))
    one_large = view(job(3, 0.9))

    assert fewest_tokens(job(), [one_large, many_small]) == 1


def test_the_published_route_takes_the_shortest_step_with_room() -> None:
    full, large, small = view(job(1, 0.01), job(2, 0.01)), view(job(3, 0.9)), view(job(4, 0.2))

    assert shortest_step(COSTS)(job(), [full, large, small]) == 2
    assert shortest_step(COSTS)(job(), [full, full]) == 0


def test_the_template_decides_where_everything_else_is_equal() -> None:
    route = EarliestFinish(COSTS, load_s=5.0)

    assert route(job(template=7), [view(templates=(1,)), view(templates=(7,))]) == 1


def test_a_short_load_is_better_than_a_long_queue() -> None:
    busy = view(job(1), job(2), waiting=(job(3), job(4)), templates=(7,))
    route = EarliestFinish(COSTS, load_s=1.0)

    assert route(job(template=7), [busy, view(templates=())]) == 1
    assert route.finish_s(job(template=7), view(templates=())) == pytest.approx(1.0 + 2 * 3.0)


@pytest.mark.parametrize(
    ("there", "finish_s"),
    [
        (view(), 2 * 3.0),
        (view(job(1)), 2 * 5.0),
        (view(job(1), job(2)), 5.0 * 4 / 2 / 2 + 2 * 5.0),  # one of two must end, with four steps left
        (view(job(1), job(2), waiting=(job(3),)), 5.0 * 6 / 2 * 2 / 3 + 2 * 5.0),
        (view(job(1, 0.5)), 2 * (1 + 2 * (1 + 5))),
        (view(job(1, 0.1), job(2, 0.5)), (1 + 2 * (1 + 1)) * 4 / 2 / 2 + 2 * (1 + 2 * (1 + 1))),
    ],
)
def test_a_finish_is_predicted_from_the_steps_before_and_in_the_batch(there: WorkerView, finish_s: float) -> None:
    assert EarliestFinish(COSTS).finish_s(job(), there) == pytest.approx(finish_s)


@pytest.mark.parametrize(("load_s", "waits_s"), [(12.0, 12.0), (4.0, 10.0)])
def test_a_template_is_loaded_while_its_edit_waits(load_s: float, waits_s: float) -> None:
    busy = view(job(1), job(2), waiting=(job(3),), templates=())

    assert EarliestFinish(COSTS, load_s).finish_s(job(), busy) == pytest.approx(waits_s + 2 * 5.0)


def test_without_settings_costs_are_those_measured_with_sdxl() -> None:
    lone = EditJob(0, 0.0, 0.1, 0)

    assert EarliestFinish().finish_s(lone, view(templates=())) == pytest.approx(4.0 + 50 * 0.01069)
    assert StepCosts()([0.2, 0.2]) == pytest.approx(0.0066 + 2 * (0.001 + 0.2 * 0.0309))
    assert StepCosts(0.0, 0.0, 0.0)([0.2]) == 0.0


def test_tokens_of_waiting_edits_count_and_ties_go_to_fewer_edits() -> None:
    assert fewest_tokens(job(), [view(waiting=(job(1, 0.9),)), view(job(2, 0.5))]) == 1
    assert fewest_tokens(job(), [view(job(1, 0.25), job(2, 0.25)), view(job(3, 0.5))]) == 1


def test_where_all_are_full_the_published_route_takes_the_fewest_edits() -> None:
    long, short = view(job(1, 0.1), job(2, 0.1), waiting=(job(3),)), view(job(4, 0.9), job(5, 0.9))

    assert shortest_step(COSTS)(job(), [long, short]) == 1


def test_all_routes_are_known_by_name() -> None:
    for make in EDIT_ROUTES.values():
        assert make()(job(), [view(), view()]) in (0, 1)


# Batches ----------------------------------------------------------------------------------------------------------


def test_similar_masks_join_a_batch() -> None:
    small, large = job(1, 0.1), job(2, 0.8)

    assert similar_masks()([small, large], [job(3, 0.7)], 1) == [large]


def test_nobody_is_overtaken_for_longer_than_patience() -> None:
    old, new = job(1, 0.1, arrival_s=0.0), job(2, 0.8, arrival_s=3.0)

    assert similar_masks(patience_s=2.0)([old, new], [job(3, 0.7)], 1) == [old]
    assert similar_masks(patience_s=4.0)([old, new], [job(3, 0.7)], 1) == [new]


def test_an_edit_is_overtaken_until_its_patience_is_over() -> None:
    old, new = job(1, 0.1, arrival_s=0.0), job(2, 0.8, arrival_s=2.0)

    assert similar_masks()([old, new], [job(3, 0.7)], 1) == [new]
    assert similar_masks()([old, new], [], 1) == [old]
    assert similar_masks()([old, job(2, 0.8, arrival_s=2.1)], [job(3, 0.7)], 1) == [old]


def test_a_batch_grows_around_those_that_joined() -> None:
    low, high, full = job(1, 0.15), job(2, 0.8), job(3, 1.0)

    assert similar_masks()([low, high, full], [job(4, 0.5)], 2) == [high, full]


def test_the_first_to_come_joins_first_and_of_two_the_lower_number() -> None:
    late, early, same = job(1, arrival_s=2.0), job(3, arrival_s=1.0), job(2, arrival_s=1.0)

    assert fifo([late, early, same], [], 2) == [same, early]
    assert similar_masks()([late, early, same], [], 1) == [same]


@given(
    st.lists(st.floats(0.01, 1), max_size=6),
    st.integers(0, 8),
    st.sampled_from([fifo, similar_masks()]),
)
def test_as_many_join_as_there_is_room(shares: list[float], num_free: int, join: Callable[..., list[EditJob]]) -> None:
    ready = [job(number, share) for number, share in enumerate(shares)]
    joined = join(ready, [job(9, 0.5)], num_free)

    assert len(joined) == min(num_free, len(ready))
    assert len({one.number for one in joined}) == len(joined)


# Fleets -----------------------------------------------------------------------------------------------------------


def test_one_edit_takes_its_load_and_its_steps() -> None:
    outcome = served([job()], EditFleet(num_workers=1, load_s=4.0))

    assert list(outcome.latencies_s) == pytest.approx([4.0 + 2 * 3.0])
    assert outcome.num_loads == 1


def test_the_second_edit_of_a_template_loads_nothing() -> None:
    outcome = served([job(0), job(1, arrival_s=20.0)], EditFleet(num_workers=1, load_s=4.0))

    assert list(outcome.latencies_s) == pytest.approx([10.0, 6.0])


def test_edits_join_a_batch_at_a_step() -> None:
    jobs = [job(0), job(1, arrival_s=1.0)]
    outcome = served(jobs, EditFleet(num_workers=1, load_s=0.0))

    # alone until 3, together until 3 + 5, then the second alone
    assert list(outcome.latencies_s) == pytest.approx([8.0, 8.0 + 3.0 - 1.0])


def test_a_full_batch_lets_others_wait() -> None:
    outcome = served([job(0), job(1)], EditFleet(num_workers=1, max_batch=1, load_s=0.0))

    assert list(outcome.latencies_s) == pytest.approx([6.0, 12.0])


def test_a_template_that_left_is_loaded_again() -> None:
    jobs = [job(0, template=0), job(1, arrival_s=20.0, template=1), job(2, arrival_s=40.0, template=0)]

    assert served(jobs, EditFleet(num_workers=1, num_templates=1)).num_loads == 3
    assert served(jobs, EditFleet(num_workers=1, num_templates=2)).num_loads == 2


def test_the_first_edits_may_be_left_out_of_the_count() -> None:
    jobs = [job(0), job(1, arrival_s=20.0)]

    assert len(served(jobs, EditFleet(), num_warm_up=1).latencies_s) == 1


def test_drawn_edits_have_the_published_mean_masks() -> None:
    jobs = generate_edits(np.random.default_rng(1), 6000, rate_hz=2.0)
    again = generate_edits(np.random.default_rng(1), 6000, rate_hz=2.0)

    assert np.mean([one.mask_share for one in jobs]) == pytest.approx((0.11 + 0.19 + 0.35) / 3, rel=0.03)
    assert jobs[-1].arrival_s == pytest.approx(3000, rel=0.1)
    assert jobs == again


def test_predicted_finishes_and_templates_beat_tokens_by_a_fifth() -> None:
    jobs = generate_edits(np.random.default_rng(3), 6000, rate_hz=6.0, num_templates=300)
    p95_s = {
        name: simulate_edits(
            jobs,
            EditFleet(num_templates=60),
            EDIT_ROUTES[name](),
            fifo,
            StepCosts(),
            num_warm_up=4000,
        ).percentile_s(95)
        for name in ("fewest_tokens", "earliest_finish")
    }

    assert p95_s["earliest_finish"] <= 0.8 * p95_s["fewest_tokens"]


def test_every_edit_is_served_once() -> None:
    jobs = generate_edits(np.random.default_rng(2), 300, rate_hz=5.0)
    outcome = served(jobs, EditFleet(num_workers=3), EarliestFinish(COSTS))

    assert len(outcome.latencies_s) == 300
    assert min(outcome.latencies_s) >= 50 * COSTS([min(one.mask_share for one in jobs)]) - 1e-9


def test_impossible_fleets_and_costs_are_refused() -> None:
    with pytest.raises(BadInput, match="at least one worker"):
        EditFleet(num_workers=0)
    with pytest.raises(BadInput, match="from zero up"):
        StepCosts(call_s=-1.0)
