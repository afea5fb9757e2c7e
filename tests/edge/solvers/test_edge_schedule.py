"""Turns on the CPU, by hand and against one another."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.edge.solvers.partial_plan import latest_starts, starts_with_one_more
from takeup.papers.edge.joint import run_in_order

TASKS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5)), max_size=6)


def test_everyone_runs_as_late_as_those_after_it_allow() -> None:
    starts_s = latest_starts(np.array([10.0, 4.0, 9.0]), np.array([3.0, 1.0, 3.0]))

    assert starts_s.tolist() == [7.0, 3.0, 4.0]


def test_a_task_that_does_not_fit_would_have_to_begin_before_zero() -> None:
    assert latest_starts(np.array([2.0, 2.0]), np.array([1.5, 1.0])).min() == -0.5


@given(tasks=TASKS, newcomers=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5)), min_size=1, max_size=4))
def test_one_more_task_is_placed_as_if_all_were_placed_anew(
    tasks: list[tuple[int, int]], newcomers: list[tuple[int, int]]
) -> None:
    old, new = np.array(tasks, np.float64).reshape(-1, 2), np.array(newcomers, np.float64)
    own_s, others_s = starts_with_one_more(old[:, 0], old[:, 1], new[:, 0], new[:, 1])

    for row, newcomer in enumerate(new):
        anew = latest_starts(np.append(old[:, 0], newcomer[0]), np.append(old[:, 1], newcomer[1]))
        assert [*others_s[row], own_s[row]] == anew.tolist()


def test_early_turns_wait_for_uploads_and_refuse_what_would_be_late() -> None:
    starts_s = run_in_order(np.array([1.0, 0.5, 0.5]), np.array([3.0, 4.0, 9.0]), np.array([1.5, 2.0, 2.0]))

    assert starts_s[0] == 1.0
    assert math.isnan(starts_s[1])
    assert starts_s[2] == pytest.approx(2.5)


@given(tasks=TASKS)
def test_early_turns_never_overlap_and_are_never_late(tasks: list[tuple[int, int]]) -> None:
    deadlines_s, run_s = np.array(tasks, np.float64).reshape(-1, 2).T
    starts_s = run_in_order(np.zeros(len(tasks)), deadlines_s, run_s)

    ran = ~np.isnan(starts_s)
    order = np.argsort(starts_s[ran])
    ends_s = (starts_s + run_s)[ran][order]
    assert (ends_s <= deadlines_s[ran][order]).all()
    assert (ends_s[:-1] <= starts_s[ran][order][1:]).all()
