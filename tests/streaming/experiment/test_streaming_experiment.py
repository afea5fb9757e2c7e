"""Scenarios in, reports out: every verb, what a scenario refuses, and the same numbers again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from takeup.core.report import Report, Table
from takeup.errors import BadInput, BadScenario, TakeupError, UnknownName
from takeup.streaming.advice.qoe import solve_cell
from takeup.streaming.chains import chain_of
from takeup.streaming.experiment import StreamingScenario, cells_of, run, run_again
from takeup.streaming.model import Cell, Player, Views
from takeup.streaming.solvers.fluid import DoublingSolver

CELL = Cell(2.8e6, 360e3, 0.12, 10)


def report(verb: str, **settings: Any) -> Report:
    return run_again({"verb": verb, **settings}, "test", quiet=True)


def column(table: Table, name: str) -> list[Any]:
    place = [heading.name for heading in table.columns].index(name)
    return [row[place] for row in table.rows]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Ten minutes of a link that is good and bad in turn."""
    path = tmp_path / "link.csv"
    rates = np.where(np.arange(600) % 50 < 20, 1e6, 4e6) + 1e4 * (np.arange(600) % 7)
    path.write_text("rate_bps\n" + "".join(f"{rate}\n" for rate in rates))
    return path


# Predict --------------------------------------------------------------------------------------------------------------


def test_predict_answers_for_every_arrival_rate_and_threshold() -> None:
    found = report("predict", arrivals_per_s=[0.08, 0.12], start_s=[2, 5])
    table = found.tables[0]

    assert list(zip(column(table, "arrivals"), column(table, "start at"), strict=True)) == [
        (0.08, 2.0),
        (0.08, 5.0),
        (0.12, 2.0),
        (0.12, 5.0),
    ]
    assert column(table, "P(stall)")[3] == solve_cell(CELL, Player(5.0)).stall_probability.value
    assert found.scenario["verb"] == "predict"


def test_predict_draws_stalls_over_the_threshold_and_the_law_of_the_delay() -> None:
    stalls, delay = report("predict", start_s=[5.0]).series
    at_five = next(row for row in stalls.rows if row["start threshold"] == 5.0)
    shares = [float(str(row[delay.y])) for row in delay.rows]

    assert at_five["P(stall)"] == pytest.approx(solve_cell(CELL, Player(5.0)).stall_probability.value)
    assert shares == sorted(shares)
    assert 0.9 < shares[-1] <= 1.0


def test_a_mixture_of_views_is_drawn_as_the_mixture_that_stands_in_the_table() -> None:
    found = report("predict", mean_video_s=[20.0, 120.0], view_shares=[0.6, 0.4], max_users=4, start_s=[5.0])
    curve = next(row for row in found.series[0].rows if row["start threshold"] == 5.0)

    assert len(found.series) == 2
    assert curve["P(stall)"] == pytest.approx(column(found.tables[0], "P(stall)")[0])


def test_large_chains_are_drawn_without_the_law_of_the_delay() -> None:
    assert len(report("predict", max_users=40).series) == 1


def test_playing_at_once_stutters_without_end() -> None:
    table = report("predict", start_s=[0.0]).tables[0]

    assert column(table, "stalls") == [None]
    assert column(table, "start-up") == [0.0]
    assert column(table, "in stalls")[0] > 0


def test_an_opportunistic_cell_stalls_less() -> None:
    fair, best = (report("predict", opportunistic=flag).tables[0] for flag in (False, True))

    assert column(best, "P(stall)")[0] < column(fair, "P(stall)")[0]


# Optimise -------------------------------------------------------------------------------------------------------------


def test_the_best_threshold_costs_least_on_its_own_curve() -> None:
    found = report("optimise", stall_cost=10.0)
    cheapest = min(found.series[0].rows, key=lambda row: float(str(row["cost"])))
    best_s = column(found.tables[0], "start at")[0]

    assert best_s == pytest.approx(float(str(cheapest["start threshold"])), abs=0.5)


