"""Sentences about slowdowns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from takeup.training.stragglers.contract import SlowdownEvent, Suspect

RANK = Suspect("compute", (3,), 1.52, 0.97, "own work")
LINK = Suspect("link", (1, 2), 8.0, 1.0, "transfer")
EVENT = SlowdownEvent(60, 64, True, 1.43, 0.301, (RANK,), 0.0998, 0.1428)


def test_a_slow_rank_in_words() -> None:
    assert EVENT.sentence() == (
        "since iteration 60, rank 3 computes 1.52x slower, costing 30% of the throughput (99.8 ms before, 142.8 ms now)"
    )


@pytest.mark.parametrize(
    ("suspect", "words"),
    [
        (LINK, "the link between ranks 1 and 2 is 8.00x slower"),
        (replace(LINK, ranks=(0, 1, 2)), "a link among ranks 0, 1 and 2 is 8.00x slower"),
        (RANK, "rank 3 computes 1.52x slower"),
    ],
)
def test_suspects_in_words(suspect: Suspect, words: str) -> None:
    assert str(suspect) == words


def test_two_suspects_are_joined() -> None:
    assert "rank 3 computes 1.52x slower and the link between" in replace(EVENT, suspects=(RANK, LINK)).sentence()


def test_nobody_is_said_to_be_nobody() -> None:
    assert "all ranks are slower, or something they share" in replace(EVENT, suspects=()).sentence()


def test_recovery_in_words() -> None:
    well = SlowdownEvent(90, 94, False, 0.7, 0.0, (), 0.1428, 0.0998)

    assert well.sentence() == "since iteration 90, iterations have recovered: 142.8 ms before, 99.8 ms now"
