"""The cluster on a terminal while a scheduler works: what is shown and when, and what where there is no terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from command_line import Run
from takeup.cluster import model
from takeup.cluster.experiment.live import DRAW_EVERY_S, LiveView, live_view
from takeup.cluster.model import Evict, Eviction, Grade, Hold, Job, Kind, Node, Quota, Start, State, Waiting
from takeup.cluster.report.live import BAR_WIDTH, MOST_ROWS, MOST_SHOWN, DecisionLog, screen
from takeup.core.control import LoopCounters
from takeup.core.report import Cell, Report, Table

HOUR_S = 3600.0
RUN = ("cluster", "play", "gfs", "--for-s", "3600", "--days", "1")


def job(name: str, kind: Kind = Kind.SPOT, gpus: float = 4.0) -> Job:
    return Job(name, kind, "us", "a", gpus)


def state(**given: object) -> State:
    """Two nodes of eight GPUs of pool a, ten hours after the beginning."""
    fields = {"runs": (), "waiting": (), **given}
    return State(10 * HOUR_S, (Node("n0", "a", 8), Node("n1", "a", 8)), **fields)  # type: ignore[arg-type]


def shown(of: State | None, diary: DecisionLog | None = None, counters: LoopCounters | None = None) -> Report:
    return screen("gfs on slurm", 1, of, diary or DecisionLog(), counters or LoopCounters(), ("first", "last"))


def table(report: Report, title: str) -> Table:
    (found,) = (each for each in report.tables if each.title.startswith(title))
    return found


def row(of: Table, number: int = 0) -> dict[str, Cell]:
    return dict(zip((column.name for column in of.columns), of.rows[number], strict=True))


# What is shown --------------------------------------------------------------------------------------------------------


def test_use_is_shown_by_class_with_what_is_idle() -> None:
    runs = tuple(model.Run(job(grade.name, gpus=4), ("n0",), 0.0, grade, 0.0) for grade in Grade)

    use = row(table(shown(state(runs=runs)), "GPUs"))

    assert (use["high"], use["promised"], use["no promise"], use["idle"]) == (4.0, 4.0, 4.0, 4.0)
    quarter = BAR_WIDTH // 4
    assert use["use"] == "H" * quarter + "G" * quarter + "o" * quarter + "." * quarter


@pytest.mark.parametrize(("gpus", "letters"), [(0.1, 0), (8.0, BAR_WIDTH // 2), (16.0, BAR_WIDTH), (20.0, BAR_WIDTH)])
def test_the_bar_is_never_wider_than_its_place(gpus: float, letters: int) -> None:
    of = state(runs=(model.Run(job("j", Kind.HIGH, gpus), ("n0",), 0.0, Grade.HIGH, 0.0),))

    assert row(table(shown(of), "GPUs"))["use"] == "H" * letters + "." * (BAR_WIDTH - letters)


def test_the_quota_stands_beside_the_demand_that_runs_and_waits() -> None:
    high = model.Run(job("h", Kind.HIGH, 3), ("n0",), 0.0, Grade.HIGH, 0.0)
    waiting = (Waiting(job("w", Kind.HIGH, 2), 0.0), Waiting(job("s", Kind.SPOT, 8), 0.0))
    of = state(runs=(high,), waiting=waiting, quotas={"a": Quota("a", {1.0: 6.0, 4.0: 2.0})})

    use = row(table(shown(of), "GPUs"))

    assert (use["high demand"], use["quota"]) == (5.0, 6.0)


def test_before_there_is_a_quota_none_is_shown() -> None:
    assert row(table(shown(state()), "GPUs"))["quota"] is None


def test_the_queue_begins_with_high_priority_and_then_who_waits_longest() -> None:
    waits = [Waiting(job(f"s{n}"), n * HOUR_S, num_evictions=n) for n in range(MOST_ROWS + 2)]
    of = state(waiting=(*reversed(waits), Waiting(job("h", Kind.HIGH), 9 * HOUR_S)))

    queue = table(shown(of), "Queue")

    assert [cells[0] for cells in queue.rows] == ["h", *(f"s{n}" for n in range(MOST_ROWS - 1))]
    assert (queue.title, queue.note) == (f"Queue: {MOST_ROWS + 3}", "and 3 more")
    assert row(queue, 2) == {"job": "s1", "class": "spot", "GPUs": 4.0, "waits": 9 * HOUR_S, "evicted before": 1}


def test_evictions_are_the_latest_first_and_those_of_the_last_hour_are_counted() -> None:
    evictions = (Eviction("old", HOUR_S, ("n0",)), Eviction("new", 10 * HOUR_S - 60, ("n1", "n1", "n0")))

    found = table(shown(state(evictions=evictions)), "Evictions")

    assert found.title == "Evictions: 1 in the last hour"
    assert found.rows == (("new", 60.0, "n1, n0"), ("old", 9 * HOUR_S, "n0"))


def test_a_long_list_of_nodes_is_cut() -> None:
    names = tuple(f"node-{number:03d}" for number in range(20))

    nodes = table(shown(state(evictions=(Eviction("e", 0.0, names),))), "Evictions").rows[0][2]

    assert str(nodes).startswith("node-000, node-001")
    assert len(str(nodes)) == 40


def test_the_last_decisions_are_shown_with_their_reasons_and_waiting_is_none() -> None:
    diary = DecisionLog()
    for number in range(MOST_SHOWN + 3):
        diary.note(Start(f"j{number}", ("n0",), Grade.HIGH, "idle GPUs fit"), "applied")
    diary.note(Hold("w", "no room"), "applied")
    diary.note(Evict("v", "j", 8.0, "cheapest", 30.0), "refused")

    rows = table(shown(state(), diary), "Last decisions").rows

    assert len(rows) == MOST_SHOWN
    assert rows[-1] == ("refused", "evict v in 30 s: cheapest")
    assert rows[-2] == ("applied", f"start j{MOST_SHOWN + 2} on n0: idle GPUs fit")


def test_without_a_state_it_says_how_many_rounds_failed_and_why_the_last_did() -> None:
    report = shown(None, counters=LoopCounters(num_rounds=3, num_failed_rounds=3))

    assert [each.title for each in report.tables] == ["Last decisions"]
    assert report.notes == ("3 rounds, 3 of them failed", "last")


# When it is drawn -----------------------------------------------------------------------------------------------------


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def drawn_at(*moments_s: float) -> int:
    """How many pictures are asked for when there would be one at each of these moments."""
    asked, left = [], list(moments_s)

    def picture() -> Report:
        asked.append(True)
        return shown(state())

    with Live(console=Console(file=StringIO()), auto_refresh=False) as live:
        seen = LiveView(live, monotonic=lambda: left.pop(0))
        for _ in moments_s:
            seen.draw(picture)
    return len(asked)


@pytest.mark.parametrize(
    ("moments_s", "count"),
    [((0.0,), 1), ((0.0, 0.9 * DRAW_EVERY_S), 1), ((0.0, 0.9 * DRAW_EVERY_S, 1.1 * DRAW_EVERY_S, 9.0), 3)],
)
def test_it_is_drawn_now_and_then_however_fast_rounds_are(moments_s: tuple[float, ...], count: int) -> None:
    assert drawn_at(*moments_s) == count


def test_a_terminal_shows_the_picture() -> None:
    terminal = Terminal()

    with live_view(quiet=False, stream=terminal) as seen:
        assert seen is not None
        seen.draw(lambda: shown(state()))

    assert "gfs on slurm" in terminal.getvalue()
    assert "Last decisions" in terminal.getvalue()


@pytest.mark.parametrize(("quiet", "stream"), [(True, Terminal()), (False, StringIO())])
def test_nothing_is_shown_to_who_is_no_terminal_or_wants_quiet(quiet: bool, stream: StringIO) -> None:
    with live_view(quiet=quiet, stream=stream) as seen:
        pass

    assert seen is None
    assert stream.getvalue() == ""


# The whole program ----------------------------------------------------------------------------------------------------


def on_a_terminal(*arguments: str, folder: Path) -> tuple[int, str, str]:
    """The program with a terminal for its errors: its exit code, its output and what the terminal got."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "50"}
    program = [sys.executable, "-m", "takeup", *arguments]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=follower, env=environment, cwd=folder) as process:
        os.close(follower)
        seen = b"".join(iter(lambda: _read(leader), b""))
        assert process.stdout is not None
        output = process.stdout.read().decode()
    os.close(leader)
    return process.returncode, output, seen.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the other side is closed
        return b""


def test_on_a_terminal_the_cluster_is_shown_and_the_report_follows(tmp_path: Path) -> None:
    code, output, seen = on_a_terminal(*RUN, "--json", folder=tmp_path)

    assert code == 0
    assert all(words in seen for words in ("gfs on simulated jobs", "Queue:", "Evictions:", "Last decisions"))
    assert '"title": "Cluster: gfs on simulated jobs"' in output


def test_anywhere_else_every_decision_is_a_line(run: Run) -> None:
    outcome = run(*RUN, "--json")

    assert outcome.code == 0
    assert any(line.startswith("applied: start ") for line in outcome.err.splitlines())
    assert "Last decisions" not in outcome.err