def test_viewers_that_give_up_are_predicted_and_simulated() -> None:
    predicted = report("predict", give_up_per_s=0.1)
    compared = report("compare", give_up_per_s=0.1, simulators=["cell"], num_videos=20_000)

    assert column(predicted.tables[0], "gave up")[0] == pytest.approx(0.176, abs=0.001)
    assert "mean field" in predicted.notes[0]
    assert abs(column(compared.tables[1], "cell")[0]) < 3.5


def test_one_video_among_patient_ones_is_not_a_cell_of_impatient_viewers() -> None:
    with pytest.raises(BadInput, match="simulate 'cell'"):
        report("simulate", give_up_per_s=0.1, simulators=["tagged"], num_videos=100)
    with pytest.raises(BadScenario, match="viewers give up in predict, simulate and compare"):
        report("optimise", give_up_per_s=0.1)


def test_dearer_stalls_start_later() -> None:
    cheap, dear = (column(report("optimise", stall_cost=cost).tables[0], "start at")[0] for cost in (2.0, 50.0))

    assert dear > cheap


def test_settings_for_every_player_come_with_the_best_threshold() -> None:
    found = report("optimise")
    best_s = column(found.tables[0], "start at")[0]
    dash_js, shaka, media3, *_ = column(found.tables[1], "configuration")

    assert column(found.tables[1], "player") == ["dash.js", "shaka", "media3", "hls.js", "avplayer"]
    assert column(found.tables[1], "resumes at")[0] == 4.0
    assert column(found.tables[1], "stalls")[0] > column(found.tables[1], "stalls")[1]
    assert str(round(best_s, 3)) in dash_js
    assert str(round(best_s, 3)) in shaka
    assert str(round(1000 * best_s)) in media3


def test_the_best_threshold_does_not_depend_on_the_order_of_the_views() -> None:
    one, other = (
        report("optimise", mean_video_s=lengths, view_shares=shares, max_users=9).tables[0]
        for lengths, shares in (([20.0, 200.0], [0.8, 0.2]), ([200.0, 20.0], [0.2, 0.8]))
    )
    cell = Cell(2.8e6, 360e3, 0.12, 9, (Views(0.8, 20.0), Views(0.2, 200.0)))
    best_s = column(one, "start at")[0]

    assert best_s == pytest.approx(column(other, "start at")[0], abs=0.01)
    assert best_s > 1.0
    assert column(one, "P(stall)")[0] == solve_cell(cell, Player(best_s)).stall_probability.value


# Size -----------------------------------------------------------------------------------------------------------------


def test_limits_keep_the_target_and_a_little_more_does_not() -> None:
    table = report("size", stall_target=0.05).tables[0]
    arrivals, capacity, users = column(table, "answer")

    for cell, worse in (
        (Cell(2.8e6, 360e3, arrivals, 10), Cell(2.8e6, 360e3, 1.01 * arrivals, 10)),
        (Cell(1e6 * capacity, 360e3, 0.12, 10), Cell(0.99e6 * capacity, 360e3, 0.12, 10)),
        (Cell(2.8e6, 360e3, 0.12, int(users)), Cell(2.8e6, 360e3, 0.12, int(users) + 1)),
    ):
        assert solve_cell(cell, Player(5.0)).stall_probability.value <= 0.05 + 1e-9
        assert solve_cell(worse, Player(5.0)).stall_probability.value > 0.05
    assert column(table, "why not") == ["", "", ""]


def test_a_question_without_an_answer_says_why_and_does_not_spoil_the_others() -> None:
    table = report("size", capacity_bps=300e3, start_s=[1.0], stall_target=0.01).tables[0]
    answers = dict(zip(column(table, "question"), column(table, "answer"), strict=True))
    reasons = dict(zip(column(table, "question"), column(table, "why not"), strict=True))

    assert answers["most arrivals"] is None
    assert "even a video alone in the cell stalls more often" in reasons["most arrivals"]
    assert answers["most users at a time"] is None
    assert answers["least capacity"] > 0.3
    assert reasons["least capacity"] == ""


def test_a_question_without_a_limit_says_so() -> None:
    table = report("size", max_users=2).tables[0]

    assert column(table, "answer")[0] is None
    assert column(table, "why not")[0] == "no limit: admission alone keeps the target"


