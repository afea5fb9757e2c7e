"""The program of the laboratory: how long it waits for ranks, and that it does not outlive whoever started it."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")
from support.pipeline_lab import program


class Rank:
    """A process that runs until it is killed, or for so many looks at it."""

    def __init__(self, num_looks: int | None = None, exitcode: int | None = None) -> None:
        self._num_looks = num_looks
        self._code = exitcode
        self.killed = False

    def is_alive(self) -> bool:
        if self._num_looks is not None:
            self._num_looks -= 1
        return not self.killed and (self._num_looks is None or self._num_looks > 0)

    @property
    def exitcode(self) -> int | None:
        return self._code if self._num_looks is not None and self._num_looks <= 0 else None

    def kill(self) -> None:
        self.killed = True

    def join(self) -> None:
        assert self.killed


def test_ranks_that_end_are_waited_for() -> None:
    ranks = [Rank(3, 0), Rank(5, 0)]

    program._join(ranks)  # type: ignore[arg-type]

    assert not any(rank.is_alive() for rank in ranks)


def test_once_a_rank_has_failed_the_others_have_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "GRACE_S", 0.05)
    failed, waits = Rank(2, 1), Rank()

    program._join([failed, waits])  # type: ignore[list-item]

    assert waits.killed


def test_ranks_do_not_outlive_whoever_started_the_laboratory(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank()
    monkeypatch.setattr(os, "getppid", lambda: 1)

    with pytest.raises(SystemExit, match="the process that started the laboratory has ended"):
        program._join([rank])  # type: ignore[list-item]

    assert rank.killed
