"""Laws that hold whatever happens: of the embedded cluster, of money, of forecasts' scores and of offers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.cluster_outcomes import HOUR_S, outcome, workload
from support.embedded_cluster import EmbeddedEngine
from takeup.cluster.model import Evict, Grade, Kind, Start, State
from takeup.cluster.quota.allocator import Menu, SpotPromise
from takeup.cluster.report.benefit import GpuPrices, benefit_of
from takeup.cluster.report.forecasts import ForecastRun, OfferRequest, offers_table
from takeup.cluster.scheduling.outcome import Outcome
from takeup.core.arrays import Floats
from takeup.core.clock import VirtualClock
from takeup.errors import BadInput

# The embedded cluster -------------------------------------------------------------------------------------------------

jobs_of_a_day = st.lists(
    st.tuples(
        st.sampled_from([0, 1]),
        st.sampled_from([0, 1]),
        st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0, 8.0]),
        st.integers(1, 3),
        st.integers(0, 20).map(lambda n: n / 2),
        st.integers(1, 12).map(lambda n: n / 4),
    ),
    min_size=1,
    max_size=8,
)
moves = st.lists(
    st.tuples(st.sampled_from(["start", "evict", "wait"]), st.integers(0, 9), st.integers(0, 3)), max_size=40
)


def used_by_node(state: State) -> dict[str, float]:
    used = {node.name: 0.0 for node in state.nodes}
    for run in state.runs:
        for name in run.nodes:
            used[name] += run.job.gpus_per_worker
    return used


def try_to(engine: EmbeddedEngine, what: str, job: int, node: int, now_h: float) -> None:
    """One move, allowed or not."""
    name = f"job-{job}"
    if what == "wait":
        engine.clock.run(now_h * HOUR_S)
        return
    waiting = {it.job.id: it.job for it in engine.observe().waiting}
    workers = waiting[name].num_workers if name in waiting else 1
    try:
        if what == "start":
            grade = Grade.HIGH if name in waiting and waiting[name].kind == Kind.HIGH else Grade.OPPORTUNISTIC
            engine.apply(Start(name, (f"node-{node}",) * workers, grade, "try"))
        else:
            engine.apply(Evict(name, "", 0.0, "try"))
    except BadInput:
        return


@settings(max_examples=60)
@given(jobs_of_a_day, moves)
def test_no_node_is_ever_overfull_and_no_job_is_lost(
    jobs: list[tuple[int, int, float, int, float, float]], script: list[tuple[str, int, int]]
) -> None:
    given_workload = workload(jobs, {"a": 2, "b": 2})
    engine = EmbeddedEngine(given_workload, VirtualClock())
    for step, (what, job, node) in enumerate(script):
        try_to(engine, what, job, node, now_h=(step + 1) / 2)
        state = engine.observe()
        num_arrived = int((given_workload.job_submit_s <= state.now_s).sum())

        assert all(used <= 8 + 1e-9 for used in used_by_node(state).values())
        assert len(state.runs) + len(state.waiting) + engine.num_finished == num_arrived
        assert all(run.start_s <= run.saved_s <= state.now_s for run in state.runs)
        assert not {run.job.id for run in state.runs} & {it.job.id for it in state.waiting}
        assert {eviction.job_id for eviction in state.evictions}.isdisjoint(
            run.job.id for run in state.runs if run.grade == Grade.HIGH
        )


# Money ----------------------------------------------------------------------------------------------------------------

PRICES = GpuPrices({"a": 2.0, "b": 3.0})
hours = st.lists(st.floats(0, 16), min_size=72, max_size=72).map(lambda values: np.array(values) * HOUR_S)


def with_hours(gpu_s: Floats) -> Outcome:
    """Three days in which pool `a` had these guaranteed GPU-seconds, and nothing was lost."""
    allocated = np.zeros_like(outcome().allocated_gpu_s)
    allocated[0, :72, Grade.GUARANTEED] = gpu_s
    return replace(outcome(), allocated_gpu_s=allocated, wasted_gpu_s=np.zeros_like(allocated))


@given(hours, hours)
def test_what_one_gains_the_other_loses(ours: Floats, theirs: Floats) -> None:
    there, back = (
        benefit_of(with_hours(first), with_hours(second), PRICES) for first, second in ((ours, theirs), (theirs, ours))
    )

    assert there.usd == pytest.approx(-back.usd)
    assert there.month_usd() == pytest.approx(-back.month_usd())


@given(hours, st.floats(0, 100))
def test_a_benefit_is_proportional_to_its_price(ours: Floats, price: float) -> None:
    one, many = (
        benefit_of(with_hours(ours), with_hours(ours * 0), GpuPrices({"a": usd, "b": 1.0})) for usd in (1.0, price)
    )

    assert many.usd == pytest.approx(price * one.usd, abs=1e-6)
    assert one.usd[0].sum() == pytest.approx(ours.sum() / HOUR_S, abs=1e-4)


@given(hours, st.integers(0, 71), st.floats(0, 10))
def test_lost_work_is_not_paid(ours: Floats, hour: int, lost_gpu_h: float) -> None:
    whole = with_hours(ours)
    wasted = whole.wasted_gpu_s.copy()
    wasted[0, hour, Grade.GUARANTEED] = lost_gpu_h * HOUR_S
    found = benefit_of(replace(whole, wasted_gpu_s=wasted), whole, PRICES)

    assert found.usd.sum() == pytest.approx(-2.0 * lost_gpu_h, abs=1e-4)
    assert found.usd[:, np.arange(3) != hour // 24] == pytest.approx(0)


# Scores ---------------------------------------------------------------------------------------------------------------

levels = st.lists(st.floats(0, 100), min_size=4, max_size=4).map(lambda values: np.array(values).reshape(2, 2))


def forecast_run(bound: Floats, highest: Floats, level: float = 0.9) -> ForecastRun:
    return ForecastRun("m", ("a", "b"), level, 1, 0, bound, bound, highest, bound[:, :1])


@given(levels, levels)
def test_a_pinball_loss_is_never_negative_and_nothing_for_an_oracle(bound: Floats, highest: Floats) -> None:
    assert forecast_run(bound, highest).pinball >= 0
    assert forecast_run(highest, highest).pinball == 0
    assert forecast_run(highest, highest).coverage == 1


@given(levels, st.floats(0.1, 50))
def test_at_ninety_percent_too_little_costs_nine_times_as_much_as_too_much(highest: Floats, gap: float) -> None:
    low, high = (forecast_run(highest + sign * gap, highest).pinball for sign in (-1, 1))

    assert low == pytest.approx(9 * high, rel=1e-6)


# Offers ---------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.lists(st.tuples(st.integers(1, 30), st.floats(0.1, 5)), max_size=4), st.integers(0, 60))
def test_every_offer_that_is_shown_fits_what_is_left(
    num_gpus: int, sold: list[tuple[int, float]], idle_gpus: int
) -> None:
    menu = Menu("a", (1.0, 4.0), (0.8, 0.9), ((50.0, 30.0), (25.0, 15.0)))
    promises = [SpotPromise(gpus, until_h * HOUR_S, 0.9) for gpus, until_h in sold]
    left = menu.available(promises, 0.0)
    asked = OfferRequest(
        pool="a", num_gpus=num_gpus, num_nodes=0, capacity_gpus=100, idle_gpus=idle_gpus, idle_nodes=0,
        promised_gpus=float(sum(gpus for gpus, _ in sold)), coefficient=1.0, num_hours_known=9, hours=menu.hours,
        probabilities=menu.probabilities, free_gpus=menu.free_gpus, left_gpus=left,
    )  # fmt: skip
    offers = menu.offers(num_gpus, promises, 0.0) if asked.can_start else ()
    table = offers_table(asked, offers)

    assert bool(table.rows) == (num_gpus <= idle_gpus)
    for hours_promised, kept_with, gpus, _ in table.rows:
        if kept_with is not None:
            row = menu.hours.index(float(str(hours_promised)))
            column = menu.probabilities.index(float(str(kept_with)) / 100)
            assert left[row][column] >= float(str(gpus))
    assert table.note == "" or not table.rows
