"""Ranks of other machines: what an agent sends arrives as it was written, and nonsense only ends its connection."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from takeup.errors import BadInput
from takeup.training.stragglers.contract import CALL
from takeup.training.stragglers.watch import agent as module
from takeup.training.stragglers.watch import channel as channels
from takeup.training.stragglers.watch.agent import Agent, Listener, address_of
from takeup.training.stragglers.watch.channel import LENGTH, MOST_FRAME, NUM_BYTES, Channel, Tls, Unauthenticated
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


HEADER = [0] * HEADER_WORDS


def report(rank: int, **others: object) -> dict[str, object]:
    return {"rank": rank, "places": [[GROUP, 0, 1]], "header": HEADER, **others}


def test_without_the_token_nothing_is_read(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ("guessed", ""):
        with socket.create_connection(listener.address) as connection:
            with pytest.raises(Unauthenticated):
                Channel(connection, token, is_listener=False)
            with suppress(OSError):
                connection.sendall(LENGTH.pack(2) + b"0" * NUM_BYTES + b"{}")

            assert is_closed(connection)
    assert listener.ranks == {}


def test_a_greeting_that_is_sent_back_proves_nothing(listener: Listener) -> None:
    with socket.create_connection(listener.address) as connection:
        nonce = connection.recv(NUM_BYTES)
        connection.sendall(nonce)
        connection.sendall(connection.recv(NUM_BYTES))

        assert is_closed(connection)


def test_a_greeting_has_a_deadline_however_slowly_it_arrives(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "GREETING_LIMIT_S", 0.3)
    with socket.create_connection(listener.address) as connection:
        with suppress(OSError):
            for _ in range(NUM_BYTES - 1):
                connection.sendall(b"x")
                time.sleep(0.02)

        assert is_closed_after_nonce(connection)
    assert eventually(lambda: not any(each.is_alive() for each in listener._hearing))


def test_strangers_have_a_limit_and_leave_space_for_agents(
    listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers = [socket.create_connection(listener.address) for _ in range(3 * module.MOST_STRANGERS)]
    assert eventually(lambda: sum(each.is_alive() for each in listener._hearing) == module.MOST_STRANGERS)
    for stranger in strangers[module.MOST_STRANGERS :]:
        assert is_closed_after_nonce(stranger)
    for stranger in strangers:
        stranger.close()
    assert eventually(lambda: not any(each.is_alive() for each in listener._hearing))

    new_ring(tmp_path, 0, 1)
    agent = Agent(RingCollector(tmp_path), listener.address, TOKEN)
    agent.poll()
    assert eventually(lambda: 0 in listener.ranks)
    agent.close()


def is_closed_after_nonce(connection: socket.socket) -> bool:
    connection.settimeout(PATIENCE_S)
    try:
        return len(connection.recv(NUM_BYTES)) in {0, NUM_BYTES} and connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("change", ["length", "body", "repeated", "nested", "no object", "pickle", "parts missing"])
def test_an_invalid_frame_ends_the_connection_and_nothing_else(listener: Listener, change: str) -> None:
    connection = socket.create_connection(listener.address)
    with connection:
        channel = Channel(connection, TOKEN, is_listener=False)
        bodies = {"nested": b"[" * 200_000, "no object": b"[1]\n", "pickle": b"\x80\x04K\x01", "body": b'{"rank": 0}'}
        body = bodies.get(change, b'{"rank": 0}\n')
        mac = channel._mac(b"to listener", 1, body)
        if change == "length":
            connection.sendall(LENGTH.pack(MOST_FRAME + 1))
        elif change == "body":
            connection.sendall(LENGTH.pack(len(body)) + mac + body.replace(b"0", b"1"))
        elif change == "repeated":
            channel.send(report(7))
            assert eventually(lambda: 7 in listener.ranks)
            connection.sendall(LENGTH.pack(len(body)) + mac + body)
        else:
            connection.sendall(LENGTH.pack(len(body)) + mac + body)

        assert is_closed(connection)
    assert set(listener.ranks) <= {7}


def test_a_rank_belongs_to_the_connection_that_reported_it_first(listener: Listener) -> None:
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(socket.create_connection(listener.address)) for _ in range(3))
        compare_owners(listener, first, second, third)


def compare_owners(listener: Listener, first: socket.socket, second: socket.socket, third: socket.socket) -> None:
    channel = Channel(first, TOKEN, is_listener=False)
    channel.send(report(0, host="node-1"))
    assert eventually(lambda: 0 in listener.ranks)

    Channel(second, TOKEN, is_listener=False).send(report(0, host="node-2"))
    assert is_closed(second)
    assert listener.ranks[0].host == "node-1"

    channel.close()
    assert eventually(lambda: len(listener._open) == 0)
    Channel(third, TOKEN, is_listener=False).send(report(0, host="node-3"))
    assert eventually(lambda: listener.ranks[0].host == "node-3")


def test_one_connection_reports_a_limited_number_of_ranks(listener: Listener) -> None:
    with socket.create_connection(listener.address) as connection:
        channel = Channel(connection, TOKEN, is_listener=False)
        with suppress(OSError):
            for rank in range(module.MOST_RANKS + 1):
                channel.send(report(rank))

        assert is_closed(connection)
    assert len(listener.ranks) == module.MOST_RANKS


def test_rows_that_nothing_reads_are_counted_and_dropped(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 100)
    calls = np.zeros(60, CALL)
    calls["operation"], calls["group"], calls["began_ns"], calls["ended_ns"] = 1, GROUP, 5, 6
    with socket.create_connection(listener.address) as connection:
        channel = Channel(connection, TOKEN, is_listener=False)
        for _ in range(3):
            channel.send(report(0), calls.tobytes())
        assert eventually(lambda: 0 in listener.ranks and listener.ranks[0].num_lost == 80)

        assert len(listener.ranks[0].read()) == 100
        channel.send(report(0), calls.tobytes())
        assert eventually(lambda: len(listener.ranks[0].read()) == 60)


LOW = """
import resource, socket, sys, time
from takeup.training.stragglers.watch.agent import Listener
from takeup.training.stragglers.watch.channel import Channel
listener = Listener(("127.0.0.1", 0), "a secret")
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
print(listener.address[1], flush=True)
sys.stdin.readline()
"""


def test_a_listener_without_descriptors_left_listens_again_when_there_are_some(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LOW], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline()))
        strangers = [socket.create_connection(address) for _ in range(64)]
        for stranger in strangers:
            stranger.close()

        def is_heard() -> bool:
            with socket.create_connection(address) as connection:
                try:
                    Channel(connection, TOKEN, is_listener=False)
                except (OSError, Unauthenticated):
                    return False
                return True

        assert eventually(is_heard)
        process.stdin.write(b"\n")


def test_rows_that_make_no_sense_are_counted_and_left_out(listener: Listener) -> None:
    calls = np.zeros(3, CALL)
    calls["operation"], calls["group"], calls["began_ns"], calls["ended_ns"] = [1, 99, 1], GROUP, 5, [6, 6, 2]
    with socket.create_connection(listener.address) as connection:
        Channel(connection, TOKEN, is_listener=False).send(report(0), calls.tobytes())
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
    with socket.create_server(("127.0.0.1", 0)) as server:
        ring, agents = new_ring(tmp_path, 0, 1), list[Agent]()
        connects = threading.Thread(
            target=lambda: agents.append(Agent(RingCollector(tmp_path), server.getsockname()[:2], TOKEN))
        )
        connects.start()
        connection = server.accept()[0]
        Channel(connection, TOKEN, is_listener=True)
        connects.join()
        connection.close()

    assert eventually(lambda: not agents[0].is_connected)
    add(ring, 0)
    agents[0].poll()
    agents[0].close()


def test_an_agent_with_another_token_says_so(listener: Listener, tmp_path: Path) -> None:
    new_ring(tmp_path, 0, 1)

    with pytest.raises(BadInput, match="does not know this token; set TAKEUP_WATCH_TOKEN to the same secret"):
        Agent(RingCollector(tmp_path), listener.address, "wrong")


def test_an_agent_without_a_listener_says_so(tmp_path: Path) -> None:
    with socket.socket() as silent:  # it has the port, so that nobody else can, and does not listen
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]

        with pytest.raises(BadInput, match=f"no listener at 127.0.0.1:{port} .*; start one with --listen"):
            Agent(RingCollector(tmp_path), ("127.0.0.1", port), TOKEN)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_every_listener_needs_a_token(host: str) -> None:
    with pytest.raises(BadInput, match="set TAKEUP_WATCH_TOKEN"):
        Listener((host, 0), "")


def test_addresses_are_host_and_port_or_a_port() -> None:
    assert address_of("7070") == ("127.0.0.1", 7070)
    assert address_of("node-3:7070") == ("node-3", 7070)
    for wrong in ("node-3", "node-3:x", "70700", ""):
        with pytest.raises(BadInput, match="is no address; give HOST:PORT"):
            address_of(wrong)


# TLS ------------------------------------------------------------------------------------------------------------------


def certificate(folder: Path, name: str, address: str = "127.0.0.1") -> tuple[Path, Path]:
    """A certificate made as the guide says: the file of the listener, and that of agents."""
    both, public = folder / f"{name}-both.pem", folder / f"{name}.pem"
    options = f"-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={name}"
    program = ["openssl", "req", "-x509", *options.split(), "-addext", f"subjectAltName=IP:{address}"]
    subprocess.run([*program, "-keyout", both, "-out", public], check=True, capture_output=True)
    both.write_bytes(both.read_bytes() + public.read_bytes())
    return both, public


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    return certificate(tmp_path_factory.mktemp("tls"), "listener")


@pytest.fixture
def encrypted(certificates: tuple[Path, Path]) -> Iterator[Listener]:
    made = Listener(("127.0.0.1", 0), TOKEN, Tls(certificates[0], is_listener=True))
    yield made
    made.close()


def test_with_tls_calls_and_requests_pass_each_other_and_nothing_of_them_is_readable(
    encrypted: Listener, certificates: tuple[Path, Path], tmp_path: Path
) -> None:
    ring, seen = new_ring(tmp_path, 0, 1), bytearray()
    with relayed(encrypted.address, seen) as address:
        agent = Agent(RingCollector(tmp_path), address, TOKEN, Tls(certificates[1], is_listener=False))
        for number in range(200):
            add(ring, number)
            agent.poll()
            assert eventually(lambda: 0 in encrypted.ranks)
            encrypted.ranks[0].ask(HeaderWord.PLAN_COUNT, number)
        agent.close()
    encrypted.drain(PATIENCE_S)

    assert len(encrypted.ranks[0].read()) == 200
    assert ring.words[HeaderWord.PLAN_COUNT] > 0
    assert len(seen) > 200 * HEADER_WORDS
    assert b"header" not in seen


@contextmanager
def relayed(address: tuple[str, int], seen: bytearray) -> Iterator[tuple[str, int]]:
    """A port that passes everything on to `address`, and what it saw."""

    def pass_on(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                seen.extend(data)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(address) as far,
        ExitStack() as stack,
    ):

        def run() -> None:
            near = stack.enter_context(server.accept()[0])
            back = threading.Thread(target=pass_on, args=(far, near))
            back.start()
            pass_on(near, far)
            back.join()

        thread = threading.Thread(target=run)
        thread.start()
        yield server.getsockname()[:2]
        thread.join()


@pytest.mark.parametrize("other", ["another certificate", "another address"])
def test_an_agent_speaks_only_to_the_listener_whose_certificate_it_trusts(
    certificates: tuple[Path, Path], tmp_path: Path, other: str
) -> None:
    both, public = certificate(tmp_path, "other", "127.0.0.1" if other == "another certificate" else "10.0.0.1")
    trusted = certificates[1] if other == "another certificate" else public
    listener = Listener(("127.0.0.1", 0), TOKEN, Tls(both, is_listener=True))

    with pytest.raises(BadInput, match=r"is not the one that --tls trusts .*; give its certificate, made for"):
        Agent(RingCollector(tmp_path), listener.address, TOKEN, Tls(trusted, is_listener=False))
    listener.close()


def test_without_tls_on_both_ends_nothing_is_read(
    encrypted: Listener, listener: Listener, certificates: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="--tls on all or none"):
        Agent(RingCollector(tmp_path), encrypted.address, TOKEN)
    with pytest.raises(BadInput, match="--tls"):
        Agent(RingCollector(tmp_path), listener.address, TOKEN, Tls(certificates[1], is_listener=False))


def test_a_handshake_has_a_deadline_too(encrypted: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "GREETING_LIMIT_S", 0.3)
    with socket.create_connection(encrypted.address) as connection:
        connection.sendall(b"\x16\x03\x01")

        assert is_closed(connection)
    assert eventually(lambda: not any(each.is_alive() for each in encrypted._hearing))


@pytest.mark.parametrize("is_listener", [True, False])
def test_a_file_without_certificates_is_named(tmp_path: Path, is_listener: bool) -> None:
    (tmp_path / "x.pem").write_text("nothing")

    for name in ("x.pem", "missing.pem"):
        with pytest.raises(BadInput, match=rf"{name} is of no use for TLS .*; give .* as PEM"):
            Tls(tmp_path / name, is_listener=is_listener)


def listener_once_free(address: tuple[str, int]) -> Listener:
    """A listener at an address that the thread of another one may hold for a moment."""
    made: list[Listener] = []

    def listens() -> bool:
        with suppress(BadInput):
            made.append(Listener(address, TOKEN))
        return bool(made)

    assert eventually(listens)
    return made[0]


def test_an_agent_connects_again_when_its_listener_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    ring = new_ring(tmp_path, 0, 1)
    first = Listener(("127.0.0.1", 0), TOKEN)
    agent = Agent(RingCollector(tmp_path), first.address, TOKEN)
    agent.poll()
    assert eventually(lambda: 0 in first.ranks)
    first.close()
    first.ranks[0].channel.close()
    socket.create_connection(agent._address).close()  # so that its thread sees that it is closed
    assert eventually(lambda: not agent.is_connected)

    again = listener_once_free(agent._address)
    add(ring, 0)
    agent.poll()
    arrived = eventually(lambda: 0 in again.ranks and len(again.ranks[0].read()) == 1)
    agent.close()
    again.close()

    assert arrived
    assert again.ranks[0].host == first.ranks[0].host != ""
