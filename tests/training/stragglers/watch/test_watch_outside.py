"""What the laboratory does to ranks from outside: stops, and cables that become thin."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support import watch_lab_slowness as outside
from support.pipeline_lab import network as networks
from support.watch_lab import SlowPeriod, WatchedJob
from support.watch_lab_slowness import ExternalSlowness, NetworkMesh, PeriodicStops
from takeup.errors import MissingEngine, TakeupError

PATIENCE_S = 60
needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("tc") is None, reason="needs Linux, root, ip and tc"
)


class Noted:
    """A namespace that notes its commands."""

    def __init__(self) -> None:
        self.path = f"/network/{len(NOTED)}"
        self.commands: list[str] = []
        self.is_open = True
        NOTED.append(self)

    def command(self, line: str) -> None:
        if "198.19.99" in line:
            raise MissingEngine("no")
        self.commands.append(line)

    def close(self) -> None:
        self.is_open = False


NOTED: list[Noted] = []


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[Noted]:
    NOTED.clear()
    monkeypatch.setattr(networks, "NetworkNamespace", Noted)
    monkeypatch.setattr(networks, "check_commands", lambda: None)
    return NOTED


def state_of(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_is_stopped_for_its_part_of_the_time_and_runs_again_afterwards() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    stops = PeriodicStops(sleeper.pid, factor=2.0)

    states = []
    for _ in range(300):
        states.append(state_of(sleeper.pid))
        time.sleep(0.003)
    stops.close()
    last = state_of(sleeper.pid)
    sleeper.kill()
    sleeper.wait()

    assert 0.1 < states.count("T") / len(states) < 0.9
    assert last != "T"


def test_stopping_a_process_that_is_gone_harms_nobody() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    PeriodicStops(gone.pid, factor=2.0).close()


def test_any_two_ranks_have_a_cable_and_routes_over_it(noted: list[Noted]) -> None:
    NetworkMesh(3)

    laid = [line for each in noted for line in each.commands if "type veth" in line]
    assert len(laid) == 3
    for rank, network in enumerate(noted):
        routes = [line for line in network.commands if line.startswith("ip route")]
        assert sorted(line.split()[3] for line in routes) == sorted(
            f"198.18.1.{other + 1}/32" for other in range(3) if other != rank
        )


def test_a_cable_becomes_thin_at_both_ends_and_thick_again(noted: list[Noted]) -> None:
    mesh = NetworkMesh(3)
    before = [len(each.commands) for each in noted]

    mesh.thin((1, 2), 40e6)
    mesh.thin((1, 2), 0.0)

    added = [each.commands[start:] for each, start in zip(noted, before, strict=True)]
    assert added[0] == []
    assert [line.split()[2:7] for line in added[1]] == [
        ["replace", "dev", "to2", "root", "tbf"],
        ["del", "dev", "to2", "root"],
    ]
    assert "rate 40000000bit" in added[2][0]


def test_networks_are_left_when_one_cannot_be_made(noted: list[Noted], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "rank_address", lambda rank: "198.19.99.1")

    with pytest.raises(MissingEngine):
        NetworkMesh(3)
    assert noted
    assert not any(each.is_open for each in noted)


def test_what_is_due_begins_and_ends_with_its_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []

    class Noting:
        def __init__(self, process: int, factor: float) -> None:
            self.process = process
            said.append((process, factor))

        def close(self) -> None:
            said.append(f"{self.process} runs")

    monkeypatch.setattr(outside, "PeriodicStops", Noting)
    slow = (
        SlowPeriod((1,), 10, 20, factor=1.5, is_stopped=True),
        SlowPeriod((0,), 12, 20, factor=3.0),
    )  # one from inside
    made = ExternalSlowness(WatchedJob("ddp", 2, 30, slow=slow))

    for iteration in (0, 9, 10, 15, 19, 20, 25):
        made.at(iteration, [100, 101])
    made.join(0)  # which has no network of its own
    made.close()

    assert said == [(101, 1.5), "101 runs"]


def test_what_is_under_way_ends_with_the_job(noted: list[Noted]) -> None:
    made = ExternalSlowness(WatchedJob("pipeline", 2, 30, slow=(SlowPeriod((0, 1), 10, 99, rate_bps=1e6),)))
    made.at(10, [1, 2])
    made.close()

    assert [line.split()[2] for line in noted[0].commands if line.startswith("tc")] == ["replace", "del"]
    assert not any(each.is_open for each in noted)


def test_who_made_the_networks_says_where_they_are(noted: list[Noted]) -> None:
    assert NetworkMesh(3).paths == [each.path for each in noted]


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_what_is_no_network_cannot_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    (tmp_path / "file").touch()

    with pytest.raises(TakeupError, match="may not enter its network: "):
        networks.enter_namespace(str(tmp_path / "file"))

    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth0"  # it is where it was


@needs_root
def test_ranks_in_networks_of_their_own_reach_each_other() -> None:
    mesh = NetworkMesh(2)
    fork = multiprocessing.get_context("fork")
    ready, heard = fork.Event(), fork.Queue()

    def listen() -> None:
        mesh.join(1)
        with socket.create_server(("198.18.1.2", 7000)) as server:
            ready.set()
            connection, _ = server.accept()
            heard.put(connection.recv(5))

    def speak() -> None:
        mesh.join(0)
        assert ready.wait(PATIENCE_S)
        with socket.create_connection(("198.18.1.2", 7000), timeout=PATIENCE_S) as connection:
            connection.sendall(b"hello")

    both = [fork.Process(target=each) for each in (listen, speak)]
    for each in both:
        each.start()
    said = heard.get(timeout=PATIENCE_S)
    for each in both:
        each.join(PATIENCE_S)
    mesh.close()

    assert said == b"hello"
