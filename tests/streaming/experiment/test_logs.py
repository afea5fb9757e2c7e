"""Answers from logs: the equations are checked on the log itself, and advice comes from its replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from takeup.core.report import Report, Table
from takeup.errors import BadInput, BadScenario, UnknownName
from takeup.streaming.experiment import run_again
from takeup.streaming.experiment.logs import contradicts

LOG = Path(__file__).parent.parent / "data" / "drive.csv"


def report(verb: str, **values: Any) -> Report:
    return run_again({"verb": verb, **values}, "test", quiet=True)


def column(table: Table, name: str) -> list[Any]:
    place = [each.name for each in table.columns].index(name)
    return [row[place] for row in table.rows]


@pytest.fixture(scope="module")
def dips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A link far faster than the video, except for two seconds of nearly nothing now and then: no state drains."""
    rng = np.random.default_rng(5)
    rates = 1e6 * rng.gamma(20.0, 0.05, 2400)
    for second in rng.choice(2390, 40, replace=False):
        rates[second : second + 2] = 1e4
    path = tmp_path_factory.mktemp("logs") / "dips.csv"
    path.write_text("rate_bps\n" + "".join(f"{rate:.0f}\n" for rate in rates))
    return path


LONE: dict[str, Any] = {"max_users": 1, "arrivals_per_s": [0.001], "bitrate_bps": 480e3}


def test_a_zero_that_the_log_contradicts_is_not_shown(dips: Path) -> None:
    found = report("predict", log=str(dips), start_s=[1.0, 2.0], **LONE)
    shown, logged = column(found.tables[0], "P(stall)"), column(found.tables[0], "P(stall) on the log")

    assert shown[0] == logged[0] > 0.01
    assert "equations P(stall) 0.000" in found.notes[0]
    assert "why they disagree: the slowest of its" in found.notes[-1]


@pytest.mark.parametrize(
    ("predicted", "found", "error", "is_wrong"),
    [(0.0, 0.00045, 0.00017, True), (0.0, 0.0, 0.0001, False), (0.1, 0.11, 0.002, False), (0.1, 0.14, 0.002, True)],
)
def test_a_zero_is_wrong_as_soon_as_the_log_has_stalls(
    predicted: float, found: float, error: float, is_wrong: bool
) -> None:
    assert contradicts(predicted, found, error) == is_wrong


def test_a_fit_that_the_log_contradicts_says_so_and_its_prediction_shows_the_log(dips: Path) -> None:
    fitted = report("fit", log=str(dips))
    found = report("predict", log=str(dips), start_s=[1.0], **LONE)

    assert column(found.tables[0], "P(stall)")[0] > 0.01
    assert any("the model contradicts the log" in note for note in fitted.notes)


def test_a_prediction_that_the_log_confirms_is_left_alone() -> None:
    found = report("predict", log=str(LOG), arrivals_per_s=[0.12], start_s=[5.0])
    shown, logged = column(found.tables[0], "P(stall)")[0], column(found.tables[0], "P(stall) on the log")[0]

    assert shown == pytest.approx(logged, rel=0.25)
    assert shown != logged
    assert found.notes == ()


def test_no_start_at_zero_is_recommended_where_the_log_stalls(dips: Path) -> None:
    found = report("optimise", log=str(dips), **LONE)
    starts, costs = column(found.tables[0], "start at"), column(found.tables[0], "P(stall) on the log")

    assert starts[0] > 0
    assert costs[0] < costs[1]
    assert "first row: the best threshold on the log itself" in found.notes[1]


def test_the_largest_arrivals_are_checked_on_the_log() -> None:
    found = report("size", log=str(LOG), start_s=[5.0])

    assert "on the log itself P(stall) at the most arrivals is 0.0" in found.notes[0]


def test_advice_has_an_interval_for_every_player_and_the_least_cost() -> None:
    found = report("advise", logs=[str(LOG)], bitrate_bps=2.4e6)
    table = found.tables[0]
    low, mean, high = (column(table, name) for name in ("from", "P(stall)", "to"))
    costs = column(table, "cost")

    assert column(table, "player")[:3] == ["dash.js", "dash.js", "shaka"]
    assert column(table, "settings")[:2] == ["default", "best"]
    assert all(a <= b <= c for a, b, c in zip(low, mean, high, strict=True))
    assert all(best <= default + 1e-12 for default, best in zip(costs[::2], costs[1::2], strict=True))
    assert len(found.tables[2].rows) == 4
    assert any("the equations say P(stall)" in note for note in found.notes)


