"""Programs that are ended at any moment, run twice on one folder, or have few descriptors: what is there is whole."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from takeup.cluster.engines.slurm.journal import Journal
from takeup.core.report import Report
from takeup.errors import BadInput

HEEDS_INTERRUPTS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
"""
JOURNAL = """
import sys
from pathlib import Path
from takeup.cluster.engines.slurm.journal import Journal
with Journal(Path(sys.argv[1])) as journal:
    number = len(journal.entries)
    while True:
        journal.write({"n": number}, {"n": number + 1})
        number += 2
        print(number, flush=True)
        if number % 50 == 0:
            journal.shorten([{"n": it} for it in range(number)])
"""
REPORTS = """
import sys
from pathlib import Path
from takeup.core.render.folder import write
from takeup.core.report import Column, Report, Table
number = 0
while True:
    rows = tuple((it, sys.argv[2]) for it in range(number % 40))
    table = Table("t", (Column("n"), Column("of")), rows)
    write(Report("A title", "caching", {}, 1, tables=(table,)), Path(sys.argv[1]), ("json", "html"))
    number += 1
    print(number, flush=True)
"""


def ended_after(program: str, num_lines: int, *arguments: str, how: int = signal.SIGTERM) -> list[str]:
    """Run a program, end it while it does what follows its n-th line, and return what it printed."""
    command = [sys.executable, "-c", HEEDS_INTERRUPTS + program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(num_lines)]
        process.send_signal(how)
        return [*lines, *process.stdout.read().splitlines()]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_journal_whose_writer_is_ended_at_any_moment_has_all_that_was_acknowledged(tmp_path: Path, how: int) -> None:
    draw, acknowledged = random.Random(how), 0
    for _ in range(6):
        lines = ended_after(JOURNAL, draw.randrange(1, 60), str(tmp_path / "journal"), how=how)
        acknowledged = max(acknowledged, int(lines[-1] or lines[-2]))
        with Journal(tmp_path / "journal") as journal:
            found = [entry["n"] for entry in journal.entries]

        assert found == list(range(len(found)))
        assert acknowledged <= len(found) <= acknowledged + 2


def test_two_programs_that_write_one_folder_until_they_are_ended_leave_whole_files(tmp_path: Path) -> None:
    for number in range(4):
        other = subprocess.Popen([sys.executable, "-c", REPORTS, str(tmp_path), "b"], stdout=subprocess.DEVNULL)
        ended_after(REPORTS, 5 + 7 * number, str(tmp_path), "a")
        other.terminate()
        other.wait()
        visible = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]

        assert {path.name for path in visible} == {"report.json", "report.html"}
        (table,) = Report.load(tmp_path / "report.json").tables
        assert len({row[1] for row in table.rows}) <= 1  # all of it is of one of the two


def test_a_second_controller_does_not_touch_the_journal_of_the_first(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        journal.write({"n": 1})
        before = (tmp_path / "journal").read_bytes()
        with pytest.raises(BadInput, match="another controller writes to"):
            Journal(tmp_path / "journal")

        assert (tmp_path / "journal").read_bytes() == before
        journal.write({"n": 2})
    lines = (tmp_path / "journal").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("most_files", [16, 32])
def test_a_command_with_few_descriptors_works_or_says_so(tmp_path: Path, most_files: int) -> None:
    pytest.importorskip("vl_convert", reason="needs charts: pip install 'takeup[charts]'")
    out = tmp_path / "out"
    words = ["-m", "takeup", "caching", "simulate", "lru", "--workload", "zip", "--out", str(out)]
    ran = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files)),
    )

    assert "Traceback" not in ran.stderr
    if ran.returncode == 0:
        assert Report.load(out / "report.json").holds
    else:
        assert ran.returncode == 2
        assert "Too many open files" in ran.stderr.splitlines()[-1]
        assert not out.exists() or not list(out.glob("report.*"))
