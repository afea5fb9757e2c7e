"""Quotas from evidence: what the forecast leaves free, corrected once for each promise, never above what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.cluster.contract import Evidence
from takeup.cluster.model import Offer
from takeup.cluster.quota.allocator import Goal, SpotPromise, SpotQuota, forecast_by
from takeup.errors import BadInput

CAPACITY = 64.0


class Known:
    """A forecast that was told: the same for every hour up to eight, more for higher probabilities."""

    def __init__(self, base: float = 20.0) -> None:
        self.base, self.num_updates = base, 0

    def update(self, evidence: Evidence) -> None:
        self.num_updates += 1

    def max_quantiles(self, hours: Sequence[float], probability: float) -> list[float]:
        return [self.base + 2 * each + 10 * probability for each in hours]


def evidence(now_s: float = 0.0, hourly: npt.ArrayLike = (), demand: float = 20.0, **changes: float) -> Evidence:
    rows = np.asarray(hourly, np.float64).reshape(-1, 1)
    basic = Evidence(now_s, CAPACITY, 64.0, 0.0, 0.0, ("o",), np.array([demand]), rows, idle_nodes=8)
    return replace(basic, **changes)  # type: ignore[arg-type]


def known(base: float = 20.0, **options: object) -> SpotQuota:
    return SpotQuota(make_forecast=lambda: Known(base), **options)  # type: ignore[arg-type]


def test_the_quota_is_what_demand_leaves_free_for_so_many_hours() -> None:
    quota = known().quota("A", evidence())

    assert quota.pool == "A"
    assert quota.gpus_by_hours == pytest.approx({0.5: 34, 1: 33, 2: 31, 4: 27, 8: 19})


def test_evictions_shrink_the_quota_of_their_pool_only() -> None:
    source = known()
    source.quota("A", evidence(300.0, num_broken=10))
    source.quota("B", evidence(300.0))

    assert source.coefficient("A") == pytest.approx(0.25, abs=0.01)
    assert source.coefficient("B") == source.coefficient("nowhere") == 1.0
    assert source.quota("A", evidence(600.0)).gpus_by_hours[1] == pytest.approx(33 * source.coefficient("A"))


def test_evidence_of_the_same_moment_counts_once() -> None:
    source, forecast = known(), Known()
    source.make_forecast = lambda: forecast
    for _ in range(5):
        source.quota("A", evidence(300.0, num_broken=2))
        source.menu("A", evidence(300.0, num_broken=2))

    assert source.coefficient("A") == pytest.approx(0.1 / (4 / 22))
    assert forecast.num_updates == 1


def test_without_feedback_the_coefficient_stays() -> None:
    source = known(has_feedback=False)
    source.quota("A", evidence(300.0, num_broken=50))

    assert source.coefficient("A") == 1.0


def test_an_empty_pool_has_something_to_offer_from_the_first_minute_on() -> None:
    offers = SpotQuota().offer("A", evidence(0.0, demand=0.0), 16)
    quota = SpotQuota().quota("A", evidence(300.0, demand=0.0))

    assert offers == (Offer("A", 16, 1.0, 0.99), Offer("A", 16, 4.0, 0.9), Offer("A", 16, 8.0, 0.8))
    assert quota.gpus_by_hours == pytest.approx({h: 64 - 16 * h**0.5 * 1.2815515655 for h in (0.5, 1, 2, 4, 8)})


def test_a_full_pool_has_nothing_to_offer_in_its_first_hour() -> None:
    now = evidence(300.0, demand=64.0, idle_gpus=0.0)

    assert set(SpotQuota().quota("A", now).gpus_by_hours.values()) == {0.0}
    assert SpotQuota().offer("A", now, 1) == ()


def test_level_demand_leaves_the_rest_free() -> None:
    quota = SpotQuota().quota("A", evidence(500 * 3600.0, np.full(500, 20.0)))

    assert quota.gpus_by_hours == pytest.approx(dict.fromkeys((0.5, 1, 2, 4, 8), 44.0), abs=1.0)


def test_demand_above_the_last_hour_shifts_the_forecast_at_once() -> None:
    hours = np.full(500, 20.0)
    quiet, busy = (
        SpotQuota().quota("A", evidence(500 * 3600.0, hours, demand)).gpus_by_hours[1] for demand in (20.0, 50.0)
    )

    assert busy == pytest.approx(quiet - 30.0, abs=1.0)


def test_hours_are_learnt_once_and_in_order_whatever_the_rhythm_of_questions() -> None:
    rng = np.random.default_rng(3)
    demand = 30 + np.cumsum(rng.normal(0, 1, 60)).clip(-20, 20)
    often, once = SpotQuota(), SpotQuota()
    for tick in range(60 * 12):
        often.quota("A", evidence(tick * 300.0, demand[: tick // 12], demand[tick // 12]))

    last = evidence(60 * 3600.0, demand, 30.0)
    assert often.quota("A", last).gpus_by_hours == once.quota("A", last).gpus_by_hours


def test_late_in_an_hour_a_promise_reaches_into_one_more() -> None:
    hours = np.tile([10.0, 10.0, 10.0, 40.0], 150)
    early, late = (
        SpotQuota(goal=Goal(0.9)).quota("A", evidence((600 + share) * 3600.0, hours, 10.0)).gpus_by_hours
        for share in (0.0, 0.9)
    )

    assert late[0.5] <= early[1.0]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 64), min_size=1, max_size=40), st.floats(0, 64), st.integers(0, 30), st.integers(0, 30))
def test_quotas_are_never_negative_nor_above_capacity_and_fall_with_hours(
    hourly: list[float], demand: float, kept: int, broken: int
) -> None:
    source = SpotQuota(make_forecast=forecast_by("persistence"))
    now = evidence(len(hourly) * 3600.0, hourly, demand, num_kept=kept, num_broken=broken, longest_wait_s=9999.0)
    quotas = list(source.quota("A", now).gpus_by_hours.values())
    table = np.array(source.menu("A", now).free_gpus)

    assert all(0.0 <= each <= CAPACITY for each in quotas)
    assert quotas == sorted(quotas, reverse=True)
    assert (np.diff(table, axis=0) <= 0).all()
    assert (np.diff(table, axis=1) <= 0).all()


def test_a_grown_coefficient_does_not_exceed_capacity() -> None:
    source = known(base=-20.0)
    for hour in range(10):
        quota = source.quota("A", evidence(hour * 3600.0, num_kept=9, longest_wait_s=9999.0))

    assert source.coefficient("A") == 4.0
    assert max(quota.gpus_by_hours.values()) == CAPACITY


def test_a_grown_coefficient_does_not_reach_promises_stronger_than_the_goal() -> None:
    source, fresh = known(), known()
    for hour in range(3):
        now = evidence(hour * 3600.0, num_kept=9, longest_wait_s=9999.0)
        grown, before = source.menu("A", now), fresh.menu("A", evidence(hour * 3600.0))
    weak, goal, strong = (np.array(grown.free_gpus)[:, place] for place in range(3))

    assert source.coefficient("A") == pytest.approx(1.5**2)
    assert strong.tolist() == [row[2] for row in before.free_gpus]
    assert goal.tolist() == pytest.approx([CAPACITY - (CAPACITY - row[1]) / 1.5**2 for row in before.free_gpus])
    assert (weak >= goal).all()


def test_an_offer_is_the_best_promise_for_a_job_that_could_start() -> None:
    offers = known().offer("A", evidence(), 20)

    assert offers == (Offer("A", 20, 4.0, 0.99), Offer("A", 20, 8.0, 0.8))


def test_a_gang_needs_whole_nodes_not_only_gpus() -> None:
    now = evidence(idle_gpus=32.0, idle_nodes=1)

    assert known().offer("A", now, 16, num_nodes=1) != ()
    assert known().offer("A", now, 16, num_nodes=2) == ()
    assert known().offer("A", now, 33) == ()


def with_nodes(high_nodes: npt.ArrayLike, **changes: float) -> Evidence:
    """Ten hours of level demand in GPUs, on so many of eight nodes of eight GPUs."""
    counted = np.asarray(high_nodes, np.float64)
    hours = len(counted)
    known = evidence(hours * 3600.0, np.full(hours, 8.0), 8.0, num_nodes=8, **changes)
    return replace(known, hourly_high_nodes=counted, high_nodes_now=float(counted[-1]))


def test_a_gang_gets_no_promise_of_nodes_on_which_high_priority_jobs_sit() -> None:
    packed, scattered = (with_nodes(np.full(500, nodes)) for nodes in (1.0, 7.0))
    enough, too_few = (SpotQuota().offer("A", now, 16, num_nodes=2) for now in (packed, scattered))

    assert enough != ()
    assert too_few == ()
    assert SpotQuota().offer("A", scattered, 16) == enough


def test_whole_nodes_are_forecast_as_gpus_are() -> None:
    counted = with_nodes(2 + np.arange(500) % 2)
    nodes = SpotQuota().node_menu("A", counted)
    alike = SpotQuota().menu("A", evidence(500 * 3600.0, 2 + np.arange(500) % 2, 3.0, capacity_gpus=8.0))

    assert nodes is not None
    assert nodes.free_gpus == alike.free_gpus
    assert 4.5 < nodes.free_gpus[2][1] <= 5.0  # within two hours there is one with three


def test_asking_for_nodes_later_or_from_the_beginning_gives_the_same_answer() -> None:
    often, once, series = SpotQuota(), SpotQuota(), 3 + np.sin(np.arange(60))
    for hour in range(1, 61):
        last = often.node_menu("A", with_nodes(series[:hour]))

    assert last == once.node_menu("A", with_nodes(series))


def test_nodes_that_guaranteed_jobs_hold_are_not_promised_again() -> None:
    free, held = (with_nodes(np.full(500, 1.0), guaranteed_gpus=gpus) for gpus in (0.0, 40.0))
    sold = [SpotPromise(1.0, 60.0, 0.8)]

    assert SpotQuota().offer("A", free, 8, num_nodes=4, sold=sold) != ()
    assert SpotQuota().offer("A", held, 8, num_nodes=4, sold=sold) == ()


def test_without_a_count_of_nodes_only_idle_ones_are_asked_for() -> None:
    assert known().node_menu("A", evidence()) is None
    assert known().node_menu("A", replace(evidence(3600.0, [20.0]), num_nodes=8)) is None
    assert known().offer("A", evidence(), 16, num_nodes=2) != ()


def test_what_was_sold_is_not_sold_again() -> None:
    now = evidence(guaranteed_gpus=30.0)
    shortly = [SpotPromise(30.0, 60.0, 0.8)]

    assert known().offer("A", now, 10) == ()
    assert known().offer("A", now, 3) == (Offer("A", 3, 0.5, 0.99), Offer("A", 3, 1.0, 0.9))
    assert known().offer("A", now, 4, sold=shortly)[0] == Offer("A", 4, 8.0, 0.99)


@pytest.mark.parametrize(("num_gpus", "num_nodes"), [(0, 0), (8, -1)])
def test_a_job_without_gpus_gets_an_error(num_gpus: int, num_nodes: int) -> None:
    with pytest.raises(BadInput, match="ask for one GPU or more"):
        known().offer("A", evidence(), num_gpus, num_nodes)


@pytest.mark.parametrize("hours", [(), (0.0,), (24.0,), (inf,)])
def test_hours_that_cannot_be_promised_are_refused(hours: tuple[float, ...]) -> None:
    with pytest.raises(BadInput, match="above 0 and up to 23"):
        SpotQuota(hours=hours)


def test_a_source_that_begins_goes_on_from_the_coefficient_in_force() -> None:
    source = known()
    quota = source.quota("A", replace(evidence(), coefficient=0.5))

    assert quota.gpus_by_hours[1] == pytest.approx(33 / 2)
    assert quota.coefficient == 0.5
    assert [known().quota("A", replace(evidence(), coefficient=it)).coefficient for it in (99.0, nan)] == [4.0, 0.25]