def test_advice_names_the_form_and_warns_of_a_short_log(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_text("".join(f"{second} {1 + second % 3}\n" for second in range(60)))
    found = report("advise", logs=[str(path)], bitrate_bps=1e6, players=["shaka"])

    assert "two columns: time (s) and rate (Mbit/s)" in found.notes[0]
    assert "the log lasts 59 s" in found.notes[1]


def test_stalls_of_the_log_are_compared_with_predicted_ones(tmp_path: Path) -> None:
    """Two sessions: one is as fast as it plays, the other pauses for 30 s after its tenth segment."""
    steady = [f'{{"mtp": 4000, "br": 2000, "d": 4000, "sid": "a", "ts": {4000 * k}}}' for k in range(40)]
    slow = [{"mtp": 4000, "br": 2000, "d": 4000, "sid": "b", "ts": 4000 * k} for k in range(40)]
    slow[10] |= {"mtp": 200}
    slow[11] |= {"bs": True}
    path = tmp_path / "cmcd.log"
    path.write_text("\n".join([*steady, *map(json.dumps, slow)]))
    found = report("advise", logs=[str(path)], bitrate_bps=2e6, players=["dash.js", "shaka"])
    table = next(table for table in found.tables if table.title == "Stalls in the log, and predicted")

    assert table.rows == (
        ("reported", 2, 1, 50.0),
        ("predicted, dash.js", 2, 1, 50.0),
        ("predicted, shaka", 2, 1, 50.0),
    )


def test_a_ladder_has_its_mean_bitrate_and_the_rule_that_is_asked_for() -> None:
    ladder = {"bitrates_bps": [0.6e6, 1.2e6, 2.4e6], "bitrate_bps": 2.4e6, "players": ["dash.js"], "logs": [str(LOG)]}
    own, bola = report("advise", **ladder).tables[0], report("advise", rule="bola", **ladder).tables[0]
    single = report("advise", logs=[str(LOG)], bitrate_bps=2.4e6, players=["dash.js"]).tables[0]

    assert (column(own, "rule")[0], column(bola, "rule")[0]) == ("dynamic", "bola")
    assert 0.6 < column(own, "bitrate")[0] < 2.4
    assert column(own, "P(stall)")[0] < column(single, "P(stall)")[0]


def test_a_higher_mean_that_is_expected_means_fewer_stalls() -> None:
    as_logged, faster = (
        report("advise", logs=[str(LOG)], bitrate_bps=2.4e6, players=["dash.js"], capacity_bps=capacity_bps).tables[0]
        for capacity_bps in (None, 6e6)
    )

    assert column(faster, "P(stall)")[0] < column(as_logged, "P(stall)")[0] / 2


def test_several_logs_are_replayed_one_after_the_other(tmp_path: Path) -> None:
    found = report("advise", logs=[str(LOG), str(LOG)], bitrate_bps=2.4e6, players=["dash.js"])
    once = report("advise", logs=[str(LOG)], bitrate_bps=2.4e6, players=["dash.js"])

    assert found.title == "Streaming: advice from 2 logs"
    assert column(found.tables[0], "P(stall)")[0] == pytest.approx(column(once.tables[0], "P(stall)")[0], abs=0.02)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"verb": "advise", "logs": [str(LOG)], "bitrate_bps": 50e6}, "check the units"),
        ({"verb": "advise", "bitrate_bps": 2e6}, "nothing to replay"),
        ({"verb": "predict", "arrivals_per_s": [5.0]}, "the load is 38.5.*check the units"),
    ],
)
def test_absurd_questions_are_refused_in_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        run_again(values, "test", quiet=True)


def test_an_unknown_player_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"no player 'dashjs'; did you mean 'dash\.js'"):
        report("advise", logs=[str(LOG)], bitrate_bps=2e6, players=["dashjs"])


def test_a_bitrate_without_its_unit_is_refused() -> None:
    with pytest.raises(BadScenario, match="bitrate_bps is 360 bit/s; write the unit"):
        report("predict", bitrate_bps=360.0)


def test_live_advice_is_the_least_latency_that_is_enough() -> None:
    values: dict[str, Any] = {"logs": [str(LOG)], "bitrate_bps": 1.2e6, "mean_video_s": [120.0]}
    found, strict = report("live", **values), report("live", stall_target=1e-9, latencies_s=[1.0, 2.0], **values)
    latencies, chances = column(found.tables[0], "target latency"), column(found.tables[0], "P(stall)")
    best = next(latency for latency, chance in zip(latencies, chances, strict=True) if chance <= 0.05)

    assert chances == sorted(chances, reverse=True)
    assert found.tables[1].title == f"Settings for {best:g} s"
    assert f'"liveDelay": {best}' in str(found.tables[1].rows[0][1])
    assert len(strict.tables) == 1
    assert "no latency of the list" in strict.notes[-1]