# Fit ------------------------------------------------------------------------------------------------------------------


def test_fit_says_what_the_log_is(log: Path) -> None:
    found = report("fit", log=str(log))
    facts = {str(row[0]): row[1] for row in found.tables[0].rows}

    assert found.title == "Streaming: fit of link"
    assert facts["duration"] == 600
    assert facts["mean rate"] == pytest.approx(2.83, abs=0.01)
    assert len(found.series[0].rows) == 600


def test_the_mean_of_the_log_is_the_capacity_unless_one_is_given(log: Path) -> None:
    own, given = (
        cells_of(StreamingScenario(verb="predict", log=str(log), capacity_bps=rate))[0] for rate in (None, 5e6)
    )

    assert own.capacity_bps == pytest.approx(2.83e6, abs=1e4)
    assert given.capacity_bps == 5e6
    assert given.capacity is not None


def test_a_link_that_varies_stalls_more_than_one_that_does_not(log: Path) -> None:
    varies = report("predict", log=str(log)).tables[0]
    constant = report("predict", capacity_bps=cells_of(StreamingScenario(verb="predict", log=str(log)))[0].capacity_bps)

    assert column(varies, "P(stall)")[0] > 1.5 * column(constant.tables[0], "P(stall)")[0]


def test_nothing_to_fit_is_one_sentence() -> None:
    with pytest.raises(BadInput, match="there is nothing to fit; give a throughput log"):
        report("fit")


# Simulate, compare and run --------------------------------------------------------------------------------------------


def test_simulate_measures_with_errors() -> None:
    table = report("simulate", simulators=["tagged"], num_videos=2000).tables[0]

    assert [heading.name for heading in table.columns] == ["quantity", "tagged", "±"]
    assert 0 < float(str(table.rows[0][2])) < float(str(table.rows[0][1]))


def test_compare_sets_the_equations_beside_the_simulators() -> None:
    estimates, scores = report("compare", simulators=["tagged", "cell"], num_videos=20_000).tables
    equations = solve_cell(CELL, Player(5.0))
    numbers = [float(str(cell)) for row in scores.rows for cell in row[1:] if cell is not None]

    assert [heading.name for heading in estimates.columns][1::2] == ["equations", "tagged", "cell"]
    assert column(estimates, "equations")[1] == equations.stall_probability.value
    assert len(numbers) >= 10
    assert max(map(abs, numbers)) < 5


# Scenarios ------------------------------------------------------------------------------------------------------------

BAD = [
    ({"verb": "guess"}, "'verb' is 'guess', expected 'predict'"),
    ({"verb": "predict", "arrivals": [0.1]}, "there is no key 'arrivals'; did you mean 'arrivals_per_s'?"),
    ({"verb": "predict", "max_users": 2.5}, "'max_users' is 2.5"),
    ({"verb": "predict", "start_s": ["soon"]}, "'start_s.0' is 'soon', expected a number"),
    ({"verb": "predict", "start_s": []}, "give at least one arrival rate, one start threshold and one simulator"),
    ({"verb": "predict", "mean_video_s": [10.0, 20.0]}, "give as many view_shares as mean_video_s"),
    ({"verb": "compare", "start_s": [1.0, 2.0]}, "'compare' takes one arrival rate and one start threshold"),
    ({"verb": "size", "arrivals_per_s": [0.1, 0.2]}, "'size' takes one arrival rate and one start threshold"),
]


@pytest.mark.parametrize(("values", "sentence"), BAD, ids=lambda value: str(value)[:50])
def test_a_scenario_that_makes_no_sense_is_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadScenario) as raised:
        run_again(values, "file.toml", quiet=True)

    assert str(raised.value).startswith("file.toml: ")
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"verb": "predict", "capacity_bps": 0.0}, "capacity_bps is 0.0; give a finite number above zero"),
        ({"verb": "predict", "arrivals_per_s": [-1.0]}, "arrivals_per_s is -1.0"),
        ({"verb": "predict", "start_s": [-1.0]}, "start_s is -1.0"),
        ({"verb": "predict", "view_shares": [0.5]}, "the shares of the views add up to 0.5"),
        ({"verb": "optimise", "stall_cost": -1.0}, "the cost of a second in stalls is -1.0"),
        ({"verb": "size", "stall_target": 1.5}, "the target for stalls is 1.5"),
        ({"verb": "simulate", "num_videos": 0}, "0"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_number_that_makes_no_sense_is_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TakeupError, match=sentence) as raised:
        run_again(values, "test", quiet=True)

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"verb": "simulate", "simulators": ["taged"]}, "no simulator 'taged'; did you mean 'tagged'?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnknownName, match=sentence.replace("?", r"\?")):
        run_again(values, "test", quiet=True)


