"""Chains of plain, mixed, opportunistic and changing cells: conservation, known laws, a direct count of the rates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.oracles import ps_cell, reference_cell
from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming import chains
from takeup.streaming.chains import (
    Flow,
    TaggedVideo,
    arrival_law,
    chain_of,
    flow_generator,
    population,
    shared_chain,
    stationary_law,
)
from takeup.streaming.model import Capacity, Cell, Player, Views
from takeup.streaming.solvers.fluid import DoublingSolver

TWO_LENGTHS = (Views(0.7, 20.0), Views(0.3, 150.0))
LEVELS = Capacity(np.array([0.5, 1.0, 1.5]), np.array([[-0.1, 0.1, 0.0], [0.05, -0.1, 0.05], [0.0, 0.1, -0.1]]))


def test_a_plain_cell_has_the_rates_of_its_definition() -> None:
    chain = ps_cell(3.0, 60.0, 0.1, 3)

    assert chain.fill == pytest.approx([3.0, 1.5, 1.0])
    assert chain.end == pytest.approx(chain.fill / 60)
    assert chain.generator == pytest.approx(
        np.array([[-0.1, 0.1, 0.0], [1.5 / 60, -0.1 - 1.5 / 60, 0.1], [0.0, 2 / 60, -2 / 60]])
    )


@pytest.mark.parametrize("load", [0.3, 0.926, 1.0, 4.0])
def test_arrivals_see_the_geometric_law_and_are_blocked_by_its_last_term(load: float) -> None:
    chain = ps_cell(6.0, 60.0, load / 10, 10)
    weights = load ** np.arange(11)

    assert chain.initial == pytest.approx(weights[:10] / weights[:10].sum())
    assert chain.blocked_share == pytest.approx(weights[10] / weights.sum())


def test_a_cell_for_one_user_has_no_others() -> None:
    chain = ps_cell(2.0, 60.0, 0.1, 1)

    assert chain.num_states == 1
    assert chain.initial.tolist() == [1.0]
    assert chain.blocked_share == pytest.approx(3.0 / 4.0)


@settings(max_examples=30, deadline=None)
@given(
    speed=st.floats(0.5, 20),
    arrivals_per_s=st.floats(0.01, 1),
    max_users=st.integers(1, 7),
    opportunistic=st.booleans(),
    two_lengths=st.booleans(),
    changing=st.booleans(),
)
def test_every_cell_makes_a_chain_that_conserves_probability(
    speed: float, arrivals_per_s: float, max_users: int, opportunistic: bool, two_lengths: bool, changing: bool
) -> None:
    views = TWO_LENGTHS if two_lengths else (Views(1.0, 60.0),)
    capacity = LEVELS if changing else None
    chain = chain_of(Cell(speed, 1.0, arrivals_per_s, max_users, views, opportunistic, capacity))

    assert np.abs(chain.generator.sum(axis=1)).max() < 1e-9
    assert chain.initial.sum() == pytest.approx(1.0)
    assert 0 <= chain.blocked_share <= 1
    assert (chain.variance > 0).all() == opportunistic


@pytest.mark.parametrize("efficiency", [np.ones(5), np.cumsum(1 / np.arange(1, 6)), np.linspace(1, 0.4, 5)])
@pytest.mark.parametrize(
    "flows", [[Flow(0.3, 0.2)], [Flow(0.1, 0.3), Flow(0.2, 0.1)], [Flow(0.1, x) for x in (1, 2, 3)]]
)
def test_the_product_form_is_the_stationary_law(flows: list[Flow], efficiency: Floats) -> None:
    counts = population(len(flows), 5)
    rates = flow_generator(counts, flows, efficiency, 0)
    law, blocked_share = arrival_law(counts, flows, efficiency)

    whole = stationary_law(rates)
    has_room = counts.sum(axis=1) < 5
    assert law == pytest.approx(whole[has_room] / whole[has_room].sum())
    assert blocked_share == pytest.approx(whole[~has_room].sum())


def test_flows_of_three_kinds_come_and_go_by_their_rates() -> None:
    flows = [Flow(0.1, 1.0), Flow(0.2, 2.0), Flow(0.3, 3.0)]
    counts = population(3, 2)
    rates = flow_generator(counts, flows, np.ones(3), 1)
    place = {tuple(row): number for number, row in enumerate(counts.tolist())}

    assert len(place) == 10
    assert rates[place[0, 0, 0], place[0, 1, 0]] == pytest.approx(0.2)
    assert rates[place[1, 0, 1], place[1, 0, 0]] == pytest.approx(1 * 3.0 / 3)
    assert rates[place[0, 2, 0], place[0, 1, 0]] == pytest.approx(2 * 2.0 / 3)
    assert rates[place[0, 0, 0], place[1, 1, 0]] == 0


def test_two_classes_of_the_same_length_are_one_class() -> None:
    split = Cell(2.8e6, 360e3, 0.12, 10, (Views(0.4, 60.0), Views(0.6, 60.0)))
    answers = [DoublingSolver().solve(chain_of(split, tagged), Player(5.0)) for tagged in (0, 1)]

    whole = DoublingSolver().solve(chain_of(reference_cell()), Player(5.0))
    for answer in answers:
        assert answer.stall_probability.value == pytest.approx(whole.stall_probability.value)
        assert answer.stall_s.value == pytest.approx(whole.stall_s.value)
        assert answer.blocked_share.value == pytest.approx(whole.blocked_share.value)


def test_long_and_short_views_have_their_known_numbers() -> None:
    cell = Cell(2.8e6, 360e3, 0.12, 10, (Views(0.7, 20.0), Views(0.3, 460 / 3)))
    short, long = (DoublingSolver().solution(chain_of(cell, tagged)).stall_probability(10.0) for tagged in (0, 1))

    assert chain_of(cell).num_states == 55
    assert short == pytest.approx(0.0049, abs=5e-5)
    assert long == pytest.approx(0.0979, abs=5e-5)


def test_the_best_channel_is_worth_the_harmonic_number() -> None:
    chain = chain_of(Cell(3.0, 1.0, 0.1, 3, opportunistic=True), slot_s=0.01)

    assert chain.fill == pytest.approx([3.0, 3.0 * 1.5 / 2, 3.0 * (11 / 6) / 3])
    assert chain.variance[0] == pytest.approx(9 * 0.01)  # alone: the variance of an exponential
    assert chain.variance[1] == pytest.approx(9 * 0.01 * ((1.5**2 + 1.25) / 2 - 0.75**2))


@pytest.mark.parametrize("views", [(Views(1.0, 60.0),), TWO_LENGTHS])
def test_levels_that_are_all_alike_change_nothing(views: tuple[Views, ...]) -> None:
    same = Capacity(np.ones(3), LEVELS.generator)
    plain, changing = (Cell(2.8e6, 360e3, 0.12, 5, views, capacity=capacity) for capacity in (None, same))
    expected, found = (DoublingSolver().solve(chain_of(cell), Player(5.0)) for cell in (plain, changing))

    assert found.stall_probability.value == pytest.approx(expected.stall_probability.value, rel=1e-10)
    assert found.startup_s.value == pytest.approx(expected.startup_s.value, rel=1e-10)
    assert found.blocked_share.value == pytest.approx(expected.blocked_share.value, rel=1e-10)


def test_a_capacity_that_never_changes_level_in_time_is_a_mix_of_cells() -> None:
    slow = Capacity(np.array([0.5, 1.5]), 1e-9 * np.array([[-1.0, 1.0], [1.0, -1.0]]))
    chain = chain_of(Cell(2.8e6, 360e3, 0.12, 10, capacity=slow))
    chains = [chain_of(Cell(2.8e6 * level, 360e3, 0.12, 10)) for level in (0.5, 1.5)]
    accepted = np.array([1 - each.blocked_share for each in chains])
    alone = [DoublingSolver().solution(each).stall_probability(5.0) for each in chains]

    found = DoublingSolver().solution(chain).stall_probability(5.0)
    assert found == pytest.approx(accepted @ alone / accepted.sum(), rel=1e-5)


def test_a_changing_capacity_makes_more_stalls() -> None:
    steady, changing = (Cell(2.8e6, 360e3, 0.1, 10, capacity=capacity) for capacity in (None, LEVELS))
    solutions = [DoublingSolver().solution(chain_of(cell)) for cell in (steady, changing)]

    assert solutions[1].stall_probability(5.0) == pytest.approx(0.0835608, rel=1e-5)
    assert solutions[1].stall_probability(5.0) > 2 * solutions[0].stall_probability(5.0)


@pytest.mark.parametrize("floor", [1e-6, 1e-4])
def test_an_outage_is_the_limit_of_a_very_slow_level(floor: float) -> None:
    cells = [Cell(2.8e6, 360e3, 0.1, 10, capacity=Capacity(np.array([x, 1, 2]), LEVELS.generator)) for x in (0, floor)]
    outage, slow = (DoublingSolver().solve(chain_of(cell), Player(5.0)) for cell in cells)

    assert slow.stall_probability.value == pytest.approx(outage.stall_probability.value, rel=2 * floor)
    assert slow.startup_s.value == pytest.approx(outage.startup_s.value, rel=3 * floor)
    assert slow.stall_s.value == pytest.approx(outage.stall_s.value, rel=3 * floor)


@pytest.mark.parametrize("back", [0.0, 0.1])
def test_levels_that_do_not_lead_to_each_other_are_refused(back: float) -> None:
    apart = Capacity(np.array([0.5, 1.5]), np.array([[0.0, 0.0], [back, -back]]))

    with pytest.raises(BadInput, match="never reached again"):
        chain_of(Cell(2.8e6, 360e3, 0.12, 4, capacity=apart))


@pytest.mark.parametrize(
    ("levels", "rates", "message"),
    [
        ([1.0], np.zeros((2, 2)), "make them 1 x 1"),
        ([math.nan], np.zeros((1, 1)), "must be finite"),
        ([-1.0, 1.0], np.zeros((2, 2)), "zero or more"),
        ([0.0], np.zeros((1, 1)), "one of them above zero"),
        ([1.0, 2.0], np.ones((2, 2)), "sum to zero"),
    ],
)
def test_a_senseless_capacity_is_refused(levels: list[float], rates: Floats, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Capacity(np.array(levels), rates)


@pytest.mark.parametrize("tagged", [-1, 1, 7])
def test_a_class_that_does_not_exist_is_refused(tagged: int) -> None:
    with pytest.raises(BadInput, match="classes 0 to 0"):
        chain_of(reference_cell(), tagged)


def test_too_many_states_are_refused() -> None:
    with pytest.raises(BadInput, match="too many states"):
        chain_of(Cell(3.0, 1.0, 0.1, 300, tuple(Views(0.25, 10.0 * n) for n in range(1, 5))))
    with pytest.raises(BadInput, match="too many states"):
        chain_of(Cell(3.0, 1.0, 0.1, 30_000))


@pytest.mark.parametrize(("most", "capacity"), [(12, None), (4, LEVELS)])
def test_as_many_states_as_the_limit_are_accepted(
    monkeypatch: pytest.MonkeyPatch, most: int, capacity: Capacity | None
) -> None:
    monkeypatch.setattr(chains, "MAX_STATES", 12)
    tagged, flows = TaggedVideo(3.0, 60.0), [Flow(0.1, 0.05)]

    assert shared_chain(flows, tagged, np.ones(most), capacity).num_states == 12
    with pytest.raises(BadInput, match=f"max_users is {most + 1}, which makes too many states; keep it below 12"):
        shared_chain(flows, tagged, np.ones(most + 1), capacity)


def test_every_level_of_capacity_multiplies_the_states() -> None:
    with pytest.raises(BadInput, match="max_users is 6667, which makes too many states; keep it below 20000"):
        shared_chain([Flow(0.1, 0.05)], TaggedVideo(3.0, 60.0), np.ones(6667), LEVELS)


@pytest.mark.parametrize("slot_s", [-0.1, math.nan, math.inf])
def test_a_senseless_slot_is_refused(slot_s: float) -> None:
    with pytest.raises(BadInput, match="slot_s is"):
        chain_of(Cell(3.0, 1.0, 0.1, 4, opportunistic=True), slot_s=slot_s)


def test_a_load_that_accepts_nobody_is_refused() -> None:
    with pytest.raises(BadInput, match="practically no video"):
        shared_chain([Flow(1e300, 1e-300)], TaggedVideo(1.0, 60.0), np.ones(3))
