"""What is told of a watched job: lines, files, metrics, and a command for whoever schedules machines."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from command_line import Run, assert_one_sentence
from takeup.training.stragglers.contract import Suspect
from takeup.training.stragglers.locate.standing import RankStanding
from takeup.training.stragglers.watch import reports as explain
from takeup.training.stragglers.watch.agent import RemoteRank
from takeup.training.stragglers.watch.channel import Channel
from takeup.training.stragglers.watch.ring import HEADER_WORDS, HeaderWord
from takeup.training.stragglers.watch.ring_reader import GroupPosition
from takeup.training.stragglers.watch.session import WatchSession
from training.stragglers.watch.watched_rings import GROUP, RELIEF, SLOW_RANK, Scripted, add, new_ring

COMPARED = [RankStanding(1, 2, 0.1, 0.1, 0.0, 0.0, 1.0, 0.025), RankStanding(0, 2, 0.1, 0.075, 0.025, 0.0, 0.0)]


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
        "cause": "",
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


def test_the_live_line_says_how_the_job_does(session: WatchSession, tmp_path: Path) -> None:
    assert explain.live_line(session) == "2 ranks, iteration 10, 28.0 ms each, rank 1 computes 1.50x slower"

    nobody = WatchSession(tmp_path / "empty", new_detector=lambda: Scripted([]))
    assert explain.live_line(nobody) == "no ranks, 0 calls, no iterations yet"


def test_below_the_live_line_and_on_the_page_are_the_ranks_by_their_cost(session: WatchSession) -> None:
    session.watcher.latest_standings = COMPARED

    line, head, first, second = explain.live_view(session).splitlines()

    assert line == explain.live_line(session)
    assert head.split()[:3] == ["rank", "own", "waiting"]
    assert (first.split()[0], second.split()[0]) == ("1", "0")
    assert "25.0%" in first
    assert 'takeup_watch_cost_share{rank="1"} 0.25' in explain.metrics_of(session)


def test_the_ranks_are_told_which_of_them_costs_most(tmp_path: Path) -> None:
    rings = [new_ring(tmp_path, rank, 2) for rank in range(2)]
    for ring in rings:
        add(ring, 0)
    session = WatchSession(tmp_path, new_detector=lambda: Scripted([[SLOW_RANK]]))
    session.watcher.latest_standings = COMPARED

    session.poll()
    told = [[ring.words[each] for each in (HeaderWord.COSTLY_RANK, HeaderWord.COST_PPM)] for ring in rings]
    session.poll()

    assert told == [[2, 250_000], [2, 250_000]]
    assert [ring.words[HeaderWord.NUM_EVENTS] for ring in rings] == [1, 1]


def unhealthy(tmp_path: Path, *suspects: Suspect, command: str = "true {host}", here: str = "head") -> list[str]:
    """What is said of these suspects once they have been slow for long enough; rank 1 is on another machine, node7."""
    rounds = [[replace(SLOW_RANK, suspects=suspects)], *[[] for _ in range(9)]]
    session = WatchSession(tmp_path, far={1: far_rank(tmp_path / "far")}, new_detector=lambda: Scripted(rounds))
    for rank in (0, 2, 3):
        new_ring(tmp_path, rank, 4)
    hosts = explain.UnhealthyHosts(command, here, may_run=True)
    return [line for _ in range(8) for line in (session.poll(), hosts.poll(session))[1]]


def far_rank(folder: Path) -> RemoteRank:
    """Rank 1 of four, as its agent on node7 reports it."""
    folder.mkdir()
    header = list(new_ring(folder, 1, 4).words[:HEADER_WORDS])
    closed = cast(Channel, None)  # it sends nothing
    return RemoteRank(1, closed, header, {GROUP: GroupPosition(1, 4)}, host="node7")


COMPUTE = Suspect("compute", (1,), 1.5, 0.98, "")
HERE = Suspect("compute", (2,), 1.5, 0.98, "")


def test_a_command_is_run_once_for_the_host_of_a_rank_that_stays_slow(tmp_path: Path) -> None:
    script = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(' '.join(sys.argv[2:]))"
    command = f'{sys.executable} -c "{script}" {tmp_path / "said"} {{rank}} {{host}} {{kind}} {{factor}}'

    (said,) = unhealthy(tmp_path, COMPUTE, command=command)

    assert "rank 1 computes 1.50x slower, confirmed, on node7; ran" in said
    until_s = time.monotonic() + 60
    while not ((tmp_path / "said").exists() and (tmp_path / "said").read_text()):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert (tmp_path / "said").read_text() == "1 node7 compute 1.50"


def test_the_machine_of_the_watcher_is_never_acted_on(tmp_path: Path) -> None:
    (said,) = unhealthy(tmp_path, HERE, command="/no/such/cordon {host}")

    assert said.endswith("confirmed, on the machine of this watcher, for which '/no/such/cordon' is not run")


def test_no_host_is_acted_on_for_a_link_or_a_busy_machine(tmp_path: Path) -> None:
    link, host = Suspect("link", (0, 1), 2.0, 0.98, ""), Suspect("host", (0, 1), 1.4, 0.0, "")

    assert unhealthy(tmp_path, link, host) == []


def test_without_act_the_command_is_only_printed(tmp_path: Path) -> None:
    hosts = explain.UnhealthyHosts("/no/such/cordon {host}", "head")

    assert hosts._report(COMPUTE, "node7").endswith("on node7; would run /no/such/cordon node7 (add --act to run it)")
    assert hosts._report(COMPUTE, "").endswith("on a machine of unknown name, for which '/no/such/cordon' is not run")


def test_a_rank_that_was_slow_for_a_moment_is_not_acted_on(tmp_path: Path) -> None:
    rounds = [[SLOW_RANK], [RELIEF]]
    session = WatchSession(tmp_path, new_detector=lambda: Scripted([*rounds, *[[] for _ in range(9)]]))
    hosts = explain.UnhealthyHosts("true {host}", "elsewhere")
    for rank in range(4):
        new_ring(tmp_path, rank, 4)

    assert [line for _ in range(9) for line in (session.poll(), hosts.poll(session))[1]] == []


def test_a_command_is_words_and_never_a_shell() -> None:
    assert explain.command_for("true {host}; rm -rf x", COMPUTE, "$(reboot)") == [
        "true",
        "$(reboot);",
        "rm",
        "-rf",
        "x",
    ]


def test_metrics_for_other_machines_without_a_secret_are_refused_before_the_job_starts(
    run: Run, tmp_path: Path
) -> None:
    job = (sys.executable, "-c", "open('started', 'w')")
    refused = run("training", "watch", "--metrics", 0, "--metrics-host", "0.0.0.0", "--", *job)

    assert_one_sentence(refused, "set TAKEUP_METRICS_TOKEN to a secret")
    assert not (tmp_path / "started").exists()
