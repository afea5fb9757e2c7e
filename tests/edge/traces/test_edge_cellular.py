"""Cells by TR 38.901: path loss by hand, correlated fading, and a library that is always the same."""

from __future__ import annotations

import numpy as np
import pytest

from takeup.edge.traces.cellular import URBAN_MACRO, URBAN_MICRO, channel_gains, path_loss_db, sight_probability
from takeup.edge.traces.library import NUM_CELLS, best_known, cell_traits, library_cell
from takeup.errors import BadInput


def test_path_loss_by_hand() -> None:
    at_100_m, yes, no = np.array([100.0]), np.array([True]), np.array([False])
    distance = float(np.hypot(100.0, 8.5))

    assert path_loss_db(URBAN_MICRO, at_100_m, yes)[0] == pytest.approx(
        32.4 + 21 * np.log10(distance) + 20 * np.log10(3.5)
    )
    assert path_loss_db(URBAN_MICRO, at_100_m, no)[0] == pytest.approx(
        22.4 + 35.3 * np.log10(distance) + 21.3 * np.log10(3.5)
    )


@pytest.mark.parametrize("scenario", [URBAN_MICRO, URBAN_MACRO])
def test_path_loss_is_continuous_at_the_break_and_larger_out_of_sight(scenario) -> None:  # type: ignore[no-untyped-def]
    ground_m = np.linspace(10.0, 1000.0, 5000)
    in_sight = path_loss_db(scenario, ground_m, np.ones(5000, np.bool_))
    hidden = path_loss_db(scenario, ground_m, np.zeros(5000, np.bool_))

    assert np.abs(np.diff(in_sight)).max() < 0.5
    assert (hidden >= in_sight).all()


def test_sight_is_certain_nearby_and_rare_far_away() -> None:
    probabilities = sight_probability(URBAN_MICRO, np.array([10.0, 18.0, 100.0, 1000.0]))

    assert probabilities[:2].tolist() == [1.0, 1.0]
    assert probabilities[2] == pytest.approx(0.18 + np.exp(-100 / 36) * 0.82)
    assert probabilities[3] < 0.02


def test_neighbouring_blocks_fade_together_and_distant_ones_do_not() -> None:
    gains = np.log(channel_gains(URBAN_MICRO, np.random.default_rng(1), 2000, 100))
    levels = gains - gains.mean(axis=1, keepdims=True)

    def correlation(apart: int) -> float:
        return float((levels[:, apart:] * levels[:, : 100 - apart]).mean() / (levels**2).mean())

    assert correlation(1) > 0.5 > correlation(10) > correlation(40)


def test_the_library_is_always_the_same() -> None:
    one, again = library_cell(17), library_cell(17)

    assert (one.gains == again.gains).all()
    assert one.deadlines_s.tolist() == again.deadlines_s.tolist()
    assert float(one.bits[0]) == pytest.approx(BITS_OF_CELL_17)
    with pytest.raises(BadInput, match="cells 0 to 299"):
        library_cell(300)


def test_the_library_has_every_combination_of_cores_groups_and_rates() -> None:
    traits = [cell_traits(number) for number in range(NUM_CELLS)]
    kinds = {(each.scenario, each.num_cores, each.contiguous, each.modulated) for each in traits}

    assert len(kinds) == 2 * 5 * 2 * 2


def test_best_known_plans_are_below_their_bounds() -> None:
    for number, known in best_known().items():
        assert 0 <= known.worth_j <= known.bound_j * (1 + 1e-9), number


BITS_OF_CELL_17 = 401225.32977318345
