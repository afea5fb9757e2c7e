"""Scenarios of cluster as files and options, and the parts of a run that a person waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.cluster_outcomes import HOUR_S, two_pools, workload
from takeup.cluster.commands import QUOTA_OPTIONS, TRACE_OPTIONS, WINDOW_OPTIONS, cluster
from takeup.cluster.experiment import ClusterScenario, run, run_again
from takeup.cluster.experiment.replays import quota_source, scheduler_of
from takeup.cluster.experiment.scenario import load_workload, report_on, select_jobs
from takeup.cluster.policies import POLICIES, find_policy
from takeup.cluster.quota.allocator import SpotQuota
from takeup.cluster.simulate import replay
from takeup.core.render import to_text
from takeup.core.render.charts import to_svg
from takeup.core.report import Column, Report, Series, Table
from takeup.core.scenario import load_scenario, to_toml, validate
from takeup.errors import BadScenario

# Files and options ----------------------------------------------------------------------------------------------------

SHOWN_ONLY = {"as_json", "out", "quiet", "policy", "policies", "models"}


def scenario(**values: Any) -> ClusterScenario:
    return validate(ClusterScenario, {"verb": "compare"} | values, "test")


@pytest.mark.parametrize("verb", sorted(cluster.commands))
def test_every_option_is_a_key_of_the_scenario(verb: str) -> None:
    names = {parameter.name for parameter in cluster.commands[verb].params}

    assert names - SHOWN_ONLY <= set(ClusterScenario.model_fields)


@pytest.mark.parametrize("group", [TRACE_OPTIONS, QUOTA_OPTIONS, WINDOW_OPTIONS], ids=["trace", "quota", "window"])
def test_defaults_of_options_are_those_of_the_scenario(group: dict[str, dict[str, Any]]) -> None:
    for names, settings in group.items():
        option = click.Option(names.split(), **settings)
        assert option.name is not None
        if "default" in settings:
            assert ClusterScenario.model_fields[option.name].default == settings["default"], option.name
        else:
            assert not ClusterScenario.model_fields[option.name].default, option.name


@pytest.mark.parametrize(
    "values",
    [
        {"verb": "compare", "policies": ["fifo", "gfs"], "pools": ["H800"], "from_day": 1.0, "to_day": 2.5},
        {"verb": "benefit", "prices": ["A=1.5", "2"], "against": "kube"},
        {"verb": "offer", "num_gpus": 3, "gang_nodes": 1, "at_day": 0.5},
        {"verb": "run", "engine": "slurm", "conf": "x", "dry_run": True, "metrics": "m.prom"},
    ],
    ids=lambda values: str(values["verb"]),
)
def test_a_scenario_survives_a_file(tmp_path: Path, values: dict[str, Any]) -> None:
    first = validate(ClusterScenario, values, "test")
    (tmp_path / "scenario.toml").write_text(to_toml(first))

    assert validate(ClusterScenario, load_scenario(tmp_path / "scenario.toml"), "file") == first


def test_a_misspelt_key_is_answered_with_the_nearest() -> None:
    with pytest.raises(BadScenario, match="no key 'polices'; did you mean 'policies'"):
        run_again({"verb": "compare", "polices": ["gfs"]}, "file")


def test_a_report_keeps_tables_and_charts_apart() -> None:
    table = Table("t", (Column("a"),), ((1,),))
    series = Series("s", "x", "y", ({"x": 1, "y": 2},))
    report = report_on(scenario(), "title", table, series, notes=("n",))

    assert (report.tables, report.series, report.notes) == ((table,), (series,), ("n",))
    assert report.scenario["verb"] == "compare"


# Schedulers and quotas ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_can_be_replayed_from_a_scenario(policy: str) -> None:
    report = run(scenario(verb="simulate", policies=[policy], pools=["H800"], to_day=1), quiet=True)

    assert report.tables[0].rows[0][0] == policy
    assert 0 < float(str(report.tables[0].rows[0][6])) <= 100


@given(st.floats(0.01, 0.995))
def test_a_quota_can_be_made_for_any_probability(probability: float) -> None:
    source = quota_source(scenario(probability=probability))

    assert source.goal.probability == probability
    assert probability in source.probabilities
    assert list(source.probabilities) == sorted(set(source.probabilities))


def test_schedulers_share_no_memory() -> None:
    first, second = (scheduler_of(scenario(), "gfs") for _ in range(2))

    assert first.quota_source is not second.quota_source


# Parts of a workload --------------------------------------------------------------------------------------------------


def test_pools_live_apart_so_that_one_alone_gives_the_same_numbers() -> None:
    whole, _ = load_workload(scenario(to_day=3))
    together = replay(whole, find_policy("gfs", SpotQuota()), 0.0, 72 * HOUR_S)
    for pool in whole.pools:
        alone = replay(select_jobs(whole, pools=[pool]), find_policy("gfs", SpotQuota()), 0.0, 72 * HOUR_S)

        assert alone.metrics() == together.metrics(pool)


@given(st.sets(st.sampled_from(["a", "b"]), min_size=1), st.lists(st.booleans(), min_size=5, max_size=5))
def test_parts_hold_just_the_jobs_that_were_chosen(pools: set[str], chosen: list[bool]) -> None:
    whole = two_pools()
    part = select_jobs(whole, np.array(chosen), sorted(pools))
    expected = [
        submit
        for submit, pool, keep in zip(whole.job_submit_s, whole.job_pool, chosen, strict=True)
        if keep and whole.pools[pool] in pools
    ]

    assert part.job_submit_s.tolist() == expected
    assert part.pools == tuple(sorted(pools))
    assert part.num_nodes == len(pools)
    assert set(part.job_pool.tolist()) <= set(range(len(pools)))


def test_the_order_of_pools_stays_that_of_the_fleet() -> None:
    assert select_jobs(two_pools(), pools=["b", "a"]).pools == ("a", "b")


def test_the_same_scenario_is_drawn_once_and_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submit_time,duration,num_gpus,vc\n0,3600,1,x\n60,3600,2,y\n")
    given_scenario = scenario(trace=str(path))
    first, _ = load_workload(given_scenario)
    path.write_text("submit_time,duration,num_gpus,vc\n0,3600,1,x\n60,3600,2,y\n120,60,4,y\n")
    second, _ = load_workload(given_scenario)

    assert (first.num_jobs, second.num_jobs) == (2, 3)
    assert load_workload(scenario())[0] is load_workload(scenario())[0]


# Progress -------------------------------------------------------------------------------------------------------------


# What is shown --------------------------------------------------------------------------------------------------------

SHOWN = [
    {"verb": "simulate", "policies": ["gfs"]},
    {"verb": "compare", "policies": ["fifo", "gfs"]},
    {"verb": "benefit", "prices": ["1"]},
    {"verb": "offer", "pools": ["H800"], "at_day": 1.5},
    {"verb": "forecast", "models": ["anchored"]},
]


@pytest.mark.parametrize("values", SHOWN, ids=lambda values: str(values["verb"]))
def test_every_report_can_be_read_drawn_and_stored(values: dict[str, Any]) -> None:
    report = run(scenario(**{"to_day": 2.0} | values), quiet=True)

    assert report.title in to_text(report)
    assert Report.from_json(report.to_json()).tables == report.tables
    assert all(to_svg(series).startswith("<svg") for series in report.series)


def test_a_fleet_without_spot_jobs_has_rates_of_nothing() -> None:
    jobs = workload([(0, 0, 8.0, 1, 0.0, 2.0), (0, 0, 8.0, 1, 1.0, 2.0)], {"a": 1})
    metrics = replay(jobs, find_policy("gfs", SpotQuota())).metrics()

    assert (metrics.eviction_rate, metrics.evictions_per_job, metrics.spot_jqt_s.mean) == (0.0, 0.0, 0.0)
    assert metrics.high_jqt_s.mean == pytest.approx(HOUR_S / 2)
