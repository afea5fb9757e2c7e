"""Why nobody who serves high-priority jobs at once allocates as much as FIFO in every window: all schedules are tried.

Two GPUs. A spot gang needs both for ten hours; from its second hour on, every third hour brings a high-priority job of
one GPU and two hours. FIFO runs the gang to its end and lets the others wait. Whoever starts them at once can run the
gang in the hours between only. Here schedulers may even know the future, stop and continue the gang without losing
anything, and leave GPUs idle: each of the hours is tried with the gang and without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, product

import numpy as np
import pytest

from cluster.simulate.cluster_traces import HIGH, SPOT, workload
from takeup.cluster.contract import StaticQuota
from takeup.cluster.model import Workload
from takeup.cluster.policies import POLICIES, find_policy
from takeup.cluster.simulate import replay

HOUR_S, NUM_GPUS, GANG_H, NUM_HOURS = 3600.0, 2, 10, 11
ARRIVALS_H, HIGH_H = (1, 4, 7), 2
Hours = Sequence[int]


def high_gpus() -> Hours:
    """GPUs of high-priority jobs in each hour, if none of them ever waits."""
    return [sum(begin <= hour < begin + HIGH_H for begin in ARRIVALS_H) for hour in range(NUM_HOURS)]


def served_at_once() -> list[Hours]:
    """GPUs in use in each hour, under every schedule in which no high-priority job waits."""
    high = high_gpus()
    found: list[Hours] = []
    for wanted in product((False, True), repeat=NUM_HOURS):
        runs = [is_wanted and not busy for is_wanted, busy in zip(wanted, high, strict=True)]
        if sum(runs) <= GANG_H:
            found.append([NUM_GPUS * ran + busy for ran, busy in zip(runs, high, strict=True)])
    return found


def jobs() -> Workload:
    """The same as a workload."""
    arrivals = [(HIGH, 1.0, hour * HOUR_S, HIGH_H * HOUR_S) for hour in ARRIVALS_H]
    return workload((SPOT, NUM_GPUS, 0.0, GANG_H * HOUR_S), *arrivals, nodes=(NUM_GPUS,))


def lived(name: str) -> tuple[Hours, float]:
    """GPUs in use in each hour under a scheduler of ours, and how long high-priority jobs waited on average."""
    outcome = replay(jobs(), find_policy(name, StaticQuota(0.0)), to_s=NUM_HOURS * HOUR_S)
    gpus = outcome.allocated_gpu_s.sum(axis=(0, 2))[:NUM_HOURS] / HOUR_S
    return np.round(gpus, 6).tolist(), outcome.metrics().high_jqt_s.mean


def windows(hours: Hours, num_hours: int) -> Hours:
    """GPU-hours used in each window of so many hours."""
    return [sum(hours[begin : begin + num_hours]) for begin in range(0, NUM_HOURS - num_hours + 1, num_hours)]


def is_never_below(ours: Hours, theirs: Hours) -> bool:
    return all(mine >= other for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("num_hours", range(1, NUM_HOURS + 1))
def test_no_schedule_without_waiting_high_priority_jobs_is_above_fifo_in_every_window(num_hours: int) -> None:
    fifo, _ = lived("fifo")
    schedules = served_at_once()

    assert not any(is_never_below(windows(each, num_hours), windows(fifo, num_hours)) for each in schedules)
    assert len(schedules) == 2**NUM_HOURS


def test_no_such_schedule_has_delivered_as_much_in_all_after_the_second_hour() -> None:
    fifo = list(accumulate(lived("fifo")[0]))
    most = np.max([list(accumulate(each)) for each in served_at_once()], axis=0)

    assert (most[1:GANG_H] < fifo[1:GANG_H]).all()


def test_fifo_pays_for_it_with_the_waits_of_high_priority_jobs() -> None:
    gpus, waited_s = lived("fifo")

    assert gpus[:GANG_H] == [NUM_GPUS] * GANG_H
    assert waited_s == pytest.approx(HOUR_S * (9 + 6 + 5) / 3)  # two begin after ten hours, the third after twelve


@pytest.mark.parametrize("name", sorted({"kube", "slurm", "lyra_published"} & set(POLICIES)))
def test_schedulers_that_evict_at_once_are_among_those_schedules(name: str) -> None:
    gpus, waited_s = lived(name)

    assert waited_s == 0
    assert any(is_never_below(each, np.floor(gpus).tolist()) for each in served_at_once())


def test_who_evicts_somebody_who_runs_past_midnight_allocates_less_on_the_day() -> None:
    """The second job waits for an hour under FIFO. Who starts it at once leaves an hour of spot work for tomorrow."""
    first, second, spot = (HIGH, 1.0, 0.0, 2 * HOUR_S), (HIGH, 1.0, HOUR_S, HOUR_S), (SPOT, 1.0, 0.0, 48 * HOUR_S)
    day = workload(first, spot, second, nodes=(NUM_GPUS,), checkpoint_s=60.0)
    used_h, waited_s = {}, {}
    for name in ("fifo", "kube"):
        outcome = replay(day, find_policy(name, StaticQuota(0.0)), to_s=24 * HOUR_S)
        used_h[name] = float(outcome.allocated_gpu_s[:, :24].sum()) / HOUR_S
        waited_s[name] = outcome.metrics().high_jqt_s.mean

    assert used_h == pytest.approx({"fifo": 2 + 24 + 1, "kube": 2 + 24}, abs=60 / HOUR_S)  # of overhead
    assert waited_s == pytest.approx({"fifo": HOUR_S / 2, "kube": 0.0})
