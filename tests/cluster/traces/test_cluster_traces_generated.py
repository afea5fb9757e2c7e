"""The generated fleet has the published statistics, and is cut and scaled as asked."""

from __future__ import annotations

import numpy as np
import pytest

from takeup.cluster.model import Kind, Workload
from takeup.cluster.traces import PRESETS, generate
from takeup.cluster.traces.fleet_statistics import DURATION_LAW, NUM_JOBS, NUM_SPOT_JOBS, PROFILES
from takeup.cluster.traces.generator import cut_before, mean_gpus, wrap
from takeup.core.arrays import Floats
from takeup.core.seeds import Streams
from takeup.errors import BadInput, UnknownName

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def fleet() -> Workload:
    return generate("v2026", Streams(7))


def num_gpus(workload: Workload) -> Floats:
    return workload.job_gpus * workload.job_workers


def shares(values: Floats, bounds: list[float], weights: Floats | None = None) -> Floats:
    counts = np.histogram(values, bounds, weights=weights)[0]
    return np.asarray(counts / counts.sum())


def hourly_demand(workload: Workload, pool: int, num_hours: int) -> Floats:
    mine = workload.job_pool == pool
    begin = (workload.job_submit_s[mine] // 3600).astype(np.int64)
    end = np.minimum((workload.job_submit_s + workload.job_duration_s)[mine] // 3600, num_hours).astype(np.int64)
    gpus = num_gpus(workload)[mine]
    change = np.bincount(begin, gpus, num_hours + 2) - np.bincount(end + 1, gpus, num_hours + 2)
    return np.asarray(np.cumsum(change)[:num_hours])


def test_the_full_fleet_has_the_published_counts(fleet: Workload) -> None:
    assert fleet.num_jobs == NUM_JOBS
    assert fleet.num_nodes == 4278
    assert int(fleet.node_gpus.sum()) == 10_412
    assert (fleet.job_kind == Kind.SPOT).sum() == pytest.approx(NUM_SPOT_JOBS, abs=3)
    assert len(fleet.organisations) == 84


def test_each_model_has_its_jobs_and_its_share_of_gpu_seconds(fleet: Workload) -> None:
    gpu_s = np.bincount(fleet.job_pool, num_gpus(fleet) * fleet.job_duration_s)
    published = {
        "A10": 52.8e9, "A100-SXM4-80GB": 40.8e9, "GPU-series-1": 18.8e9,
        "H800": 17.7e9, "GPU-series-2": 10.4e9, "A800-SXM4-80GB": 1.89e9,
    }  # fmt: skip

    assert dict(zip(fleet.pools, np.bincount(fleet.job_pool).tolist(), strict=True)) == {
        name: profile.num_jobs for name, profile in PROFILES.items()
    }
    assert dict(zip(fleet.pools, gpu_s.tolist(), strict=True)) == pytest.approx(published, rel=0.2)


def test_durations_follow_the_published_shares_and_medians(fleet: Workload) -> None:
    bounds = [0.0, 60.0, 600.0, 3600.0, 21_600.0, DAY_S, 3 * DAY_S, np.inf]
    spot = fleet.job_duration_s[fleet.job_kind == Kind.SPOT]
    high = fleet.job_duration_s[fleet.job_kind == Kind.HIGH]
    gpu_s = num_gpus(fleet) * fleet.job_duration_s

    assert shares(fleet.job_duration_s, bounds) == pytest.approx(
        [0.124, 0.247, 0.349, 0.140, 0.061, 0.019, 0.060], abs=0.01
    )
    assert shares(fleet.job_duration_s, bounds, gpu_s) == pytest.approx(
        [0, 0.001, 0.009, 0.033, 0.071, 0.102, 0.784], abs=0.03
    )
    assert np.median(fleet.job_duration_s) == pytest.approx(1216, rel=0.06)
    assert np.median(high) == pytest.approx(1101, rel=0.1)
    assert np.quantile(spot, [0.5, 0.9]) == pytest.approx([2095.5, 21_740], rel=0.05)


def test_spot_jobs_take_the_published_gpu_time_and_those_of_days_are_no_gangs(fleet: Workload) -> None:
    spot = fleet.job_kind == Kind.SPOT
    gpu_s = (num_gpus(fleet) * fleet.job_duration_s)[spot]

    assert gpu_s.sum() == pytest.approx(3.453e9, rel=0.12)
    assert fleet.job_workers[spot & (fleet.job_duration_s >= 3 * DAY_S)].max() == 1


def test_sizes_follow_the_published_shares(fleet: Workload) -> None:
    gpus = shares(num_gpus(fleet), [0, 0.99, 1.01, 4.5, 8.5, 16.5, 32.5, 64.5, 128.5, np.inf])
    workers = shares(fleet.job_workers.astype(np.float64), [1, 1.5, 8.5, 32.5, 128.5, np.inf])

    assert gpus == pytest.approx([0.104, 0.637, 0.105, 0.098, 0.026, 0.0145, 0.007, 0.0034, 0.0049], abs=0.02)
    assert workers == pytest.approx([0.916, 0.065, 0.0154, 0.003, 0.0003], abs=0.012)


def test_demand_stands_where_it_was_against_capacity(fleet: Workload) -> None:
    means = [hourly_demand(fleet, pool, 4416).mean() for pool in range(6)]
    august = hourly_demand(fleet, fleet.pools.index("A100-SXM4-80GB"), 4416)[-744:].mean()

    assert means == pytest.approx([3366, 2741, 1189, 1264, 746, 131], rel=0.15)
    assert august == pytest.approx(3317, rel=0.12)


def test_a_fleet_that_is_served_differs_in_long_jobs_of_the_pool_that_was_too_full() -> None:
    served = generate("v2026_served", Streams(7), scale=0.2, pools=["A10", "H800"])
    published = generate("v2026", Streams(7), scale=0.2, pools=["A10", "H800"])
    durations_s = [work.job_duration_s[work.job_pool == 1] for work in (served, published)]

    assert hourly_demand(published, 0, 4416).mean() > 1.2 * 499
    assert hourly_demand(served, 0, 4416).mean() == pytest.approx(0.85 * 499, rel=0.08)
    assert served.num_jobs == published.num_jobs
    assert np.array_equal(*durations_s)


def test_hourly_arrivals_are_as_uneven_as_published_and_follow_the_day(fleet: Workload) -> None:
    hours = (fleet.job_submit_s // 3600).astype(np.int64)
    counts = np.bincount(hours, minlength=4416)
    by_hour_of_day = np.bincount(hours[hours > 0] % 24)

    assert counts.var() / counts.mean() == pytest.approx(90, rel=0.35)
    assert by_hour_of_day.argmin() in (3, 4, 5)
    assert by_hour_of_day.argmax() in (10, 11, 14, 15, 16, 17)


def test_a_few_organisations_own_most(fleet: Workload) -> None:
    gpu_s = np.sort(np.bincount(fleet.job_organisation, num_gpus(fleet) * fleet.job_duration_s))[::-1]
    num = len(gpu_s)
    gini = (2 * np.arange(1, num + 1) - num - 1) @ gpu_s[::-1] / (num * gpu_s.sum())

    assert gpu_s[:4] / gpu_s.sum() == pytest.approx([0.322, 0.288, 0.101, 0.053], abs=0.03)
    assert gini == pytest.approx(0.91, abs=0.03)


def test_spot_jobs_come_late(fleet: Workload) -> None:
    days = fleet.job_submit_s[fleet.job_kind == Kind.SPOT] // DAY_S

    assert (days < 31).mean() < 0.005
    assert (days >= 153).sum() == pytest.approx(12_844, rel=0.05)


def test_no_high_priority_job_outlasts_the_months(fleet: Workload) -> None:
    high = fleet.job_kind == Kind.HIGH

    assert (fleet.job_submit_s + fleet.job_duration_s)[high].max() <= 184 * DAY_S


@pytest.mark.parametrize(("name", "load"), [("a100_2296_low", 0.5), ("a100_2296", 1.0), ("a100_2296_high", 2.0)])
def test_three_spot_loads_share_one_month_and_one_history(name: str, load: float) -> None:
    medium, other = generate("a100_2296", Streams(3)), generate(name, Streams(3))
    is_high = [work.job_kind == Kind.HIGH for work in (medium, other)]

    assert other.num_nodes == 287
    assert other.node_gpus.sum() == 2296
    assert (~is_high[1]).sum() == pytest.approx(load * (~is_high[0]).sum(), abs=2)
    assert other.job_submit_s[~is_high[1]].min() >= 153 * DAY_S
    assert np.array_equal(medium.job_duration_s[is_high[0]], other.job_duration_s[is_high[1]])


@pytest.mark.parametrize("name", PRESETS)
def test_every_job_of_every_preset_fits_into_its_pool(name: str) -> None:
    work = generate(name, Streams(1), num_days=5, scale=0.05 if name.startswith("v2026") else 1.0)

    for pool in range(len(work.pools)):
        sizes = work.node_gpus[work.node_pool == pool]
        for gpus, workers in set(
            zip(
                work.job_gpus[work.job_pool == pool].tolist(),
                work.job_workers[work.job_pool == pool].tolist(),
                strict=True,
            )
        ):
            assert workers <= (sizes // max(1, gpus)).sum()


def test_the_same_seed_gives_the_same_jobs_and_another_seed_others() -> None:
    first, again, other = (generate("small", Streams(seed)) for seed in (5, 5, 6))

    assert np.array_equal(first.job_duration_s, again.job_duration_s)
    assert not np.array_equal(first.job_duration_s[:50], other.job_duration_s[:50])


def test_leaving_a_pool_out_does_not_move_the_others() -> None:
    both, one = generate("small", Streams(2)), generate("small", Streams(2), pools=["H800"])

    assert np.array_equal(both.job_submit_s[both.job_pool == both.pools.index("H800")], one.job_submit_s)
    assert one.pools == ("H800",)


def test_a_shorter_window_is_the_end_of_the_longer_one_with_what_was_under_way() -> None:
    week, day = generate("small", Streams(2)), generate("small", Streams(2), num_days=1)
    high_week, high_day = (work.job_kind == Kind.HIGH for work in (week, day))
    ends = (week.job_submit_s + week.job_duration_s)[high_week]
    cut_s = 6 * DAY_S

    assert high_day.sum() == (ends >= cut_s + 1).sum()
    assert (day.job_submit_s[high_day] == 0).sum() >= (week.job_submit_s[high_week][ends > cut_s + 1] < cut_s).sum()
    assert day.job_submit_s[~high_day].size == (week.job_submit_s[~high_week] >= cut_s).sum()


def test_scale_multiplies_nodes_and_demand() -> None:
    whole, half = (generate("a100_2296", Streams(4), num_days=60, scale=scale) for scale in (1.0, 0.5))
    demand = [hourly_demand(work, 0, 1440).mean() / work.node_gpus.sum() for work in (whole, half)]

    assert half.num_nodes == pytest.approx(whole.num_nodes / 2, abs=1)
    assert demand[1] == pytest.approx(demand[0], rel=0.2)


def test_a_job_over_the_end_goes_on_at_the_beginning() -> None:
    pieces = wrap(np.array([2.0, 8.0, 9.0]), np.array([3.0, 4.0, 23.0]), 10.0)

    assert pieces.job.tolist() == [0, 1, 1, 2, 2, 2, 2]
    assert pieces.starts_s.tolist() == [2, 8, 0, 9, 0, 0, 0]
    assert pieces.durations_s.tolist() == [3, 2, 2, 1, 10, 10, 2]


def test_what_ended_before_the_window_is_left_out() -> None:
    pieces = cut_before(wrap(np.array([0.0, 1.0, 6.0]), np.array([4.0, 8.0, 3.0]), 10.0), 5.0)

    assert pieces.job.tolist() == [1, 2]
    assert pieces.starts_s.tolist() == [0, 1]
    assert pieces.durations_s.tolist() == [4, 3]


def test_classes_of_the_duration_law_join_without_gaps() -> None:
    ends = [knots[-1] for knots in DURATION_LAW[:-1]]

    assert ends == [knots[0] for knots in DURATION_LAW[1:]]
    assert all(sum(profile.duration_shares) == pytest.approx(1, abs=1e-3) for profile in PROFILES.values())


def test_the_mean_size_is_that_of_the_draws(fleet: Workload) -> None:
    is_short = (fleet.job_duration_s < 3600) & (fleet.job_pool == fleet.pools.index("A100-SXM4-80GB"))

    profile = PROFILES["A100-SXM4-80GB"]
    assert num_gpus(fleet)[is_short].mean() == pytest.approx(mean_gpus(profile, profile.nodes), rel=0.03)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_days": 0}, "0 days were asked for; choose 1 to 184"),
        ({"num_days": 185}, "185 days were asked for"),
        ({"scale": 0.0}, "the scale is 0"),
        ({"scale": float("nan")}, "the scale is nan"),
        ({"pools": []}, "no pool was chosen"),
    ],
)
def test_what_cannot_be_generated_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        generate("small", Streams(0), **options)  # type: ignore[arg-type]


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'small'"):
        generate("smal", Streams(0))
    with pytest.raises(UnknownName, match="no pool of small 'H80'; did you mean 'H800'"):
        generate("small", Streams(0), pools=["H80"])
