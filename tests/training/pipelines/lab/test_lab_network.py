"""Networks of the laboratory: who is asked for what, which cables are thin, and that ranks reach each other."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import sys
from typing import Any

import pytest

from support.pipeline_lab import network
from support.pipeline_lab.network import PipelineNetwork, rate_bps, uses_namespaces
from takeup.errors import MissingEngine, UnknownName
from takeup.training.pipelines.profile import Link, Profile

needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("tc") is None, reason="needs Linux, root, ip and tc"
)


class Noted:
    """A namespace that notes its commands."""

    made: list[Noted]

    def __init__(self) -> None:
        self.path = f"/network/{len(Noted.made)}"
        self.commands: list[str] = []
        self.is_open = True
        Noted.made.append(self)

    def do(self, action: Any) -> None:
        self.commands.append("forwards")

    def command(self, line: str) -> None:
        if "broken" in line:
            raise MissingEngine("no")
        self.commands.append(line)

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Noted]:
    Noted.made = []
    monkeypatch.setattr(network, "NetworkNamespace", Noted)
    monkeypatch.setattr(network, "check_commands", lambda: None)
    return Noted.made


def test_the_rate_serves_a_message_with_its_frames_in_the_given_time() -> None:
    assert rate_bps(1448, 1.0) == 8 * 1514
    assert rate_bps(65536, 0.020) == pytest.approx(8 * (65536 + 46 * 66) / 0.020)


def test_only_slow_links_have_a_bucket_at_both_ends(made: list[Noted]) -> None:
    PipelineNetwork(Profile.uniform(3, 2, 0.01, {1: Link(0.0, 1.0)}), 1448)

    thin = [[line.split()[4] for line in namespace.commands if line.startswith("tc")] for namespace in made]
    assert thin == [[], ["ahead"], ["behind"]]
    assert "tc qdisc add dev ahead root tbf rate 12112bit burst 3028 limit 8388608" in made[1].commands


def test_ranks_are_reached_through_those_between(made: list[Noted]) -> None:
    PipelineNetwork(Profile.uniform(3, 2, 0.01), 1448)

    assert made[0].commands[-2:] == [
        "ip route add 198.18.1.2/32 via 198.19.0.2 src 198.18.1.1",
        "ip route add 198.18.1.3/32 via 198.19.0.2 src 198.18.1.1",
    ]
    assert made[1].commands[-1] == "ip route add 198.18.1.3/32 via 198.19.1.2 src 198.18.1.2"
    assert "forwards" in made[1].commands
    assert "ip link add ahead type veth peer name behind netns /network/2" in made[1].commands


def test_what_was_made_is_left_when_a_command_fails(made: list[Noted], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_end", lambda link, end: "broken")

    with pytest.raises(MissingEngine):
        PipelineNetwork(Profile.uniform(2, 2, 0.01), 1448)

    assert [namespace.is_open for namespace in made] == [False, False]


def test_cables_are_used_where_they_are_wanted_and_can_be_made(
    made: list[Noted], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [uses_namespaces(name) for name in ("user-space", "auto", "namespaces")]

    def refuse() -> None:
        raise MissingEngine("needs the command 'ip'")

    monkeypatch.setattr(network, "check_commands", refuse)
    assert found == [False, True, True]
    assert not any(namespace.is_open for namespace in made)
    assert not uses_namespaces("auto")
    with pytest.raises(MissingEngine, match="needs the command 'ip'"):
        uses_namespaces("namespaces")
    with pytest.raises(UnknownName, match="did you mean 'auto'"):
        uses_namespaces("autos")


def receive(cables: PipelineNetwork, listens: Any, found: Any) -> None:
    """The last rank takes one message."""
    cables.join(2)
    server = socket.create_server(("198.18.1.3", 5000))
    listens.set()
    connection, (sender, _) = server.accept()
    found.put((sender, connection.recv(16)))


def send(cables: PipelineNetwork, listens: Any) -> None:
    """The first rank sends it."""
    cables.join(0)
    assert listens.wait(60)
    with socket.create_connection(("198.18.1.3", 5000), timeout=60) as connection:
        connection.sendall(b"through the middle")


@needs_root
@pytest.mark.engine
def test_a_message_from_the_first_rank_reaches_the_last_through_real_cables() -> None:
    fork = multiprocessing.get_context("fork")
    listens, found = fork.Event(), fork.SimpleQueue()
    cables = PipelineNetwork(Profile.uniform(3, 2, 0.01, {1: Link(0.0, 0.01)}), 1448)
    ranks = [
        fork.Process(target=receive, args=(cables, listens, found)),
        fork.Process(target=send, args=(cables, listens)),
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    cables.close()

    assert [rank.exitcode for rank in ranks] == [0, 0]
    assert found.get() == ("198.18.1.1", b"through the midd")