@pytest.mark.parametrize(
    "values",
    [
        {"verb": "predict", "arrivals_per_s": [0.08, 0.12]},
        {"verb": "optimise"},
        {"verb": "size"},
        {"verb": "simulate", "num_videos": 2000, "seed": 3},
        {"verb": "compare", "num_videos": 2000},
    ],
    ids=lambda values: str(values["verb"]),
)
def test_a_report_can_be_run_again_and_gives_the_same(values: dict[str, Any]) -> None:
    first = Report.from_json(run_again(values, "test", quiet=True).to_json())
    again = Report.from_json(run_again(dict(first.scenario), "report.json", quiet=True).to_json())

    assert again == first


def test_another_seed_gives_other_numbers() -> None:
    one, two = (report("simulate", simulators=["tagged"], num_videos=2000, seed=seed) for seed in (1, 2))

    assert one.tables != two.tables


def test_the_scenario_as_a_class_and_as_values_are_the_same_question() -> None:
    scenario = StreamingScenario(verb="predict", start_s=(5.0,))
    chain = chain_of(cells_of(scenario)[0])
    expected = DoublingSolver().solve(chain, Player(5.0)).stall_probability.value

    assert run(scenario, quiet=True) == report("predict", start_s=[5.0])
    assert column(run(scenario).tables[0], "P(stall)") == pytest.approx([expected], rel=1e-12)


def test_many_states_are_solved_where_one_answer_is_enough() -> None:
    classes = {"max_users": 14, "mean_video_s": [20.0, 60.0, 200.0], "view_shares": [0.4, 0.4, 0.2]}
    found = report("predict", **classes)
    curve = {row["start threshold"]: row["P(stall)"] for row in found.series[0].rows}

    assert column(found.tables[0], "P(stall)")[0] == pytest.approx(curve[5.0] if 5.0 in curve else curve[4.0], rel=0.5)
    with pytest.raises(BadInput, match="560 states, too many for this"):
        report("optimise", **classes)


def test_a_goal_makes_stalls_more_likely() -> None:
    free, capped = (column(report("predict", goal_s=goal_s).tables[0], "P(stall)")[0] for goal_s in (None, 8.0))

    assert capped > 1.2 * free


def test_the_best_threshold_of_a_player_with_a_goal_is_below_it() -> None:
    free, capped = (column(report("optimise", goal_s=goal_s).tables[0], "start at")[0] for goal_s in (None, 8.0))

    assert 0.1 <= capped <= 8.0 < free


@pytest.mark.parametrize(
    "values", [{"log": "x.csv"}, {"opportunistic": True}, {"give_up_per_s": 0.1}, {"variation": 0.5}]
)
def test_a_goal_is_refused_where_no_equation_has_it(values: dict[str, Any]) -> None:
    with pytest.raises(BadScenario, match="leave goal_s out"):
        report("predict", goal_s=10.0, **values)


def test_a_varying_bit_rate_stalls_more_and_says_where_a_diffusion_is_rough() -> None:
    plain, varying = (report("predict", variation=variation, start_s=(1.0, 20.0)) for variation in (0.0, 1.0))
    before, after = (column(each.tables[0], "P(stall)") for each in (plain, varying))

    assert all(more > less for more, less in zip(after, before, strict=True))
    assert not any("diffusion" in note for note in plain.notes)
    assert any("a start at 1 s is short for this variation" in note for note in varying.notes)
    assert any("a start at 5 s is short" in note for note in report("size", variation=1.0, max_users=4).notes)
