"""What iterations take without what is special about them."""

from __future__ import annotations

import numpy as np
import pytest

from takeup.training.stragglers.detect.detector import Covariates


def test_plain_iterations_pass_unchanged() -> None:
    covariates = Covariates()

    assert [covariates.as_usual_s(time_s) for time_s in (1.0, 1.1, 0.9)] == [1.0, 1.1, 0.9]


def test_special_iterations_are_left_out_until_they_are_known() -> None:
    covariates = Covariates()
    found = [covariates.as_usual_s(3.0, "save") if n % 5 == 4 else covariates.as_usual_s(1.0) for n in range(30)]

    assert found[4] is None
    assert found[9] is None
    assert found[24] == pytest.approx(1.0)
    assert found[29] == pytest.approx(1.0)


def test_a_special_iteration_of_a_slow_job_is_as_slow_as_the_others() -> None:
    covariates = Covariates()
    for n in range(40):
        covariates.as_usual_s(3.0 if n % 5 == 4 else 1.0, "save" if n % 5 == 4 else None)
    slow = [covariates.as_usual_s(1.5) for _ in range(4)]

    assert slow == [1.5] * 4
    assert covariates.as_usual_s(3.5, "save") == pytest.approx(1.5)


def test_what_becomes_usual_is_usual() -> None:
    covariates = Covariates()
    for _ in range(10):
        covariates.as_usual_s(1.0, "a")
    found = [covariates.as_usual_s(1.0, "b") for _ in range(80)]

    assert found[0] is None
    assert found[-1] == 1.0


def test_times_are_compared_along_their_work() -> None:
    random, covariates = np.random.default_rng(0), Covariates()
    work = random.uniform(0.5, 1.5, 100)
    found = [covariates.as_usual_s(0.2 + amount, None, (amount,)) for amount in work.tolist()]
    settled = np.array(found[20:], float)

    assert settled.std() / settled.mean() < 1e-6
    assert covariates.as_usual_s(2 * (0.2 + 1.5), None, (1.5,)) == pytest.approx(2 * settled.mean(), rel=0.1)


def test_work_that_does_not_vary_is_ignored() -> None:
    covariates = Covariates()
    for n in range(40):
        assert covariates.as_usual_s(1.0 + 0.01 * n, None, (8.0,)) == 1.0 + 0.01 * n
