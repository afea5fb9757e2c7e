"""Days below FIFO: the bound is one, and what is said of a day is what happened on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from cluster.simulate.cluster_traces import HIGH, SPOT, philly_like, workload
from takeup.cluster.model import Workload
from takeup.cluster.policies import find_policy
from takeup.cluster.quota.allocator import SpotQuota
from takeup.cluster.simulate import replay
from takeup.cluster.simulate.replay import IdleReason
from takeup.papers.gfs import fifo as bound
from takeup.papers.gfs.baselines import Numbers, SpotLoad
from takeup.papers.gfs.fifo import DailyGaps, days_table, inspect_days

DAY_S = 86_400.0


def setting(num_days: int) -> Numbers:
    return {"setting": {"num_history_days": 0, "num_days": num_days}}


def seen(jobs: Workload, num_days: int) -> DailyGaps:
    fifo = replay(jobs, find_policy("fifo", SpotQuota()), 0.0, num_days * DAY_S)
    ticks: list[int] = []
    back = inspect_days(setting(num_days), SpotLoad("low", 7, jobs, {"fifo": fifo}), lambda: ticks.append(1))
    assert ticks == [1]
    return back


def by_programme(work: Any, rates: Any, room: Any) -> float:
    """The same flow as a linear programme."""
    num_jobs, num_hours = rates.shape
    of_job = np.kron(np.eye(num_jobs), np.ones(num_hours))
    of_hour = np.kron(np.ones(num_jobs), np.eye(num_hours))
    limits = [(0, rate) for rate in rates.ravel()]
    found = linprog(-np.ones(rates.size), np.vstack([of_job, of_hour]), np.concatenate([work, room]), bounds=limits)
    return -float(found.fun)


whole = st.integers(0, 40)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(whole, whole, whole, whole), min_size=1, max_size=5), st.tuples(whole, whole, whole))
def test_the_largest_flow_is_that_of_a_linear_programme(jobs: list[tuple[int, ...]], room: tuple[int, ...]) -> None:
    rows = np.array(jobs, float)
    flow = bound._max_flow(rows[:, 0], rows[:, 1:], np.array(room, float))

    assert flow == pytest.approx(by_programme(rows[:, 0], rows[:, 1:], np.array(room, float)))


def test_work_beyond_all_bounds_is_no_more_than_there_is_room() -> None:
    """A job as wide as the pool for a year does not fit into 32 bits, nor do two of them."""
    room = np.full(3, 8e6)
    year = np.full(2, 2296 * 365 * DAY_S)

    assert bound._max_flow(year, np.full((2, 3), 8e6), room) == room.sum()
    assert bound._max_flow(year, np.full((2, 3), 1e6), room) == 6e6
    assert bound._max_flow(year, np.full((2, 3), 1e12), room) == room.sum()


def test_a_pool_too_large_for_small_numbers_still_has_a_bound() -> None:
    """A hundred thousand GPUs for a day are nine billion GPU-seconds; units round up, so that it stays a bound."""
    room = np.full(24, 100_000 * 3600.0)
    work = np.array([1e9, 2.5e9, 1e7])
    flow = bound._max_flow(work, np.full((3, 24), 5e7), room)
    exact = by_programme(work, np.full((3, 24), 5e7), room)

    assert exact <= flow <= exact * 1.001


def test_who_worked_ahead_cannot_win_the_day_on_which_others_catch_up() -> None:
    """Larger jobs go first, so that eight GPUs are full on the first day and one is left for the second."""
    jobs = workload((SPOT, 4, 0, DAY_S), (SPOT, 1, 1, DAY_S - 1), (SPOT, 4, 1, DAY_S - 1), nodes=(8,))
    back = seen(jobs, 2)
    first, second = back.days

    assert (first.is_lower, second.is_lower) == (False, True)
    assert (second.allocation_pp, second.bound_pp) == pytest.approx((-37.5, -37.5), abs=0.01)
    assert (second.before_h, second.after_h) == pytest.approx((9.0, 0.0), abs=0.01)
    assert not second.can_match_fifo
    assert second.idle_pp[IdleReason.NONE_WAITS] == pytest.approx(87.5, abs=0.01)
    assert back.lower == (second,)


def test_without_spot_jobs_there_is_nothing_to_choose_from() -> None:
    jobs = workload((HIGH, 4, 0, DAY_S), (HIGH, 1, 1, DAY_S - 1), (HIGH, 4, 1, DAY_S - 1), nodes=(8,))
    back = seen(jobs, 2)

    assert [day.bound_pp for day in back.days] == pytest.approx([day.allocation_pp for day in back.days], abs=0.01)
    assert (back.num_moments, back.num_fitting) == (0, 0)


def test_a_day_that_somebody_could_win_is_not_called_lost() -> None:
    """A spot gang of all GPUs is stopped by a small job; who divides it would lose nothing."""
    arrivals = [(HIGH, 1.0, hour * 3600.0, 7200.0) for hour in range(1, 22, 3)]
    back = seen(workload((SPOT, 8, 0, DAY_S), *arrivals, nodes=(8,)), 1)
    (day,) = back.lower

    assert day.can_match_fifo
    assert day.idle_pp[IdleReason.TOO_WIDE] > 30
    assert day.idle_pp[IdleReason.SCATTERED] == day.idle_pp[IdleReason.FITS] == 0


def test_work_that_is_done_twice_is_allowed_to_everybody() -> None:
    """The gang loses half an hour each time; the day with it is as long as it was."""
    arrivals = [(HIGH, 8.0, hour * 3600.0 + 1800.0, 600.0) for hour in range(1, 12, 2)]
    back = seen(workload((SPOT, 8, 0, DAY_S / 2), *arrivals, nodes=(8,)), 1)
    (day,) = back.days

    assert day.allocation_pp > 0
    assert day.bound_pp == pytest.approx(day.allocation_pp, abs=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_nobody_allocates_more_than_the_bound_and_idle_time_adds_up(seed: int) -> None:
    jobs = philly_like(seed, load_share=1.1)
    num_days = int(jobs.job_submit_s[-1] // DAY_S) + 1
    ours = replay(jobs, find_policy("gfs", SpotQuota()), 0.0, num_days * DAY_S).daily()
    back = seen(jobs, num_days)

    for day in back.days:
        assert day.bound_pp >= day.allocation_pp - 1e-3
        assert sum(day.idle_pp.values()) == pytest.approx(100 * (1 - ours[day.number - 1]), abs=1e-6)
    assert back.num_fitting == 0 < back.num_moments


def test_a_table_has_the_lower_days_only() -> None:
    jobs = workload((SPOT, 4, 0, DAY_S), (SPOT, 1, 1, DAY_S - 1), (SPOT, 4, 1, DAY_S - 1), nodes=(8,))
    table = days_table([seen(jobs, 2)])

    assert [row[:3] for row in table.rows] == [("low", 7, 2)]
    assert len(table.columns) == len(table.rows[0]) == 7 + len(IdleReason)
