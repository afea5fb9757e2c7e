"""Causes of slow ranks: the times that hooks add up in a rank, and which of them explains an excess."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the package torch")

import torch
from torch.utils.data import DataLoader

from takeup.training.stragglers.contract import SlowdownEvent, Suspect
from takeup.training.stragglers.watch.causes import CAUSES, CauseTimes, RankTimes, has_slowed_clock
from takeup.training.stragglers.watch.ring import HEADER_WORDS, HeaderWord

MS = 1_000_000


class Reader:
    """The header of a rank."""

    def __init__(self, **words: int) -> None:
        self.words = words

    def word(self, place: int) -> int:
        return self.words.get({value: name for name, value in vars(HeaderWord).items()}[place], 0)


def times_after(num_iterations: int, *ranks: dict[str, int]) -> CauseTimes:
    """Samples at the begin and after some iterations."""
    times = CauseTimes()
    times.poll(0, {rank: Reader() for rank in range(len(ranks))})
    times.poll(num_iterations, {rank: Reader(**words) for rank, words in enumerate(ranks)})
    return times


def event_of(kind: Any, ranks: tuple[int, ...], excess_s: float) -> SlowdownEvent:
    return SlowdownEvent(0, 10, True, 1.5, 0.3, (Suspect(kind, ranks, 1.5, 1.0, "", excess_s),), 0.1, 0.15)


@pytest.mark.parametrize(
    ("word", "cause"),
    [
        ("LOADING_NS", "in its data loader"),
        ("GARBAGE_NS", "in garbage collection"),
        ("SAVING_NS", "while it saves"),
        ("THROTTLED_NS", "at its CPU quota"),
    ],
)
def test_what_grows_on_the_slow_rank_alone_is_its_cause(word: str, cause: str) -> None:
    times = times_after(10, {word: 10 * MS}, {word: 400 * MS}, {word: 12 * MS})

    (suspect,) = times.explained(event_of("compute", (1,), 0.05), lambda rank: False).suspects

    assert suspect.cause == cause
    assert str(suspect) == f"rank 1 computes 1.50x slower {cause}"


def test_a_time_that_is_shorter_than_half_of_the_excess_explains_nothing() -> None:
    times = times_after(10, {}, {"LOADING_NS": 200 * MS}, {})

    assert times.explained(event_of("compute", (1,), 0.05), lambda rank: False).suspects[0].cause == ""


def test_a_time_that_all_ranks_spend_explains_nothing() -> None:
    times = times_after(10, *[{"LOADING_NS": 600 * MS}] * 3)

    assert times.explained(event_of("compute", (1,), 0.05), lambda rank: False).suspects[0].cause == ""


def test_without_another_cause_the_clock_of_the_card_is_asked_for() -> None:
    times = times_after(10, {}, {}, {})

    found = times.explained(event_of("compute", (1,), 0.05), lambda rank: rank == 1)

    assert found.suspects[0].cause == "with a slowed clock"


@pytest.mark.parametrize(("kind", "ranks"), [("link", (0, 1)), ("host", (1,)), ("pause", (0, 1, 2))])
def test_links_hosts_and_shared_pauses_have_no_cause_of_a_rank(kind: str, ranks: tuple[int, ...]) -> None:
    event = event_of(kind, ranks, 0.05)

    assert times_after(10, {}, {"LOADING_NS": 900 * MS}, {}).explained(event, lambda rank: True) == event


def test_loading_saving_and_garbage_are_timed_and_everything_is_put_back(tmp_path: Any) -> None:
    words = [0] * HEADER_WORDS
    before = torch.save, len(gc.callbacks)
    undo = RankTimes(lambda: SimpleNamespace(words=words)).install()

    batches = [batch.tolist() for batch in DataLoader(torch.arange(4), batch_size=2)]  # type: ignore[arg-type]
    torch.save([1], tmp_path / "saved")
    gc.collect()
    undo()

    assert batches == [[0, 1], [2, 3]]
    assert all(words[word] > 0 for word in CAUSES if word != HeaderWord.THROTTLED_NS)
    assert (torch.save, len(gc.callbacks)) == before


def test_a_machine_whose_driver_cannot_be_asked_has_no_slowed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    assert not has_slowed_clock(0)


@pytest.mark.parametrize(("answer", "is_slowed"), [("0x0000000000000001", False), ("0x0000000000000020", True)])
def test_the_reasons_of_the_driver_are_read(
    answer: str, is_slowed: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho {answer}\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert has_slowed_clock(3) is is_slowed
