"""Pages over HTTP: what is served, and what silent, slow and many clients cannot do."""

from __future__ import annotations

import http.client
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


@pytest.mark.parametrize("address", ["127.0.0.1:port", "127.0.0.1:99999", ":"])
def test_an_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(BadInput, match="give HOST:PORT"):
        PageServer(address, {})


# Beyond loopback ------------------------------------------------------------------------------------------------------

TOKEN = "0123456789abcdef"


@pytest.fixture
def open_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    """One that other machines can reach."""
    monkeypatch.setenv("TAKEUP_METRICS_TOKEN", TOKEN)
    texts = {"/metrics": (True, "takeup_ranks 2\n"), "/healthz": (True, "1 s ago\n"), "/readyz": (False, "no API\n")}
    made = PageServer("0.0.0.0:0", {path: lambda page=page: page for path, page in texts.items()})  # type: ignore[misc]
    yield made
    made.close()


def ask(server: PageServer, path: str, authorization: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request("GET", path, headers={} if authorization is None else {"Authorization": authorization})
    answer = connection.getresponse()
    content = answer.status, answer.read()
    assert (answer.headers["WWW-Authenticate"] == "Bearer") is (answer.status == 401)
    connection.close()
    return content


@pytest.mark.parametrize("token", ["", TOKEN[:-1]])
@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org"])
def test_other_machines_are_not_served_without_a_secret(monkeypatch: pytest.MonkeyPatch, host: str, token: str) -> None:
    monkeypatch.setenv("TAKEUP_METRICS_TOKEN", token)
    sentence = (
        rf"^other machines can read pages on '{host}:9400'; set TAKEUP_METRICS_TOKEN to a secret of 16 characters"
    )
    with pytest.raises(BadInput, match=sentence):
        PageServer(f"{host}:9400", {})


@pytest.mark.parametrize("authorization", [None, "", TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer ", f"Bearer {TOKEN}x"])
def test_without_the_token_there_are_no_metrics_and_no_names_of_pages(
    open_server: PageServer, authorization: str | None
) -> None:
    assert ask(open_server, "/metrics", authorization) == (401, b"")
    assert ask(open_server, "/other", authorization) == (401, b"")


def test_probes_without_the_token_are_a_status_without_a_word(open_server: PageServer) -> None:
    assert ask(open_server, "/healthz") == (200, b"")
    assert ask(open_server, "/readyz") == (503, b"")


def test_with_the_token_all_is_served(open_server: PageServer) -> None:
    assert ask(open_server, "/metrics?x=1", f"bearer  {TOKEN}") == (200, b"takeup_ranks 2\n")
    assert ask(open_server, "/readyz", f"Bearer {TOKEN}") == (503, b"no API\n")
    assert ask(open_server, "/other", f"Bearer {TOKEN}") == (404, b"")


def test_a_token_is_required_on_this_machine_too_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAKEUP_METRICS_TOKEN", "short")
    made = PageServer("0", {"/metrics": lambda: (True, "takeup_ranks 2\n")})

    assert ask(made, "/metrics") == (401, b"")
    assert ask(made, "/metrics", "Bearer short") == (200, b"takeup_ranks 2\n")
    made.close()
