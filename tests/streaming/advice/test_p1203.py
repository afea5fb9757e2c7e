"""The score of ITU-T P.1203: what the package is given, its place in the report, and one sentence without it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from takeup.core.report import Report
from takeup.errors import MissingEngine
from takeup.streaming.advice.p1203 import LENGTH_S, mean_p1203
from takeup.streaming.experiment import run_again

DRIVE = Path(__file__).parents[1] / "data" / "drive.csv"
SESSIONS = np.array([[1.0, 2.0, 6.0, 1.5, 2e6, 0.0], [0.0, 0.0, 0.0, 0.5, 1e6, 0.0]])


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The sessions that a package is given, which scores 4.5 less the number of their stalls."""
    given: list[dict[str, Any]] = []

    def score(session: dict[str, Any], quiet: bool) -> SimpleNamespace:
        given.append(session)
        value = 4.5 - (len(session["I23"]["stalling"]) - 1)
        return SimpleNamespace(calculate_complete=lambda: {"O46": value})

    monkeypatch.setitem(sys.modules, "itu_p1203", SimpleNamespace(P1203Standalone=score))
    return given


def advice(**settings: Any) -> Report:
    values = {"verb": "advise", "logs": [str(DRIVE)], "bitrate_bps": 2.4e6, "players": ["shaka"], **settings}
    return run_again(values, "test", quiet=True)


def test_a_session_has_its_start_up_and_its_stalls_equally_far_apart(scored: list[dict[str, Any]]) -> None:
    assert mean_p1203(SESSIONS) == (2.5 + 4.5) / 2
    assert scored[0]["I23"]["stalling"] == [[0, 1.5], [LENGTH_S / 3, 3.0], [2 * LENGTH_S / 3, 3.0]]
    assert scored[0]["I13"]["segments"][0]["bitrate"] == 2000.0
    assert scored[1]["I23"]["stalling"] == [[0, 0.5]]


def test_the_score_is_a_column_where_it_was_asked_for(scored: list[dict[str, Any]]) -> None:
    table, plain = advice(p1203=True).tables[0], advice().tables[0]

    assert table.columns[-1].name == "P.1203"
    assert 1.0 < float(str(table.rows[0][-1])) < float(str(table.rows[1][-1])) <= 4.5
    assert [row[:-1] for row in table.rows] == list(plain.rows)


def test_without_the_package_one_sentence_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "itu_p1203", None)

    with pytest.raises(MissingEngine, match="needs the package 'itu_p1203', free for research only"):
        advice(p1203=True)


@pytest.mark.engine
def test_the_package_itself_scores_stalls_lower() -> None:
    pytest.importorskip("itu_p1203", reason="needs github.com/itu-p1203/itu-p1203, which is for research only")

    assert 1.0 < mean_p1203(SESSIONS[:1]) < mean_p1203(SESSIONS[1:]) < 5.0
