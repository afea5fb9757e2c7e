"""What a watcher asks of a pipeline, and when ranks follow."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from takeup.training.pipelines.engine import adaptive as requests
from takeup.training.pipelines.engine.adaptive import FOLDER, ReplanRequests
from takeup.training.stragglers.contract import AdaptSchedule, JobState
from takeup.training.stragglers.remedy.remediation import Remediation, WatchSettings
from takeup.training.stragglers.watch.ring import HeaderWord, RingBuffer
from takeup.training.stragglers.watch.ring_reader import RingReader
from takeup.training.stragglers.watch.session import job_state
from training.stragglers.watch.watched_rings import SLOW_LINK, Scripted, new_ring


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RingBuffer:
    """That of this rank, which is watched."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    made = new_ring(tmp_path)
    monkeypatch.setattr(requests, "_ring", lambda: made)
    return made


def alone(number: int) -> int:
    """The least of what the only rank says."""
    return number


def test_a_request_is_followed_once(ring: RingBuffer) -> None:
    asked = ReplanRequests(alone)

    assert not asked.is_new()
    ring.words[HeaderWord.ADAPT] = 1
    assert [asked.is_new(), asked.is_new()] == [True, False]
    ring.words[HeaderWord.ADAPT] = 2
    assert [asked.is_new(), asked.is_new()] == [True, False]


def test_nobody_follows_before_all_ranks_have_seen_it(ring: RingBuffer) -> None:
    others = SimpleNamespace(least=0)
    asked = ReplanRequests(lambda number: min(number, others.least))
    ring.words[HeaderWord.ADAPT] = 1

    assert not asked.is_new()
    others.least = 1
    assert asked.is_new()


def test_without_a_watcher_nothing_is_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)

    def never(number: int) -> int:
        raise AssertionError

    assert not ReplanRequests(never).is_new()


def test_a_rank_whose_ring_is_not_there_takes_part_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(requests, "_ring", lambda: None)
    said: list[int] = []
    asked = ReplanRequests(lambda number: said.append(number) or 0)  # type: ignore[func-returns-value]

    assert not asked.is_new()
    asked.tell(3)
    assert said == [0]


def state_of(ring_folder: Path) -> JobState:
    return job_state({0: RingReader(ring_folder / "0-1.ring")}, Scripted([]), None, 0.0)


def test_who_asked_is_told_when_all_have_followed_and_what_came_of_it(ring: RingBuffer, tmp_path: Path) -> None:
    ring.words[HeaderWord.IS_ADAPTIVE] = 1
    asked, remedies = ReplanRequests(alone), Remediation(WatchSettings())

    (request,) = remedies.on_event(SLOW_LINK, None, state_of(tmp_path)).actions
    assert request == AdaptSchedule(1)
    ring.words[HeaderWord.ADAPT] = 1
    assert remedies.on_progress(state_of(tmp_path)) == []
    assert asked.is_new()
    asked.tell(1)

    (outcome,) = remedies.on_progress(state_of(tmp_path))
    assert outcome.action == "the pipeline has changed its schedule"
    assert remedies.on_progress(state_of(tmp_path)) == []  # it is told once


@pytest.mark.parametrize(("is_adaptive", "expected"), [(0, False), (1, True)])
def test_only_a_pipeline_that_adapts_is_asked(
    ring: RingBuffer, tmp_path: Path, is_adaptive: int, expected: bool
) -> None:
    ring.words[HeaderWord.IS_ADAPTIVE] = is_adaptive

    assert state_of(tmp_path).can_adapt is expected
