"""The summary of sessions made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from support.dash.engine import VideoSession, summarise_sessions
from takeup.errors import BadInput
from takeup.streaming.model import Player


def session(number: int, times_s: list[float], contents_s: list[float]) -> VideoSession:
    return VideoSession(float(number), contents_s[-1], 1, np.array(times_s), np.array(contents_s))


def test_a_summary_counts_what_happened() -> None:
    smooth = [session(number, [2.0, 3.0], [5.0, 9.0]) for number in range(5)]
    stalled = [session(number, [4.0, 11.0], [5.0, 9.0]) for number in range(5, 10)]
    blocked = [VideoSession(float(number), 9.0) for number in range(10, 20)]

    answer = summarise_sessions([*smooth, *stalled, *blocked], Player(5.0), "by hand")

    assert answer.source == "by hand"
    assert answer.startup_s.value == 3.0
    assert answer.stall_probability.value == answer.num_stalls.value == 0.5
    assert answer.stall_s.value == 0.5 * 2.0
    assert answer.finished_early.value == 0.0
    assert answer.blocked_share.value == 0.5
    assert answer.num_videos == 10


def test_too_few_videos_make_no_summary() -> None:
    with pytest.raises(BadInput, match="only 9 of 9 videos"):
        summarise_sessions([session(number, [1.0], [1.0]) for number in range(9)], Player(1.0), "by hand")
