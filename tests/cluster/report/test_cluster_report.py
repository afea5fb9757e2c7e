"""Tables and charts of cluster say what replays hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.cluster_outcomes import HOUR_S, outcome
from takeup.cluster.model import Evict, Grade, Hold, Job, Kind, Node, Offer, Quota, Run, SetQuota, Start, State, Waiting
from takeup.cluster.report.benefit import GpuPrices, benefit_of, benefit_series, benefit_table, days_table
from takeup.cluster.report.forecasts import (
    ForecastRun,
    OfferRequest,
    forecast_series,
    forecast_table,
    menu_table,
    next_hours_table,
    nodes_table,
    offers_table,
)
from takeup.cluster.report.live import DecisionLog, counts_table, decisions_table, prometheus, sentence, state_table
from takeup.cluster.report.outcomes import (
    allocation_series,
    classes_table,
    eviction_bars,
    eviction_series,
    pools_table,
    quota_series,
    schedulers_table,
    usage_bars,
    wait_bars,
)
from takeup.core.control import LoopCounters
from takeup.core.report import Cell, Series, Table
from takeup.errors import BadInput

PRICES = GpuPrices({"a": 2.0, "b": 3.0})


def cells(table: Table, row: int = 0) -> dict[str, Cell]:
    return dict(zip([column.name for column in table.columns], table.rows[row], strict=True))


def values(series: Series, key: str, **where: object) -> list[Cell]:
    return [row[key] for row in series.rows if all(row[name] == value for name, value in where.items())]


# Replays --------------------------------------------------------------------------------------------------------------


def test_the_three_eviction_rates_stand_side_by_side_and_differ() -> None:
    metrics = outcome().metrics()
    row = cells(schedulers_table([outcome()]))

    assert row["policy"] == "gfs"
    assert metrics.num_evictions == 1
    assert row["evictions per period"] == pytest.approx(100 * metrics.eviction_rate)
    assert row["evictions per start"] == pytest.approx(100 / 3)  # two runs of the evicted job, one of the other
    assert row["evictions per job"] == pytest.approx(1 / 2)
    assert len({row["evictions per period"], row["evictions per start"]}) == 2


def test_lost_work_is_what_was_not_saved() -> None:
    assert cells(schedulers_table([outcome()]))["lost"] == pytest.approx(8 * 0.5)
    assert cells(schedulers_table([outcome("fifo")]))["lost"] == 0


def test_both_classes_have_a_row_with_their_jobs_and_waits() -> None:
    table = classes_table([outcome(), outcome("fifo")])
    high, spot, fifo_high, _ = (cells(table, row) for row in range(4))

    assert [(row[0], row[1], row[2]) for row in table.rows] == [
        ("gfs", "high", 3), ("gfs", "spot", 2), ("fifo", "high", 3), ("fifo", "spot", 2),
    ]  # fmt: skip
    assert high["JQT mean"] == 0
    assert spot["JQT p99"] == pytest.approx(10 * HOUR_S + 40, rel=0.02)  # while the other one ran, with its overhead
    assert fifo_high["JQT mean"] == pytest.approx(5.5 * HOUR_S / 3)


def test_jobs_outside_the_window_are_not_counted() -> None:
    whole = outcome()
    late = replace(whole, from_s=70 * HOUR_S)

    assert cells(classes_table([late]))["jobs"] == 1
    assert sum(int(str(row[2])) for row in classes_table([whole]).rows) == 5


def test_every_pool_has_a_row_and_a_quota_only_where_somebody_asked() -> None:
    table = pools_table([outcome(), outcome("fifo")])

    assert [row[:3] for row in table.rows] == [("gfs", "a", 8), ("gfs", "b", 8), ("fifo", "a", 8), ("fifo", "b", 8)]
    assert isinstance(cells(table)["mean quota"], float)
    assert cells(table, 2)["mean quota"] is None
    assert cells(table)["allocation"] == pytest.approx(100 * outcome().metrics("a").allocation_rate)


# Charts ---------------------------------------------------------------------------------------------------------------


def test_bars_have_a_value_for_every_scheduler_and_quantity() -> None:
    both = [outcome(), outcome("fifo")]
    evictions, waits, usage = eviction_bars(both), wait_bars(both), usage_bars(both)

    assert len(evictions.rows) == 6
    assert values(evictions, "evictions", policy="fifo") == [0, 0, 0]
    assert values(waits, "mean JQT", policy="fifo", **{"class": "high priority"}) == [pytest.approx(5.5 * 60 / 3)]
    assert values(usage, "share", policy="gfs", **{"GPU time": "allocated"}) == [
        pytest.approx(100 * outcome().metrics().allocation_rate)
    ]


def test_what_runs_over_time_adds_up_to_the_allocation() -> None:
    series = allocation_series([outcome()])
    gpus = sum(float(str(value)) for value in values(series, "GPUs")) / 72

    assert gpus / 16 == pytest.approx(outcome().metrics().allocation_rate)
    assert values(series, "GPUs", **{"class": "high priority"})[25] == pytest.approx(12.0)
    assert series.facet is None
    assert allocation_series([outcome(), outcome("fifo")]).facet == "policy"


def test_long_lines_are_thinned_to_means() -> None:
    whole = outcome()
    hourly = np.tile(np.arange(1000.0)[None, :, None], (2, 1, 3)) * HOUR_S
    long = replace(whole, allocated_gpu_s=hourly, to_s=1000 * HOUR_S)
    series = allocation_series([long])
    high = [float(str(value)) for value in values(series, "GPUs", **{"class": "high priority"})]

    assert len(high) == 250
    assert high[0] == pytest.approx(2 * np.mean(range(4)))
    assert np.mean(high) == pytest.approx(2 * 499.5)


def test_demand_capacity_and_quota_are_drawn_for_every_pool() -> None:
    series = quota_series(outcome())

    assert series.facet == "pool"
    assert set(values(series, "GPUs", pool="a", what="capacity")) == {8.0}
    assert values(series, "GPUs", pool="b", what="high-priority demand")[10] == 4.0
    assert all(isinstance(value, float) for value in values(series, "GPUs", what="quota"))


def test_evictions_are_drawn_in_the_hour_in_which_they_happened() -> None:
    series = eviction_series([outcome()])

    assert [row["day"] for row in series.rows if row["evictions an hour"]] == [pytest.approx(1.0)]


# Money ----------------------------------------------------------------------------------------------------------------


def test_a_benefit_is_the_priced_difference_of_hours_that_count() -> None:
    found = benefit_of(outcome(), outcome("fifo"), PRICES)
    held = outcome().allocated_gpu_s - outcome().wasted_gpu_s - outcome("fifo").allocated_gpu_s
    by_hand = np.array([(held[pool, :72].sum() / HOUR_S) * price for pool, price in enumerate((2.0, 3.0))])

    assert found.num_days == 3
    assert found.usd.sum(axis=1) == pytest.approx(by_hand, abs=1e-4)
    assert found.lost_gpu_h.sum() == pytest.approx(4.0)
    assert found.month_usd() == pytest.approx(10 * by_hand.sum(), abs=1e-3)


def test_the_same_replay_brings_nothing_with_certainty() -> None:
    found = benefit_of(outcome(), outcome(), PRICES)
    interval = found.interval_usd(seed=1)

    assert interval is not None
    assert (found.month_usd(), interval.low, interval.high) == (0, 0, 0)


def test_hours_of_high_priority_jobs_may_have_another_price() -> None:
    free = GpuPrices(PRICES.spot, {"a": 0.0, "b": 0.0})
    found, only_spot = (benefit_of(outcome(), outcome("fifo"), prices) for prices in (PRICES, free))

    assert (only_spot.usd - (only_spot.spot_gpu_h * np.array([[2.0], [3.0]]))) == pytest.approx(0)
    assert not np.allclose(found.usd, only_spot.usd)


@given(st.lists(st.floats(-1000, 1000), min_size=2, max_size=40))
def test_the_interval_holds_the_mean_and_follows_the_seed(days: list[float]) -> None:
    found = replace(benefit_of(outcome(), outcome(), PRICES), usd=np.array([days]))
    interval = found.interval_usd(seed=3)

    assert interval is not None
    assert interval.low - 1e-6 <= found.month_usd() <= interval.high + 1e-6
    assert interval == found.interval_usd(seed=3)


def test_one_day_has_no_interval() -> None:
    found = benefit_of(outcome(to_h=24.0), outcome("fifo", to_h=24.0), PRICES)
    row = cells(benefit_table(found, 1))

    assert found.num_days == 1
    assert (row["from"], row["to"]) == (None, None)


def test_tables_of_benefit_add_up() -> None:
    found = benefit_of(outcome(), outcome("fifo"), PRICES)
    table, days = benefit_table(found, 1), days_table(found)

    assert [row[0] for row in table.rows] == ["a", "b", "all"]
    assert cells(table, 2)["a month"] == pytest.approx(float(str(table.rows[0][6])) + float(str(table.rows[1][6])))
    assert cells(table)["spot price"] == cells(table)["high price"] == 2.0
    assert sum(float(str(row[-1])) for row in days.rows) == pytest.approx(found.usd.sum())
    assert len(benefit_series(found).rows) == 6


@pytest.mark.parametrize(
    ("change", "words"),
    [({"to_s": 20 * HOUR_S}, "different fleets or windows"), ({"pools": ("a", "c")}, "different fleets")],
)
def test_replays_of_different_things_are_not_compared(change: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        benefit_of(outcome(), replace(outcome("fifo"), **change), PRICES)  # type: ignore[arg-type]


def test_a_window_without_a_whole_day_and_a_pool_without_a_price_are_refused() -> None:
    short = replace(outcome(), to_s=20 * HOUR_S)
    with pytest.raises(BadInput, match="no whole day"):
        benefit_of(short, short, PRICES)
    with pytest.raises(BadInput, match="pool 'b' has no price"):
        benefit_of(outcome(), outcome(), GpuPrices({"a": 1.0}))


# Promises -------------------------------------------------------------------------------------------------------------

ASKED = OfferRequest(
    pool="a", num_gpus=16, num_nodes=2, capacity_gpus=100, idle_gpus=20, idle_nodes=2, promised_gpus=12,
    coefficient=0.9, num_hours_known=48, hours=(1.0, 4.0), probabilities=(0.9, 0.99),
    free_gpus=((30.0, 20.0), (15.0, 5.0)), left_gpus=((18.0, 8.0), (3.0, 0.0)),
)  # fmt: skip


def test_an_offer_says_why() -> None:
    table = offers_table(ASKED, [Offer("a", 16, 1.0, 0.9)])
    promised, opportunistic = (cells(table, row) for row in range(2))

    assert table.title == "Offers for 16 GPUs on 2 whole nodes in a"
    assert (promised["hours"], promised["kept with"]) == (1.0, 90.0)
    assert "leaves 30 of 100 GPUs free for 1 h with 90%, 18 of them not promised" in str(promised["why"])
    assert (opportunistic["hours"], opportunistic["kept with"]) == (0.0, None)


@pytest.mark.parametrize(
    ("change", "words", "can_start"),
    [
        ({"idle_gpus": 4}, "16 GPUs were asked for and 4 are idle", False),
        ({"idle_nodes": 1}, "2 whole nodes were asked for and 1 are idle", False),
        ({}, "the forecast leaves 30 GPUs free for 1 h, and 12 are promised", True),
        ({"free_nodes": ((1.4, 1.0), (0.0, 0.0))}, "the forecast leaves 1 whole nodes free for 1 h", True),
    ],
)
def test_a_refusal_says_why_and_idle_gpus_can_always_be_had_without_a_promise(
    change: dict[str, object], words: str, can_start: bool
) -> None:
    table = offers_table(replace(ASKED, **change), [])  # type: ignore[arg-type]

    assert len(table.rows) == can_start
    assert words in (str(table.rows[0][-1]) if can_start else table.note)


def test_the_menu_shows_what_is_free_and_what_is_left() -> None:
    table = menu_table(ASKED)

    assert table.rows == ((1.0, 30.0, 18.0, 20.0, 8.0), (4.0, 15.0, 3.0, 5.0, 0.0))
    assert "0.90" in table.note
    assert "48 hours" in table.note


def test_whole_nodes_stand_by_hours_and_probabilities() -> None:
    table = nodes_table(replace(ASKED, free_nodes=((3.0, 2.0), (1.0, 0.0))))

    assert table.rows == ((1.0, 3.0, 2.0), (4.0, 1.0, 0.0))
    assert [column.unit for column in table.columns] == ["h", "nodes", "nodes"]


def test_before_an_hour_is_over_the_menu_says_what_it_guesses() -> None:
    assert "no hour is over yet" in menu_table(replace(ASKED, num_hours_known=0)).note


def test_the_bound_of_demand_is_drawn_beside_the_quota_where_a_forecast_told() -> None:
    known = np.full_like(outcome().quota_gpus, np.nan)
    known[0, 5] = 7.0
    told = quota_series(replace(outcome(), demand_below_gpus=known))
    untold = replace(outcome(), demand_below_gpus=None)
    bound = [(row["pool"], row["GPUs"]) for row in told.rows if row["what"] == "demand stays below"]

    assert bound == [(outcome().pools[0], 7.0)]
    assert not any(row["what"] == "demand stays below" for row in quota_series(untold).rows)


# Forecasts ------------------------------------------------------------------------------------------------------------

RUN = ForecastRun(
    "anchored", ("a", "b"), 0.9, 2, 10, bound=np.array([[5.0, 1.0], [5.0, 1.0]]), median=np.array([[4.0, 1.0]] * 2),
    highest=np.array([[4.0, 1.0], [7.0, 1.0]]), coming=np.array([[6.0, 9.0], [1.0, 2.0]]),
)  # fmt: skip


def test_scores_of_a_forecast_by_hand() -> None:
    row = cells(forecast_table([RUN]))

    assert RUN.pinball == pytest.approx((0.1 * 1 + 0.9 * 2) / 4)
    assert row["coverage"] == pytest.approx(75)
    assert row["median off by"] == pytest.approx(3 / 4)
    assert (row["reserved"], row["needed"]) == (6.0, 6.5)


def test_the_next_hours_leave_what_demand_does_not_take() -> None:
    table = next_hours_table(RUN, np.array([8.0, 4.0]))

    assert table.rows == (("a", 8.0, 6.0, 9.0, 2.0, 0.0), ("b", 4.0, 1.0, 2.0, 3.0, 2.0))


def test_what_was_said_and_what_came_are_drawn_at_the_hour_they_were_said() -> None:
    series = forecast_series(RUN)

    assert values(series, "day", pool="a", what="came") == [pytest.approx(10 / 24), pytest.approx(11 / 24)]
    assert values(series, "GPUs", pool="a", what="came") == [4.0, 7.0]
    assert values(series, "GPUs", pool="a", what="90% bound") == [5.0, 5.0]


# Decisions ------------------------------------------------------------------------------------------------------------

START = Start("j", ("n0", "n1", "n2", "n3"), Grade.HIGH, "it fits")
QUOTA = SetQuota(Quota("a", {1.0: 12.0}), "the forecast says so")


def test_a_decision_is_a_sentence_with_its_reason() -> None:
    assert sentence(START) == "start j on n0, n1, n2 and 1 more: it fits"
    assert sentence(Evict("s", "j", 10.0, "j needs room", 60.0)) == "evict s in 60 s: j needs room"
    assert sentence(QUOTA) == "promise in a at most 12 GPUs for 1 h: the forecast says so"
    assert sentence(Hold("w", "no room")) == "hold w: no room"


def test_news_are_told_once_and_everything_is_counted() -> None:
    diary = DecisionLog()
    first = [diary.note(decision, "dry run") for decision in (START, QUOTA, Hold("w", "no room"))]
    again = [diary.note(decision, "dry run") for decision in (START, QUOTA)]

    assert (first, again) == ([True, True, False], [False, False])
    assert diary.note(START, "applied")
    assert counts_table(diary).rows == (
        ("hold", "dry run", 1), ("set quota", "dry run", 2), ("start", "applied", 1), ("start", "dry run", 2),
    )  # fmt: skip
    assert [row[0] for row in decisions_table(diary).rows] == ["dry run", "dry run", "applied"]


def test_prometheus_text_has_quotas_by_hours_and_escaped_labels() -> None:
    diary = DecisionLog()
    diary.note(QUOTA, "applied")
    state = State(0.0, (Node("n", 'a"b', 8),), (), (), {'a"b': Quota('a"b', {1.0: 12.5, 0.5: 20.0})})
    lines = prometheus(LoopCounters(num_rounds=3), diary, state).splitlines()

    assert 'takeup_cluster_quota_gpus{pool="a\\"b",hours="0.5"} 20' in lines
    assert 'takeup_cluster_used_gpus{pool="a\\"b",grade="guaranteed"} 0' in lines
    assert 'takeup_cluster_decisions_total{decision="set quota",outcome="applied"} 1' in lines
    assert not any("gauge" in line for line in prometheus(LoopCounters(), diary, None).splitlines())


def test_the_state_is_shown_by_pool() -> None:
    spot, high = (Job(kind.name, kind, "us", "a", 2.0) for kind in (Kind.SPOT, Kind.HIGH))
    nodes = (Node("n0", "a", 8), Node("n1", "b", 4))
    state = State(0.0, nodes, (Run(spot, ("n0",), 0.0, Grade.GUARANTEED, 0.0),), (Waiting(high, 0.0),))

    assert state_table(state).rows == (("a", 8.0, 0.0, 2.0, 0.0, 6.0, 1), ("b", 4.0, 0.0, 0.0, 0.0, 4.0, 0))
