"""The HTTP server on loopback: right answers to the standard library's client, short ones to everybody else."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Awaitable, Callable

import pytest

from support.dash import server as server_module
from support.dash.links import UserSpaceLink
from support.dash.server import MOST_REQUEST_BYTES, SegmentServer, StaticPage, Video

Address = tuple[str, int]
VIDEO = Video(length_s=2.5, bitrate_bps=80_000, segment_s=1.0)
HOST = b"Host: here\r\n"
PATIENCE_S = 60.0


def serve(
    action: Callable[[Address], Awaitable[bytes]], rate_bytes_per_s: float = 1e9, most_connections: int = 4
) -> bytes:
    """What `action` gets from a server with one video; fails if the server does not end cleanly."""

    async def run() -> bytes:
        page = StaticPage(b"<html>", "text/html")
        server = SegmentServer(UserSpaceLink(rate_bytes_per_s), most_connections, {7: VIDEO}, {"/": page})
        async with asyncio.timeout(PATIENCE_S), server.listening() as address:
            return await action(address)

    return asyncio.run(run())


def answer_to(request: bytes) -> bytes:
    """Everything the server says until it hangs up."""

    async def talk(address: Address) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(request)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        return answer

    return serve(talk)


def status_of(request: bytes) -> int:
    return int(answer_to(request).split(b" ", 2)[1])


def fetch(method: str, path: str) -> tuple[int, bytes]:
    """The answer as the standard library's client understands it, on a connection that is used twice."""
    found: list[tuple[int, bytes]] = []

    def client(address: Address) -> None:
        connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
        for _ in range(2):
            connection.request(method, path)
            response = connection.getresponse()
            found.append((response.status, response.read()))
        connection.close()

    async def talk(address: Address) -> bytes:
        await asyncio.to_thread(client, address)
        return b""

    serve(talk)
    assert found[0] == found[1]
    return found[0]


def test_a_segment_arrives_whole() -> None:
    assert fetch("GET", "/video/7/1") == (200, bytes(VIDEO.segment(1)))


def test_a_segment_may_have_a_query_as_cmcd_does() -> None:
    assert fetch("GET", "/video/7/1?CMCD=bs") == fetch("GET", "/video/7/1")


def test_the_last_segment_is_as_short_as_it_must_be() -> None:
    assert len(fetch("GET", "/video/7/2")[1]) == 5000


def test_pages_are_served() -> None:
    assert fetch("GET", "/") == (200, b"<html>")


def test_head_says_the_size_and_sends_nothing() -> None:
    answer = answer_to(b"HEAD /video/7/0 HTTP/1.1\r\nHost: here\r\n\r\n")

    assert b"Content-Length: 10000\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "path",
    [
        "/video/7/3",
        "/video/8/0",
        "/video/7/",
        "/video/7/-1",
        "/video/7/0/",
        "/video/7/9?x=1",
        "/video/../../etc/passwd",
        "/video/7/../../../etc/passwd",
        "/video/7/%2e%2e/%2e%2e/etc/passwd",
        "/../etc/passwd",
        "//etc/passwd",
        "/video/7/1/..",
        "/video/7/playlist.m3u8",
        "/video/99999999999999999999/0",
    ],
)
def test_other_paths_are_not_found(path: str) -> None:
    assert fetch("GET", path) == (404, b"")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/2.0\r\n" + HOST + b"\r\n",
        b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n",
        b"get / HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET http://elsewhere/ HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /\x00 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"no colon\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b" folded: header\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nhello",
        b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /" + b"x" * 1100 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    ],
)
def test_requests_that_make_no_sense_are_bad(request_bytes: bytes) -> None:
    assert status_of(request_bytes) == 400


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"TRACE"])
def test_only_reading_is_allowed(method: bytes) -> None:
    assert status_of(method + b" /video/7/0 HTTP/1.1\r\n" + HOST + b"\r\n") == 405


def test_a_request_without_end_gets_no_answer() -> None:
    header = b"X-Long: " + b"x" * 2 * MOST_REQUEST_BYTES

    assert answer_to(b"GET / HTTP/1.1\r\n" + header * 5) == b""


def test_an_unfinished_request_gets_no_answer() -> None:
    assert answer_to(b"GET / HTTP/1.1\r\nHost: he") == b""


def test_requests_in_a_row_are_answered_in_order() -> None:
    request = b"GET /video/7/%d HTTP/1.1\r\nHost: here\r\n\r\n"

    answer = answer_to(request % 2 + request % 0)

    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.index(b"Content-Length: 5000\r\n") < answer.index(b"Content-Length: 10000\r\n")


@pytest.mark.parametrize(
    "request_bytes", [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"]
)
def test_the_connection_ends_where_the_client_asks_for_it(request_bytes: bytes) -> None:
    answer = answer_to(request_bytes + b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")

    assert answer.count(b"HTTP/1.1") == 1
    assert b"Connection: close\r\n" in answer


def test_one_connection_too_many_is_turned_away() -> None:
    async def talk(address: Address) -> bytes:
        pairs = [await asyncio.open_connection(*address) for _ in range(3)]
        for _, writer in pairs:
            writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        lines = [await reader.readline() for reader, _ in pairs]
        for _, writer in pairs:
            writer.close()
        return b"".join(sorted(lines))

    assert serve(talk, most_connections=2) == b"HTTP/1.1 200 OK\r\n" * 2 + b"HTTP/1.1 503 Service Unavailable\r\n"


def test_the_end_of_an_answer_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[int] = []
    serve_one = SegmentServer._converse

    async def look(self: SegmentServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        options.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await serve_one(self, reader, writer)

    monkeypatch.setattr(SegmentServer, "_converse", look)
    answer_to(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")

    assert options[0] != 0


def test_a_silent_connection_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "IDLE_S", 0.05)

    async def talk(address: Address) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        answer = await reader.read()
        writer.close()
        return answer

    assert serve(talk) == b""


def test_a_player_that_goes_in_the_middle_frees_its_place_on_the_link() -> None:
    async def talk(address: Address) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /video/7/0 HTTP/1.1\r\nHost: here\r\n\r\n")
        await reader.readline()
        writer.transport.abort()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /video/7/2 HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    answer = serve(talk, rate_bytes_per_s=20_000, most_connections=2)

    assert len(answer.partition(b"\r\n\r\n")[2]) == 5000


def test_the_server_stops_while_a_segment_is_on_its_way() -> None:
    async def talk(address: Address) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /video/7/0 HTTP/1.1\r\nHost: here\r\n\r\n")
        line = await reader.readline()
        writer.close()
        return line

    assert serve(talk, rate_bytes_per_s=100) == b"HTTP/1.1 200 OK\r\n"


def test_the_server_listens_on_loopback_only() -> None:
    async def talk(address: Address) -> bytes:
        return address[0].encode()

    assert serve(talk) == b"127.0.0.1"
