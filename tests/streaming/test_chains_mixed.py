"""Near and far users, and data beside videos."""

from __future__ import annotations

import math

import pytest

from streaming.oracles import reference_cell
from takeup.errors import BadInput
from takeup.streaming.chains import RadioClass, chain_of, radio_classes, with_data_traffic
from takeup.streaming.model import Cell, Chain, Player
from takeup.streaming.solvers.riccati import RiccatiSolver


def stalls(chain: Chain) -> float:
    return RiccatiSolver().solution(chain).stall_probability(5.0)


def test_two_classes_with_the_same_radio_are_the_plain_cell() -> None:
    radios = (RadioClass(0.4, 2.8e6), RadioClass(0.6, 2.8e6))

    for tagged_radio in (0, 1):
        chain = radio_classes(reference_cell(), radios, tagged_radio)
        assert stalls(chain) == pytest.approx(stalls(chain_of(reference_cell())))
        assert chain.blocked_share == pytest.approx(chain_of(reference_cell()).blocked_share)


def test_far_users_stall_more_than_near_ones() -> None:
    radios = (RadioClass(0.5, 4e6), RadioClass(0.5, 2e6))
    near, far = (radio_classes(reference_cell(0.1), radios, tagged_radio) for tagged_radio in (0, 1))

    assert near.fill[0] == pytest.approx(2 * far.fill[0])
    assert near.blocked_share == pytest.approx(far.blocked_share)
    assert stalls(near) < stalls(far)


def test_data_flows_as_long_as_videos_count_like_videos() -> None:
    cell = Cell(2.8e6, 360e3, 0.09, 10)
    mean_bytes = 60 * 360e3 / 8
    chain = with_data_traffic(cell, 0.03, mean_bytes)

    assert stalls(chain) == pytest.approx(stalls(chain_of(reference_cell(0.12))))
    assert RiccatiSolver().solve(chain, Player(5.0)).startup_s.value == pytest.approx(3.0034984)


def test_more_data_makes_more_stalls() -> None:
    found = [stalls(with_data_traffic(reference_cell(0.08, 8), rate, 1e6)) for rate in (0.01, 0.05, 0.2)]

    assert found == sorted(found)
    assert stalls(chain_of(reference_cell(0.08, 8))) < found[0]


@pytest.mark.parametrize(
    ("radios", "tagged_radio", "message"),
    [
        ((), 0, "every class of radio"),
        ((RadioClass(1.0, 0.0),), 0, "every class of radio"),
        ((RadioClass(1.0, math.nan),), 0, "every class of radio"),
        ((RadioClass(0.5, 1e6),), 0, "add up to 0.5"),
        ((RadioClass(1.0, 1e6),), 1, "does not exist"),
    ],
)
def test_senseless_radio_classes_are_refused(radios: tuple[RadioClass, ...], tagged_radio: int, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        radio_classes(reference_cell(), radios, tagged_radio)


@pytest.mark.parametrize(("data_per_s", "mean_bytes"), [(0.0, 1e6), (0.1, -1.0), (math.nan, 1e6)])
def test_senseless_data_is_refused(data_per_s: float, mean_bytes: float) -> None:
    with pytest.raises(BadInput, match="data_per_s is"):
        with_data_traffic(reference_cell(), data_per_s, mean_bytes)
