"""What is told of a watched job: lines, files, metrics, and a command for whoever schedules machines."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from takeup.errors import BadInput
from takeup.training.stragglers.contract import Finding
from takeup.training.stragglers.watch import reports as explain
from takeup.training.stragglers.watch.session import WatchSession
from training.stragglers.watch.watched_rings import RELIEF, SLOW_LINK, SLOW_RANK, Scripted, add, new_ring


@pytest.fixture
def session(tmp_path: Path) -> WatchSession:
    """Two ranks, one of them slow."""
    for rank in range(2):
        add(new_ring(tmp_path, rank, 2), 0)
    made = WatchSession(tmp_path, new_detector=lambda: Scripted([[SLOW_RANK]]))
    made.poll()
    return made


def test_a_finding_is_plain_values(session: WatchSession) -> None:
    values = json.loads(json.dumps(explain.finding_values(session.findings[0])))

    assert values["sentence"] == session.findings[0].sentence()
    assert values["is_slow"] is True
    assert values["suspects"][0] == {
        "kind": "compute",
        "ranks": [1],
        "factor": 1.5,
        "share_late": 0.98,
        "reason": "it computes",
        "excess_s": 0.0,
        "least_s": 0.0,
    }
    assert values["lost_share"] == 0.29


def test_every_finding_has_a_file_and_a_trace(session: WatchSession, tmp_path: Path) -> None:
    told, trace = explain.write_finding(tmp_path / "out", session.findings[0], session)

    assert (told.name, trace.name) == ("event-001.json", "event-001.trace.json")
    assert json.loads(told.read_text("utf-8"))["number"] == 1
    assert json.loads(trace.read_text("utf-8"))["traceEvents"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [told.name, trace.name]  # nothing half-written


def test_the_page_has_counts_and_who_is_slow(session: WatchSession) -> None:
    page = explain.metrics_of(session)

    assert 'takeup_watch_slow{kind="compute",ranks="1"} 1.5' in page
    assert "takeup_watch_ranks 2" in page
    assert "takeup_watch_iterations_total 10" in page
    assert "takeup_watch_calls_total 2" in page
    assert "takeup_watch_events_total 1" in page
    assert "takeup_watch_lost_seconds_total 0.08" in page
    for line in page.splitlines():
        assert line.startswith(("# HELP takeup_watch_", "# TYPE takeup_watch_", "takeup_watch_"))


def test_the_page_is_served_on_this_machine_only() -> None:
    server = explain.serve_metrics(0, lambda: "takeup_watch_ranks 2\n")
    host, port = server.server_address[:2]

    with urllib.request.urlopen(f"http://{host!s}:{port}/metrics", timeout=60) as answer:
        assert answer.read() == b"takeup_watch_ranks 2\n"
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4"
    assert host == "127.0.0.1"
    with pytest.raises(BadInput, match=f"no metrics on port {port}: .*give another port"):
        explain.serve_metrics(port, lambda: "")
    server.shutdown()
    server.server_close()


def test_the_live_line_says_how_the_job_does(session: WatchSession, tmp_path: Path) -> None:
    assert explain.live_line(session) == "2 ranks, iteration 10, 28.0 ms each, rank 1 computes 1.50x slower"

    nobody = WatchSession(tmp_path / "empty", new_detector=lambda: Scripted([]))
    assert explain.live_line(nobody) == "no ranks, 0 calls, no iterations yet"


def test_the_command_for_unhealthy_machines_is_run_for_every_slow_rank(tmp_path: Path) -> None:
    script = "import sys, pathlib; pathlib.Path(sys.argv[1], sys.argv[2]).write_text(' '.join(sys.argv[2:]))"
    command = f'{sys.executable} -c "{script}" {tmp_path} {{rank}} {{host}} {{kind}} {{factor}}'

    explain.report_unhealthy(command, Finding(1, SLOW_LINK, "none"), hosts=["a", "b"])

    until_s = time.monotonic() + 60
    while not all((tmp_path / rank).exists() and (tmp_path / rank).read_text() for rank in "01"):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["0 a link 2.00", "1 b link 2.00"]


def test_a_command_is_words_and_never_a_shell(tmp_path: Path) -> None:
    run = explain.report_unhealthy("true {host}; rm -rf x", Finding(1, SLOW_RANK, "none"), hosts=["a", "$(reboot)"])

    assert run == [["true", "$(reboot);", "rm", "-rf", "x"]]


def test_nobody_is_reported_when_the_job_has_recovered() -> None:
    assert explain.report_unhealthy("true {rank}", Finding(1, RELIEF, "none")) == []
