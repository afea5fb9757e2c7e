"""The draws behind a generated fleet, one by one: sizes, durations, starts, the cut, organisations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.cluster.traces.fleet_statistics import DURATION_LAW, FRACTIONS, NUM_DAYS, PROFILES, REQUESTS, SPOT_MEDIAN_S
from takeup.cluster.traces.generator import (
    DAY_S,
    LONG_S,
    bursts,
    cut_before,
    draw_high_durations,
    draw_organisations,
    draw_shapes,
    draw_spot_durations,
    draw_starts,
    mean_gpus,
    monthly_to_daily,
    wrap,
)

NAMES = st.sampled_from(sorted(PROFILES))
SPANS = st.lists(st.tuples(st.integers(0, 99), st.integers(1, 450)), min_size=1, max_size=30)
EVEN = np.ones(NUM_DAYS * 24)


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


# Sizes ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(NAMES, st.lists(st.tuples(st.sampled_from([1, 4, 8]), st.integers(1, 40)), min_size=1, max_size=3))
def test_a_job_asks_for_no_more_than_its_share_of_any_pool(name: str, nodes: list[tuple[int, int]]) -> None:
    profile = PROFILES[name]
    gpus, workers = draw_shapes(profile, tuple(nodes), np.zeros(300, np.bool_), rng())
    total = sum(size * count for size, count in nodes)

    assert gpus.max() <= max(size for size, _ in nodes)
    assert workers.min() >= 1
    assert (gpus * workers)[workers > 1].max(initial=0) <= profile.largest_share * total


@pytest.mark.parametrize("name", PROFILES)
def test_long_jobs_have_one_worker_and_shares_of_gpus_are_never_gangs(name: str) -> None:
    profile = PROFILES[name]
    is_long = np.arange(4000) % 2 == 0
    gpus, workers = draw_shapes(profile, profile.nodes, is_long, rng())

    assert (workers[is_long] == 1).all()
    assert (workers[gpus < 1] == 1).all()
    assert set(gpus.tolist()) <= {*FRACTIONS, *REQUESTS[1:]}
    assert gpus[is_long].mean() <= gpus[~is_long].mean() + 0.2


@pytest.mark.parametrize("name", PROFILES)
def test_the_mean_size_is_known_beforehand(name: str) -> None:
    profile = PROFILES[name]
    gpus, workers = draw_shapes(profile, profile.nodes, np.zeros(200_000, np.bool_), rng())

    assert (gpus * workers).mean() == pytest.approx(mean_gpus(profile, profile.nodes), rel=0.03)


def test_smaller_pools_have_smaller_gangs() -> None:
    profile = PROFILES["H800"]

    assert mean_gpus(profile, ((8, 8),)) < mean_gpus(profile, ((8, 64),)) < mean_gpus(profile, ((8, 219),))


# Durations ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROFILES)
def test_each_class_of_durations_has_its_share(name: str) -> None:
    profile = PROFILES[name]
    durations_s = draw_high_durations(profile, 100_000, rng())
    bounds = [knots[0][1] for knots in DURATION_LAW] + [DURATION_LAW[-1][-1][1] + 1]
    counts = np.histogram(durations_s, bounds)[0] / 100_000

    assert durations_s.min() >= 1
    assert counts == pytest.approx(np.array(profile.duration_shares), abs=0.01)


def test_inside_a_class_durations_follow_the_knots() -> None:
    durations_s = draw_high_durations(PROFILES["A100-SXM4-80GB"], 200_000, rng())
    inside = durations_s[(durations_s > 600) & (durations_s < 3600)]

    assert (inside <= 1216).mean() == pytest.approx((0.5144 - 0.3854) / (0.7320 - 0.3854), abs=0.01)


def test_spot_durations_have_the_published_median_and_an_end() -> None:
    durations_s = draw_spot_durations(100_000, rng())

    assert np.median(durations_s) == pytest.approx(SPOT_MEDIAN_S, rel=0.03)
    assert durations_s.min() >= 1
    assert durations_s.max() <= 30 * DAY_S


# Starts ---------------------------------------------------------------------------------------------------------------


def test_starts_lie_inside_the_months_on_whole_seconds() -> None:
    durations_s = draw_high_durations(PROFILES["A10"], 20_000, rng())
    starts_s = draw_starts(durations_s, np.ones(NUM_DAYS), EVEN, rng())

    assert starts_s.min() >= 0
    assert starts_s.max() < NUM_DAYS * DAY_S
    assert (starts_s == np.floor(starts_s)).all()


def test_no_job_starts_on_a_day_without_any() -> None:
    daily = np.zeros(NUM_DAYS)
    daily[100:103] = 1.0
    days = draw_starts(np.full(5000, 60.0), daily, EVEN, rng()) // DAY_S

    assert set(days.tolist()) == {100, 101, 102}


def test_a_job_of_days_has_its_middle_where_demand_is() -> None:
    daily = np.zeros(NUM_DAYS)
    daily[100] = 1.0
    starts_s = draw_starts(np.full(500, 10 * DAY_S), daily, EVEN, rng())

    assert starts_s.min() >= 95 * DAY_S
    assert starts_s.max() < 96 * DAY_S


def test_bursts_bring_more_short_jobs_and_move_no_others() -> None:
    burst = EVEN.copy()
    burst[50 * 24 : 51 * 24] = 20.0
    short, hours = (draw_starts(np.full(50_000, s), np.ones(NUM_DAYS), burst, rng()) // DAY_S for s in (60.0, 7200.0))

    assert (short == 50).mean() > 10 * (hours == 50).mean()


def test_bursts_are_one_on_average_and_last_for_days() -> None:
    burst = bursts(rng())
    days = burst.reshape(NUM_DAYS, 24).mean(axis=1)

    assert len(burst) == NUM_DAYS * 24
    assert burst.mean() == pytest.approx(1, abs=0.1)
    assert days.std() > 0.2


def test_more_jobs_come_on_workdays_than_at_weekends() -> None:
    starts_s = draw_starts(np.full(100_000, 60.0), np.ones(NUM_DAYS), EVEN, rng())
    by_weekday = np.bincount((starts_s // DAY_S).astype(np.int64) % 7)

    assert by_weekday.argmin() == 1  # the first day is a Friday
    assert by_weekday.argmax() == 4


def test_months_are_as_long_as_they_are() -> None:
    daily = monthly_to_daily([1, 2, 3, 4, 5, 6])

    assert len(daily) == NUM_DAYS
    assert [int((daily == month).sum()) for month in range(1, 7)] == [31, 30, 31, 30, 31, 31]


# The cut --------------------------------------------------------------------------------------------------------------


@given(SPANS)
def test_wrapping_keeps_all_time_of_all_jobs_inside_the_window(spans: list[tuple[int, int]]) -> None:
    starts_s, durations_s = np.array(spans, np.float64).T
    pieces = wrap(starts_s, durations_s, 100.0)
    per_job = np.bincount(pieces.job, pieces.durations_s, len(spans))

    assert per_job == pytest.approx(durations_s)
    assert pieces.starts_s.min() >= 0
    assert (pieces.starts_s + pieces.durations_s).max() <= 100


@given(SPANS, st.integers(0, 99))
def test_the_cut_keeps_what_happens_after_it(spans: list[tuple[int, int]], from_s: int) -> None:
    starts_s, durations_s = np.array(spans, np.float64).T
    pieces = wrap(starts_s, durations_s, 100.0)
    cut = cut_before(pieces, float(from_s))
    busy = sum(
        begin <= second < begin + lasts
        for begin, lasts in zip(pieces.starts_s, pieces.durations_s, strict=True)
        for second in range(from_s, 100)
    )

    assert cut.durations_s.sum() == busy
    assert cut.starts_s.min(initial=0) >= 0


def test_demand_is_level_from_the_first_hour_to_the_last() -> None:
    durations_s = np.full(40_000, 20 * DAY_S)
    starts_s = draw_starts(durations_s, np.ones(NUM_DAYS), EVEN, rng())
    pieces = wrap(starts_s, durations_s, NUM_DAYS * DAY_S)
    busy = [
        ((pieces.starts_s <= day * DAY_S) & (pieces.starts_s + pieces.durations_s > day * DAY_S)).sum()
        for day in (0, 1, 40, 90, 150, 183)
    ]

    assert busy == pytest.approx([40_000 * 20 / NUM_DAYS] * 6, rel=0.08)
    assert durations_s.min() > LONG_S


# Organisations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROFILES)
def test_the_known_organisations_have_their_shares_and_others_the_rest(name: str) -> None:
    profile = PROFILES[name]
    drawn = draw_organisations(profile, 50_000, rng())

    for number, share in profile.organisations:
        assert (drawn == number).mean() == pytest.approx(share, abs=0.01)
    assert drawn.min() >= 0
    assert drawn.max() < 84
