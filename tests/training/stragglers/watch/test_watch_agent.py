"""Ranks of other machines: what an agent sends arrives as it was written, and nonsense only ends its connection."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from takeup.errors import BadInput
from takeup.training.stragglers.contract import CALL
from takeup.training.stragglers.watch.agent import LENGTH, MOST_FRAME, Agent, Listener, address_of, send
from takeup.training.stragglers.watch.ring import HEADER_WORDS, HeaderWord
from takeup.training.stragglers.watch.ring_reader import RingCollector
from training.stragglers.watch.watched_rings import GROUP, add, new_ring

TOKEN = "a secret"
PATIENCE_S = 60


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener(("127.0.0.1", 0), TOKEN)
    yield made
    made.close()


def eventually(holds: Callable[[], object]) -> bool:
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return True


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(PATIENCE_S)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_calls_of_two_machines_become_logs_of_one_job(listener: Listener, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for rank, folder in enumerate((here, there)):
        folder.mkdir()
        add(new_ring(folder, rank, 2), 0, skew_ns=rank * 10**15)
    agent = Agent(RingCollector(there), listener.address, TOKEN)
    agent.poll()
    gather = RingCollector(here, listener.ranks)

    assert eventually(lambda: gather.poll() or gather.is_complete)
    logs = gather.read()

    assert [log.rank for log in logs] == [0, 1]
    assert logs[1].groups == {GROUP: (0, 1)}
    assert [(log.calls["ended_ns"] - log.calls["began_ns"]).tolist() for log in logs] == [[5], [5]]
    assert gather.read()[1].calls.tolist() == []
    agent.close()


def test_shares_reach_ranks_on_other_machines_and_nothing_else_does(listener: Listener, tmp_path: Path) -> None:
    ring = new_ring(tmp_path, 0, 1)
    add(ring, 0)
    agent = Agent(RingCollector(tmp_path), listener.address, TOKEN)
    agent.poll()
    assert eventually(lambda: 0 in listener.ranks)
    far = listener.ranks[0]

    far.ask(HeaderWord.HEAD, 12_345)
    far.ask(HeaderWord.PLAN_COUNT, 3)

    assert eventually(lambda: ring.words[HeaderWord.PLAN_COUNT] == 3)
    assert ring.words[HeaderWord.HEAD] == 1
    agent.close()


def test_without_the_token_nobody_is_heard(listener: Listener) -> None:
    with socket.create_connection(listener.address) as connection:
        send(connection, {"token": "guessed"})
        send(connection, {"rank": 0, "places": [], "header": [0] * HEADER_WORDS})

        assert is_closed(connection)
    assert listener.ranks == {}


@pytest.mark.parametrize(
    "frame",
    [
        LENGTH.pack(MOST_FRAME + 1),
        LENGTH.pack(5) + b"[1]\n ",
        LENGTH.pack(4) + b"\x80\x04K\x01",  # a pickle
        LENGTH.pack(13) + b'{"rank": 0}\n ',
    ],
    ids=["too long", "no object", "no JSON", "parts missing"],
)
def test_nonsense_ends_the_connection_and_nothing_else(listener: Listener, frame: bytes) -> None:
    with socket.create_connection(listener.address) as connection:
        send(connection, {"token": TOKEN})
        connection.sendall(frame)

        assert is_closed(connection)
    assert listener.ranks == {}


def test_rows_that_make_no_sense_are_counted_and_left_out(listener: Listener) -> None:
    calls = np.zeros(3, CALL)
    calls["operation"], calls["group"], calls["began_ns"], calls["ended_ns"] = [1, 99, 1], GROUP, 5, [6, 6, 2]
    header = [0] * HEADER_WORDS
    with socket.create_connection(listener.address) as connection:
        send(connection, {"token": TOKEN})
        send(connection, {"rank": 0, "places": [[GROUP, 0, 1]], "header": header}, calls.tobytes())
        assert eventually(lambda: 0 in listener.ranks and listener.ranks[0].num_bad)

    assert listener.ranks[0].num_bad == 2
    assert len(listener.ranks[0].read()) == 1


def test_agents_are_heard_out_before_the_last_look(listener: Listener, tmp_path: Path) -> None:
    ring = new_ring(tmp_path, 0, 1)
    agent = Agent(RingCollector(tmp_path), listener.address, TOKEN)
    agent.poll()
    assert eventually(lambda: 0 in listener.ranks)
    for number in range(50):
        add(ring, number)
    agent.poll()
    agent.close()
    listener.drain(PATIENCE_S)

    assert len(listener.ranks[0].read()) == 50


def test_agents_that_stay_are_not_waited_for_for_ever(listener: Listener, tmp_path: Path) -> None:
    new_ring(tmp_path, 0, 1)
    agent = Agent(RingCollector(tmp_path), listener.address, TOKEN)
    agent.poll()
    assert eventually(lambda: 0 in listener.ranks)
    listener.drain(0.01)

    assert agent.is_connected
    agent.close()


def test_an_agent_whose_listener_is_gone_lets_its_job_go_on(tmp_path: Path) -> None:
    listener = Listener(("127.0.0.1", 0), TOKEN)
    ring = new_ring(tmp_path, 0, 1)
    agent = Agent(RingCollector(tmp_path), listener.address, "wrong")  # so it is shown out

    assert eventually(lambda: not agent.is_connected)
    add(ring, 0)
    agent.poll()

    listener.close()
    agent.close()


def test_an_agent_without_a_listener_says_so(tmp_path: Path) -> None:
    with socket.socket() as silent:  # it has the port, so that nobody else can, and does not listen
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]

        with pytest.raises(BadInput, match=f"no listener at 127.0.0.1:{port} .*; start one with --listen"):
            Agent(RingCollector(tmp_path), ("127.0.0.1", port), TOKEN)


def test_who_can_be_reached_by_others_needs_a_token() -> None:
    with pytest.raises(BadInput, match="set TAKEUP_WATCH_TOKEN"):
        Listener(("0.0.0.0", 0), "")


def test_addresses_are_host_and_port_or_a_port() -> None:
    assert address_of("7070") == ("127.0.0.1", 7070)
    assert address_of("node-3:7070") == ("node-3", 7070)
    for wrong in ("node-3", "node-3:x", "70700", ""):
        with pytest.raises(BadInput, match="is no address; give HOST:PORT"):
            address_of(wrong)


def test_frames_are_json_that_anybody_can_write() -> None:
    one, other = socket.socketpair()
    with one, other:
        send(one, {"rank": 3})
        (length,) = LENGTH.unpack(other.recv(LENGTH.size))

        assert json.loads(other.recv(length)) == {"rank": 3}
