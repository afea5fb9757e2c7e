"""How long a download takes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from takeup.streaming.policies.finish import download_cdf, mean_download_s

from takeup.errors import BadInput
from takeup.streaming.chains import ps_cell
from takeup.streaming.model import Chain

CELL = ps_cell(speed=7.7, mean_s=60.0, arrivals_per_s=0.12, max_users=10)


def test_a_lone_user_downloads_at_the_speed_of_the_cell() -> None:
    alone = ps_cell(speed=3.0, mean_s=60.0, arrivals_per_s=0.1, max_users=1)

    assert mean_download_s(alone) == pytest.approx(20.0)
    assert download_cdf(alone, [0.0, 20.0]) == pytest.approx([0.0, 1 - np.exp(-1)])


def test_the_mean_follows_from_the_number_of_users() -> None:
    """Little's law on the accepted videos: mean number in the cell = accepted arrivals x mean time."""
    load = 0.12 * 60.0 / 7.7
    law = load ** np.arange(11) / sum(load**n for n in range(11))
    accepted_per_s = 0.12 * (1 - law[-1])

    assert accepted_per_s * mean_download_s(CELL) == pytest.approx(law @ np.arange(11))


def test_the_mean_is_the_area_above_the_distribution() -> None:
    area, _ = quad(lambda time_s: 1 - download_cdf(CELL, time_s)[0], 0, 2000, limit=200)

    assert area == pytest.approx(mean_download_s(CELL), rel=1e-6)


def test_the_distribution_grows_from_nothing_to_one() -> None:
    shares = download_cdf(CELL, np.linspace(0, 3000, 50))

    assert shares[0] == 0
    assert shares[-1] == pytest.approx(1)
    assert (np.diff(shares) >= 0).all()


@pytest.mark.parametrize("times", [[-1.0], [np.nan], [np.inf]])
def test_impossible_times_are_refused(times: list[float]) -> None:
    with pytest.raises(BadInput, match="finite seconds"):
        download_cdf(CELL, times)


def test_a_download_that_never_ends_has_no_mean() -> None:
    endless = Chain(np.zeros((1, 1)), np.zeros(1), np.ones(1), np.ones(1))

    with pytest.raises(BadInput, match="end rate above zero"):
        mean_download_s(endless)
