"""What jobs say in their comments, and that nonsense is counted and left out."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.cluster.engines.slurm.rows import Remarks, read_remarks

NOW_S = 1_794_755_830.0


def test_a_job_says_when_it_saved_and_how_often_it_does() -> None:
    remarks = read_remarks(("", "takeup saved_s=1794755800 checkpoint_s=600 guarantee_h=2 notice=USR1"), NOW_S)

    assert remarks == Remarks(saved_s=1_794_755_800, checkpoint_s=600, guarantee_h=2, signal="USR1")


def test_a_job_without_a_remark_loses_everything_it_did() -> None:
    assert read_remarks(("", "my first training"), NOW_S) == Remarks(saved_s=-inf, checkpoint_s=inf)


def test_words_before_the_mark_belong_to_somebody_else() -> None:
    remarks = read_remarks(("project=42 saved_s=7 takeup: guarantee_h=4",), NOW_S)

    assert remarks == Remarks(guarantee_h=4)


def test_the_job_has_the_last_word_over_the_administrator() -> None:
    remarks = read_remarks(("takeup guarantee_h=4 saved_s=5", "takeup saved_s=6"), NOW_S)

    assert (remarks.guarantee_h, remarks.saved_s) == (4, 6)


def test_a_parked_job_is_left_to_its_owner() -> None:
    assert read_remarks(("takeup parked",), NOW_S).is_parked


@pytest.mark.parametrize(
    "word",
    [
        "saved_s=yesterday",
        "saved_s=-1",
        "saved_s=nan",
        "saved_s=inf",
        f"saved_s={NOW_S + 3600:.0f}",
        "saved_s=",
        "checkpoint_s=0",
        "guarantee_h=1e9",
        "colour=red",
        "notice=rm -rf",
        "notice=$(reboot)",
        "saved_s",
        "parked=no",
    ],
)
def test_nonsense_is_counted_and_changes_nothing(word: str) -> None:
    remarks = read_remarks((f"takeup {word}",), NOW_S)

    assert remarks.num_malformed >= 1
    assert remarks == Remarks(num_malformed=remarks.num_malformed)


def test_one_bad_word_does_not_spoil_the_others() -> None:
    remarks = read_remarks(("takeup saved_s=soon guarantee_h=2",), NOW_S)

    assert (remarks.guarantee_h, remarks.num_malformed) == (2, 1)


@given(st.text(max_size=200))
def test_no_comment_at_all_makes_a_job_look_safer_than_now(text: str) -> None:
    remarks = read_remarks((text, f"takeup {text}"), NOW_S)

    assert remarks.saved_s <= NOW_S + 60
    assert remarks.checkpoint_s > 0
    assert 0 <= remarks.guarantee_h < inf
