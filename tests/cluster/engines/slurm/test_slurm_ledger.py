"""What the controller remembers beyond what Slurm shows, also after it was killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path

import pytest

from takeup.cluster.engines.slurm import journal as module
from takeup.cluster.engines.slurm.journal import Journal, Notice, SlurmLedger
from takeup.cluster.engines.slurm.rows import GpuRequest, JobRow, JobStatus
from takeup.cluster.model import Eviction, Grade, Quota, SetQuota, Start

DAY_S = 86_400.0


def running(name: str, num_restarts: int = 0, status: JobStatus = JobStatus.RUNNING) -> JobRow:
    ask = GpuRequest("a100", 2, 1, is_apart=True)
    return JobRow(name, status, "spot", "research", ask, ("n0",), (2,), ("n0",), 0.0, 0.0, 0.0, num_restarts, ("", ""))


def held(name: str, num_restarts: int = 1) -> JobRow:
    return running(name, num_restarts, JobStatus.HELD)


@contextmanager
def opened(path: Path) -> Iterator[SlurmLedger]:
    with Journal(path) as journal:
        yield SlurmLedger(journal)


def test_an_eviction_counts_when_slurm_has_restarted_the_job(tmp_path: Path) -> None:
    with opened(tmp_path / "journal") as ledger:
        ledger.intend_evictions([(running("1"), "because")], "9", 100.0)
        before = list(ledger.evictions)
        ledger.settle([held("1")], 101.0)

        assert before == []
        assert ledger.evictions == [Eviction("1", 100.0, ("n0",))]


def test_the_next_controller_finds_out_whether_the_last_words_of_the_first_were_heard(tmp_path: Path) -> None:
    with opened(tmp_path / "journal") as ledger:
        ledger.intend_evictions([(running("1"), "because")], "9", 100.0)
        ledger.intend_evictions([(running("2"), "because")], "9", 100.0)

    with opened(tmp_path / "journal") as ledger:
        ledger.settle([held("1"), running("2")], 101.0)
        assert [it.job_id for it in ledger.evictions] == ["1"]
        assert not ledger.is_evicted(running("2"))


def test_evictions_that_belong_together_are_written_as_one_each_and_open_until_seen(tmp_path: Path) -> None:
    with opened(tmp_path / "journal") as ledger:
        ledger.intend_evictions([(running("1"), "cheap"), (running("2"), "near")], "9", 100.0)

    with opened(tmp_path / "journal") as ledger:
        begun = ledger.begun_since(99.0), ledger.begun_since(100.0)
        ledger.settle([held("1"), held("2")], 101.0)
        assert begun == (("1", "2"), ())
        assert ledger.begun_since(0.0) == ()
        assert len(ledger.evictions) == 2


def test_an_eviction_is_counted_once_however_often_it_is_looked_at(tmp_path: Path) -> None:
    with opened(tmp_path / "journal") as ledger:
        ledger.intend_evictions([(running("1"), "because")], "9", 100.0)
        for now_s in range(101, 110):
            ledger.settle([held("1")], float(now_s))

    with opened(tmp_path / "journal") as ledger:
        ledger.settle([held("1")], 120.0)
        assert len(ledger.evictions) == 1


def test_a_run_is_evicted_until_we_see_what_became_of_it() -> None:
    ledger = SlurmLedger()
    ledger.intend_evictions([(running("1"), "because")], "9", 100.0)

    assert ledger.is_evicted(running("1"))
    assert not ledger.is_evicted(running("1", num_restarts=1))
    assert not ledger.is_evicted(running("2"))


def test_a_job_that_ended_by_itself_was_not_evicted() -> None:
    ledger = SlurmLedger()
    ledger.intend_evictions([(running("1"), "because")], "9", 100.0)

    ledger.settle([], 101.0)

    assert (ledger.evictions, ledger.intents) == ([], {})


def test_evictions_are_forgotten_after_a_day() -> None:
    ledger = SlurmLedger()
    ledger.intend_evictions([(running("1"), "because")], "9", 100.0)
    ledger.settle([held("1")], 101.0)

    ledger.settle([held("1")], 101.0 + DAY_S)

    assert ledger.evictions == []


def test_notices_and_quotas_survive(tmp_path: Path) -> None:
    notice = Notice("1", "9", 100.0, 160.0)
    with opened(tmp_path / "journal") as ledger:
        ledger.give_notice(notice, "because")
        ledger.note_quota(SetQuota(Quota("a100", {1.0: 8.0, inf: inf}, None, 1.5), "because"), 100.0)
        ledger.intend_start(Start("2", ("n1",), Grade.HIGH, "because"), 100.0)

    with opened(tmp_path / "journal") as ledger:
        assert ledger.notices == {"1": notice}
        assert ledger.quotas == {"a100": Quota("a100", {1.0: 8.0, inf: inf})}
        assert ledger.quotas["a100"].coefficient == 1.5


def test_a_notice_ends_when_the_job_no_longer_runs(tmp_path: Path) -> None:
    with opened(tmp_path / "journal") as ledger:
        ledger.give_notice(Notice("1", "9", 100.0, 160.0), "because")
        ledger.settle([running("1"), held("9")], 101.0)
        assert "1" in ledger.notices
        ledger.settle([held("1"), held("9")], 102.0)

    with opened(tmp_path / "journal") as ledger:
        assert ledger.notices == {}


@pytest.mark.parametrize("rows", [[running("1")], [running("1"), running("9")]])
def test_a_notice_ends_when_nobody_needs_the_room_any_more(rows: list[JobRow]) -> None:
    ledger = SlurmLedger()
    ledger.give_notice(Notice("1", "9", 100.0, 160.0), "because")

    ledger.settle(rows, 101.0)

    assert ledger.notices == {}


def test_entries_of_another_kind_or_without_sense_change_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        for entry in ({"do": "dance"}, {}, {"do": "evict"}, {"do": "notice", "job": "1"}, {"do": "quota", "gpus": 3}):
            journal.write(entry)

    with opened(tmp_path / "journal") as ledger:
        assert (ledger.intents, ledger.notices, ledger.quotas, ledger.evictions) == ({}, {}, {}, [])


def test_a_journal_is_shortened_to_what_gives_the_same_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LINES", 3)
    with opened(tmp_path / "journal") as ledger:
        for number in range(40):  # all but the last are evicted, and start again
            ledger.intend_evictions([(running("1", number), "because")], "9", float(number))
            ledger.settle([running("1", number + 1)], number + 0.5)
        ledger.intend_evictions([(running("1", 40), "because")], "9", 40.0)
        ledger.give_notice(Notice("2", "9", 40.0, 70.0), "because")
        ledger.note_hold(held("3"))
        before = (ledger.intents, ledger.notices, ledger.evictions, ledger.held)
        ledger.tidy(41.0)
        assert ledger.journal is not None
        assert ledger.journal.num_lines == 39 + 1 + 1 + 1 + 2

    with opened(tmp_path / "journal") as ledger:
        assert (ledger.intents, ledger.notices, ledger.evictions, ledger.held) == before


def test_a_long_journal_is_shortened_to_the_last_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LINES", 3)
    with opened(tmp_path / "journal") as ledger:
        ledger.note_quota(SetQuota(Quota("a100", {1.0: 8.0}, None, 0.5), "because"), 0.0)
        for number in range(5):
            ledger.intend_evictions([(running(str(number)), "because")], "9", number * DAY_S)

    with opened(tmp_path / "journal") as ledger:
        ledger.tidy(4 * DAY_S)

    with opened(tmp_path / "journal") as ledger:
        assert set(ledger.intents) == {"4"}
        assert ledger.quotas["a100"].gpus_by_hours == {1.0: 8.0}
        assert ledger.quotas["a100"].coefficient == 0.5
