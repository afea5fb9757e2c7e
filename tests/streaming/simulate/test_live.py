"""Live streaming over a log: latency by hand, catching up after a stall, skipping, and the curve on a real log."""

from __future__ import annotations

import math

import numpy as np
import pytest

from takeup.errors import BadInput
from takeup.streaming.simulate.live import LivePlayer, live_intervals, live_outcomes
from takeup.streaming.simulate.replay import SteadyLog

MEAN_S = 60.0


def log_of(rates: list[float]) -> SteadyLog:
    return SteadyLog(np.ones(len(rates)), np.array(rates))


def test_a_fast_link_keeps_its_target() -> None:
    found = live_outcomes(log_of([4e6] * 99), LivePlayer(3.0, 0.5, 0.05), 1e6, MEAN_S)[0]

    assert found[:3].tolist() == [0.0, 0.0, 0.0]
    assert found[3] == pytest.approx(MEAN_S * (1 - math.exp(-3 * 0.125 / MEAN_S)))  # three chunks
    assert found[4] == pytest.approx(3.0, abs=0.2)


def test_a_stall_delays_and_a_faster_player_catches_up() -> None:
    log = log_of([4e6] * 20 + [1e3] * 5 + [4e6] * 400)
    slow, fast = (live_outcomes(log, LivePlayer(2.0, 0.5, catch_up), 1e6, MEAN_S)[0] for catch_up in (0.0, 0.1))

    assert slow[1] == pytest.approx(math.exp(-21.5 / MEAN_S), rel=0.05)
    assert slow[2] == pytest.approx(3.3 * math.exp(-23.5 / MEAN_S), rel=0.2)
    assert 2.0 < fast[4] < slow[4]


def test_a_long_outage_is_skipped() -> None:
    log = log_of([4e6] * 20 + [1e3] * 30 + [4e6] * 400)
    found = live_outcomes(log, LivePlayer(2.0, 0.5, 0.0), 1e6, MEAN_S)[0]

    assert found[5] == pytest.approx(28.0 * math.exp(-50.0 / MEAN_S), rel=0.2)
    assert found[4] < 8.0


def test_more_latency_means_fewer_stalls() -> None:
    rng = np.random.default_rng(1)
    log = log_of((1.8e6 * np.repeat(rng.gamma(2.0, 0.5, 60), 10)).tolist())
    chances = [live_outcomes(log, LivePlayer(each, 0.5, 0.05), 1e6, MEAN_S)[:, 0].mean() for each in (1, 3, 6, 15)]

    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 2 * chances[-1]


def test_intervals_hold_the_value() -> None:
    found = live_intervals(log_of([2e6, 5e5] * 100), LivePlayer(2.0, 0.5, 0.05), 1e6, MEAN_S)

    assert set(found) == {"stall_probability", "num_stalls", "stall_s", "startup_s", "latency_s", "skipped_s"}
    assert all(each.low <= each.value <= each.high for each in found.values())


@pytest.mark.parametrize(("latency_s", "chunk_s", "catch_up"), [(0.2, 0.5, 0.1), (3.0, 0.0, 0.1), (3.0, 0.5, 1.0)])
def test_a_senseless_player_is_refused(latency_s: float, chunk_s: float, catch_up: float) -> None:
    with pytest.raises(BadInput, match="give 0 < chunk <= target"):
        LivePlayer(latency_s, chunk_s, catch_up)
