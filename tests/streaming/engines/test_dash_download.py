"""One player's connection, against servers that do not do what they should."""

from __future__ import annotations

import asyncio

import pytest

from support.dash.engine import ByteArrivals, UnexpectedResponse, download
from support.dash.links import UserSpaceLink
from support.dash.server import SegmentServer, Video

VIDEO = Video(length_s=3.5, bitrate_bps=80_000, segment_s=1.0)


def download_from(answer: bytes) -> ByteArrivals:
    """Download from a server that says this, and hangs up."""

    async def run() -> ByteArrivals:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.write_eof()
            await reader.read()
            writer.close()

        link = UserSpaceLink(1e6)
        server = await asyncio.start_server(serve, sock=link.listener())
        try:
            async with asyncio.timeout(60):
                return await download(server.sockets[0].getsockname(), 0, VIDEO)
        finally:
            server.close()
            await asyncio.sleep(0.01)

    return asyncio.run(run())


def test_a_whole_video_arrives() -> None:
    async def run() -> ByteArrivals:
        server = SegmentServer(UserSpaceLink(1e6), 2, {3: VIDEO})
        async with server.listening() as address:
            return await download(address, 3, VIDEO)

    arrivals = asyncio.run(run())

    assert arrivals.total_bytes[-1] == VIDEO.num_bytes == 35_000
    assert arrivals.times_s == sorted(arrivals.times_s)
    assert len(arrivals.times_s) == len(arrivals.total_bytes)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 10000\r\n\r\n",
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: video/mp2t\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
def test_another_answer_than_the_segment_is_told(answer: bytes) -> None:
    with pytest.raises(UnexpectedResponse, match="expected a segment of 10000 bytes"):
        download_from(answer)


def test_a_segment_that_breaks_off_is_told() -> None:
    with pytest.raises(UnexpectedResponse, match="ended 9900 bytes before the end"):
        download_from(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n" + bytes(100))


def test_a_server_that_says_nothing_is_told() -> None:
    with pytest.raises(UnexpectedResponse, match="the connection to the server broke"):
        download_from(b"")


def test_arrivals_add_up() -> None:
    arrivals = ByteArrivals()
    arrivals.add(1.0, 10)
    arrivals.add(2.0, 5)

    assert (arrivals.times_s, arrivals.total_bytes) == ([1.0, 2.0], [10, 15])
