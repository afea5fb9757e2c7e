"""Scenarios of serving: what they say, which requests belong to them, and which rules each design gets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from takeup.core.scenario import load_scenario, to_toml, validate
from takeup.errors import BadScenario, UnknownName
from takeup.serving.experiment import DESIGNS, ServingScenario, arrivals_of, run, run_again, serve
from takeup.serving.model import Arrival
from takeup.serving.simulate.designs import design_of


def scenario(**values: Any) -> ServingScenario:
    return validate(ServingScenario, {"verb": "simulate", "num_requests": 60, "num_steps": 10, **values}, "test")


def latencies(arrivals: list[Arrival], name: str, made: ServingScenario) -> list[float]:
    return [one.latency_s for one in serve(arrivals, name, made).served]


def test_a_scenario_survives_a_file(tmp_path: Path) -> None:
    made = scenario(
        designs=("swiftdiffusion", "takeup"),
        rates_per_s=(0.5, 2.0),
        deadline_s=30.0,
        in_time=True,
        order="shared_loads",
    )
    path = tmp_path / "scenario.toml"
    path.write_text(to_toml(made))

    assert validate(ServingScenario, load_scenario(path), str(path)) == made


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"designs": ()}, "at least 1 item"),
        ({"designs": ("swiftdiffusionn",)}, "did you mean 'swiftdiffusion'"),
        ({"eviction": "lrru"}, "did you mean 'lru'"),
        ({"rates_per_s": ()}, "at least 1 item"),
        ({"rates_per_s": (1.0, float("inf"))}, "finite number"),
        ({"num_gpus": 0}, "num_gpus"),
        ({"max_rows": 1}, "max_rows"),
        ({"patience": -1}, "patience"),
        ({"deadline_s": 0.0}, "deadline_s"),
        ({"workload": "retails"}, "workload"),
        ({"loras": "x.csv"}, "needs both 'trace' and 'loras'"),
        ({"gpus": 3}, "no key 'gpus'"),
    ],
)
def test_scenarios_without_sense_are_refused(wrong: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises((BadScenario, UnknownName), match=sentence):
        scenario(**wrong)


def test_all_designs_serve_the_same_requests() -> None:
    made = scenario(designs=tuple(DESIGNS), num_gpus=8, rates_per_s=(0.5,))
    arrivals = arrivals_of(made, 0.5)

    for name in DESIGNS:
        assert [one.arrival for one in serve(arrivals, name, made).served] == arrivals


def test_requests_of_another_rate_are_the_same_in_other_times() -> None:
    slow, fast = (arrivals_of(scenario(), rate) for rate in (0.5, 2.0))

    assert [one.loras for one in slow] == [one.loras for one in fast]
    assert [one.load_s for one in slow] == [one.load_s for one in fast]
    assert [one.arrival_s for one in slow] == pytest.approx([4 * one.arrival_s for one in fast])


def test_deadlines_count_from_the_arrival() -> None:
    arrivals = arrivals_of(scenario(deadline_s=12.0), 1.0)

    assert [one.deadline_s - one.arrival_s for one in arrivals] == pytest.approx([12.0] * len(arrivals))


def test_requests_without_add_ons_are_the_same_for_diffusers_and_for_ours_when_alone() -> None:
    made = scenario(workload="poisson", num_requests=5)
    arrivals = arrivals_of(made, 0.01)

    assert latencies(arrivals, "takeup", made) == pytest.approx(latencies(arrivals, "diffusers", made))


def test_the_rules_of_the_scenario_are_for_our_design_only() -> None:
    plain, other = scenario(), scenario(eviction="lfu", route="least_busy", order="fewest_loads", cache=10)
    arrivals = arrivals_of(plain, 2.0)

    assert serve(arrivals, "diffusers", plain) == serve(arrivals, "diffusers", other)
    assert serve(arrivals, "takeup", plain) != serve(arrivals, "takeup", other)


def test_more_in_the_loop_share_more_calls() -> None:
    crowds = [scenario(num_requests=150, max_running=number, num_gpus=1) for number in (1, 4)]
    arrivals = arrivals_of(crowds[0], 5.0)
    alone, together = (serve(arrivals, "takeup", one) for one in crowds)

    assert alone.num_call_rows == together.num_call_rows
    assert together.num_calls < alone.num_calls


def test_a_run_is_a_row_for_every_design_and_rate_and_can_be_run_again() -> None:
    first = run(scenario(designs=("diffusers", "takeup"), rates_per_s=(0.5, 1.0)), quiet=True)
    again = run_again(dict(first.scenario), "a report", quiet=True)

    assert [row[:2] for row in first.tables[0].rows] == [
        (rate, name) for rate in (0.5, 1.0) for name in ("diffusers", "takeup")
    ]
    assert again == first


def test_published_designs_cost_what_was_published() -> None:
    stock, swiftdiffusion, ours = (design_of(name) for name in ("diffusers", "swiftdiffusion", "takeup"))

    assert 50 * stock.step(2) == pytest.approx(2.88)
    assert stock.control is not None
    assert 50 * (stock.step(2) + stock.control(2)) + stock.switch_s == pytest.approx(4.54)
    assert 50 * swiftdiffusion.step(2) == pytest.approx(1.71)
    assert stock.step(8) == pytest.approx(4 * stock.step(2))  # twice the rows, twice the time
    assert ours.step == stock.step
    assert ours.control == stock.control


def test_unknown_designs_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'nirvana'"):
        design_of("nirvan")
