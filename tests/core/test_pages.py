"""Pages over HTTP: what is served, and what silent, slow and many clients cannot do."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from takeup.core import pages
from takeup.core.pages import MOST_CONNECTIONS, PageServer
from takeup.errors import BadInput


@pytest.fixture
def server() -> Iterator[PageServer]:
    made = PageServer("0", {"/metrics": lambda: (True, "takeup_ranks 2\n")})
    yield made
    made.close()


def read(server: PageServer) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/metrics", timeout=60) as answer:
        content: bytes = answer.read()
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4"
    return content


def connected(server: PageServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=60)


def test_a_port_alone_is_one_of_this_machine(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert read(server) == b"takeup_ranks 2\n"


def test_a_port_that_is_taken_is_refused_in_a_sentence(server: PageServer) -> None:
    with pytest.raises(BadInput, match=r"no pages on '127.0.0.1:[0-9]+': .*give HOST:PORT with a port that is free"):
        PageServer(f"127.0.0.1:{server.server_address[1]}", {})


def test_silent_connections_cost_a_few_threads_for_a_while(monkeypatch: pytest.MonkeyPatch, server: PageServer) -> None:
    monkeypatch.setattr(pages, "LIMIT_S", 0.2)
    before = threading.active_count()
    silent = [connected(server) for _ in range(50)]
    for connection in silent:
        assert connection.recv(1) == b""
        assert threading.active_count() <= before + 2 * MOST_CONNECTIONS  # one each, and one for its deadline
        connection.close()

    assert read(server) == b"takeup_ranks 2\n"


def test_a_client_that_sends_a_byte_now_and_then_is_closed_in_time(
    monkeypatch: pytest.MonkeyPatch, server: PageServer
) -> None:
    monkeypatch.setattr(pages, "LIMIT_S", 0.3)
    with connected(server) as slow:
        slow.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
        slow.settimeout(0.01)  # between two bytes
        while still_open(slow):
            slow.sendall(b"x")


def still_open(connection: socket.socket) -> bool:
    """Whether the other end has not closed it; waits for the time limit of the connection."""
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize("address", ["nowhere:port", "127.0.0.1:99999", ":"])
def test_an_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(BadInput, match="give HOST:PORT"):
        PageServer(address, {})
