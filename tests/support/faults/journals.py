"""Journals under faults: what is read again is what was acknowledged, and what was refused is never carried out."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.engines.slurm.fake_slurm import FakeSlurm
from support.faults.lab import Attempt, Outcome
from takeup.cluster.engines.slurm.commands import CommandResult, Slurm
from takeup.cluster.engines.slurm.engine import SlurmEngine
from takeup.cluster.engines.slurm.journal import Journal
from takeup.cluster.model import Evict, Grade, Start

Entries = list[dict[str, Any]]
NUM_OPERATIONS = 10
GONE = "999"  # a job that no longer waits: evictions for it are not put off until it starts


@dataclass(slots=True)
class JournalWriter:
    """Entries, some of them together; now and then the journal is shortened."""

    seed: int
    name: str = field(init=False)
    plan: list[tuple[str, Entries]] = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"journal {self.seed}"
        draw = random.Random(self.seed)
        self.plan = []
        for number in range(NUM_OPERATIONS):
            pads = ["é" * draw.randrange(90) for _ in range(draw.choice((1, 3)))]
            entries = [{"n": number, "part": part, "pad": pad} for part, pad in enumerate(pads)]
            self.plan.append((draw.choice(("write", "write", "write", "shorten")), entries))

    def prepare(self, folder: Path) -> None:
        """An empty folder."""

    def work(self, folder: Path, attempt: Attempt) -> None:
        """Open, write, shorten, close."""
        opened: list[Journal] = []
        if not attempt(-1, lambda: opened.append(Journal(folder / "deep" / "journal"))):
            return
        for number, (how, entries) in enumerate(self.plan):
            if how == "shorten":
                attempt(number, lambda e=entries: opened[0].shorten(e))  # type: ignore[misc]
            else:
                attempt(number, lambda e=entries: opened[0].write(*e))  # type: ignore[misc]
        attempt(len(self.plan), opened[0].close)

    def check(self, folder: Path, outcome: Outcome) -> list[str]:
        """The entries are those of the acknowledged operations, perhaps with the one that did not end."""
        path = folder / "deep" / "journal"
        found, allowed = _entries(path) if path.exists() else [], self._allowed(outcome)
        return [] if found in allowed else [f"found {_short(found)}, allowed {[_short(it) for it in allowed]}"]

    def _allowed(self, outcome: Outcome) -> list[Entries]:
        state: Entries = []
        others: list[Entries] = []  # states that the disk may hold instead
        for number, (how, _) in enumerate(self.plan):
            after = self._after(state, number)
            if number in outcome.done:  # a shortened file has its name for good with the next entry
                others = [*others, state] if how == "shorten" and outcome.is_power_lost else []
                state = after
            elif number in outcome.unknown or number == outcome.begun:
                others = [*others, after]
        return [state, *others]

    def _after(self, state: Entries, number: int) -> Entries:
        how, entries = self.plan[number]
        return entries if how == "shorten" else [*state, *entries]


def _entries(path: Path) -> Entries:
    with Journal(path) as journal:
        return [dict(entry) for entry in journal.entries]


def _short(entries: Entries) -> list[str]:
    return [f"{it.get('n')}.{it.get('part', 0)}" for it in entries]


@dataclass(slots=True)
class DatabaseWriter(JournalWriter):
    """The same entries in SQLite, for comparison: write-ahead log, every commit synced, one writer."""

    def __post_init__(self) -> None:
        JournalWriter.__post_init__(self)
        self.name = f"sqlite {self.seed}"

    def work(self, folder: Path, attempt: Attempt) -> None:
        """Every operation is a transaction."""
        opened: list[sqlite3.Connection] = []
        if not attempt(-1, lambda: opened.append(open_database(folder / "store")), sqlite3.Error):
            return
        for number, (how, entries) in enumerate(self.plan):
            attempt(number, lambda e=entries, h=how: commit(opened[0], e, h), sqlite3.Error)  # type: ignore[misc]
        attempt(len(self.plan), opened[0].close, sqlite3.Error)

    def check(self, folder: Path, outcome: Outcome) -> list[str]:
        """As for a journal."""
        found: Entries = []
        if (folder / "store").exists():
            with suppress(sqlite3.OperationalError), closing(open_database(folder / "store")) as store:
                found = [json.loads(row[0]) for row in store.execute("select entry from log order by number")]
        allowed = self._allowed(outcome)
        return [] if found in allowed else [f"found {_short(found)}, allowed {[_short(it) for it in allowed]}"]


@dataclass(slots=True)
class BufferedWriter(JournalWriter):
    """The same entries through a buffered file, which keeps what it could not write: what a journal must not do."""

    def __post_init__(self) -> None:
        JournalWriter.__post_init__(self)
        self.name = f"buffered {self.seed}"
        self.plan = [("write", entries) for _, entries in self.plan]

    def work(self, folder: Path, attempt: Attempt) -> None:
        """Write, flush, sync; a failure is not undone."""
        (folder / "deep").mkdir(exist_ok=True)
        file = (folder / "deep" / "journal").open("a", encoding="utf-8")

        def write(entries: Entries) -> None:
            file.write(f"{json.dumps(entries)}\n")
            file.flush()
            os.fsync(file.fileno())

        for number, (_, entries) in enumerate(self.plan):
            attempt(number, lambda e=entries: write(e), OSError)  # type: ignore[misc]
        attempt(len(self.plan), file.close, OSError)


def open_database(path: Path) -> sqlite3.Connection:
    """A log in SQLite that loses nothing which was committed."""
    opened = sqlite3.connect(path, isolation_level=None)
    opened.execute("pragma locking_mode=exclusive")
    opened.execute("pragma journal_mode=wal")
    opened.execute("pragma synchronous=full")
    opened.execute("create table if not exists log (number integer primary key, entry text)")
    return opened


def commit(opened: sqlite3.Connection, entries: Entries, how: str = "write") -> None:
    """One transaction; it is rolled back if it fails."""
    try:
        opened.execute("begin immediate")
        if how == "shorten":
            opened.execute("delete from log")
        opened.executemany("insert into log (entry) values (?)", [(json.dumps(it),) for it in entries])
        opened.execute("commit")
    except sqlite3.Error:
        with suppress(sqlite3.Error):
            opened.execute("rollback")
        raise


# The Slurm controller -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ControllerWriter:
    """Evictions and starts; the commands that were sent reach a second Slurm, on which the next controller works."""

    seed: int
    name: str = field(init=False)
    num_nodes: int = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"slurm {self.seed}"
        self.num_nodes = 4 + self.seed % 3

    def prepare(self, folder: Path) -> None:
        """An empty folder."""

    def work(self, folder: Path, attempt: Attempt) -> None:
        """Rounds of decisions; every command is said before it takes effect."""
        slurm, spots, waiting = self._cluster()

        def call(words: Any) -> CommandResult:
            attempt.tell(f"say {json.dumps([slurm.now_s, list(words)])}")
            return slurm(words)

        opened: list[SlurmEngine] = []
        if not attempt(-1, lambda: opened.append(_engine(folder, slurm, call))):
            return
        for number, spot in enumerate(spots):
            attempt(2 * number, opened[0].observe)
            attempt(2 * number + 1, lambda s=spot: opened[0].apply(Evict(s, GONE, 0.0, "test")))  # type: ignore[misc]
            slurm.tick(1.0)
        attempt(90, opened[0].observe)
        attempt(91, lambda: opened[0].apply(Start(waiting[1], (f"n{self.num_nodes - 1}",), Grade.HIGH, "test")))
        attempt(92, opened[0].close)

    def check(self, folder: Path, outcome: Outcome) -> list[str]:
        """The next controller sends nothing for what was refused, and remembers what was acknowledged."""
        slurm, spots, _ = self._cluster()
        for line in outcome.said:
            if line.startswith("["):
                now_s, words = json.loads(line)
                slurm.tick(max(0.0, now_s - slurm.now_s))
                slurm(words)
        num_before = len(slurm.commands)
        engine = _engine(folder, slurm, slurm)
        known = {*engine.ledger.intents, *(it.job_id for it in engine.ledger.evictions)}
        engine.observe()
        engine.close()
        sent = " ; ".join(slurm.commands[num_before:])
        jobs = {2 * number + 1: spot for number, spot in enumerate(spots)}
        later = [jobs[it] for it in outcome.refused if it in jobs and f"requeuehold Incomplete {jobs[it]}" in sent]
        lost = [jobs[it] for it in outcome.done if it in jobs and jobs[it] not in known]
        return [
            *(f"job {job} is evicted later, although that was refused" for job in later),
            *(f"the eviction of job {job} is forgotten" for job in lost),
        ]

    def _cluster(self) -> tuple[FakeSlurm, list[str], list[str]]:
        slurm = FakeSlurm(num_nodes=self.num_nodes)
        spots = [slurm.run("spot", 8, f"n{node}") for node in range(self.num_nodes - 1)]
        return slurm, spots, [slurm.submit("high", 8, num_nodes=self.num_nodes - 1), slurm.submit("high", 8)]


def _engine(folder: Path, slurm: FakeSlurm, call: Any) -> SlurmEngine:
    clocks: dict[str, Any] = {"wall": lambda: slurm.now_s, "monotonic": lambda: slurm.now_s}
    return SlurmEngine(folder / "journal", slurm=Slurm(call), **clocks)
