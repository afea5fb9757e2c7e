"""An HTTP/1.1 server of video segments: GET and HEAD, kept-alive, with limits on everything a client can choose.

It reads no files. A path is either one of the exact forms below or not found, so there is nothing to climb out of.

/video/<id>/<segment>         the bytes of a segment, sent through the shared link
/video/<id>/playlist.m3u8     the HLS playlist
/seen/<a>/<b>/<c>/<d>         four whole numbers that a page reports about its viewer
anything in `pages`           fixed contents, such as the page of a browser player
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus

from takeup.streaming.engines.dash.links import BottleneckLink
from takeup.streaming.engines.dash.videos import Video

MOST_REQUEST_BYTES = 4096
IDLE_S = 30.0
LINGER_S, MOST_IGNORED_READS = 1.0, 64
REQUEST_LINE = re.compile(r"([A-Z]{1,16}) (/[!-~]{0,1023}) HTTP/1\.([01])")
HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([ -~\t]*)")
SEGMENT = re.compile(r"/video/(\d{1,9})/(\d{1,6})")
SEEN = re.compile(r"/seen/(\d{1,9})/(\d{1,9})/(\d{1,9})/([01])")
PLAYLIST = re.compile(r"/video/(\d{1,9})/playlist\.m3u8")


@dataclass(frozen=True, slots=True)
class StaticPage:
    """A fixed content with its media type."""

    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    keep_alive: bool


class _RequestRefused(Exception):
    """A request that cannot be understood or is not allowed; the connection ends with this status."""

    def __init__(self, status: HTTPStatus) -> None:
        self.status = status


@dataclass
class SegmentServer:
    """Serves `videos`, which may grow while it runs, on a link."""

    link: BottleneckLink
    most_connections: int
    videos: dict[int, Video] = field(default_factory=dict)
    pages: Mapping[str, StaticPage] = field(default_factory=dict)
    on_seen: Callable[[tuple[int, ...]], None] = lambda _: None
    _connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = field(default_factory=dict)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[tuple[str, int]]:
        """The address it answers at, inside the block."""
        server = await asyncio.start_server(self._serve, sock=self.link.listener(), limit=MOST_REQUEST_BYTES)
        try:
            host, port = server.sockets[0].getsockname()
            yield host, port
        finally:
            server.close()
            await self._hang_up()
            await server.wait_closed()

    async def _hang_up(self) -> None:
        """End all connections, whatever they are waiting for."""
        tasks = list(self._connections.values())
        for writer, task in self._connections.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[writer] = task
        _send_at_once(writer)
        try:
            # Players may disconnect at any time, and only the server itself cancels.
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._converse(reader, writer)
        finally:
            del self._connections[writer]
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._connections) > self.most_connections:
                raise _RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE)
            with self.link.reserve(writer):
                while await self._answer(await _read_request(reader), writer):
                    pass
        except _RequestRefused as refusal:
            _start(writer, refusal.status, 0, "text/plain", keep_alive=False)
            writer.write_eof()
            await _read_on(reader)

    async def _answer(self, request: _Request, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; false if it was the last on its connection."""
        if request.method not in {"GET", "HEAD"}:
            raise _RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED)
        found = self._find(request.path)
        status = HTTPStatus.NOT_FOUND if found is None else HTTPStatus.OK
        content, media_type = found or (memoryview(b""), "text/plain")
        _start(writer, status, len(content), media_type, keep_alive=request.keep_alive)
        if request.method == "GET" and content:
            if SEGMENT.fullmatch(request.path):
                await self.link.send(writer, content)
            else:
                writer.write(content)
        await writer.drain()
        return request.keep_alive

    def _find(self, path: str) -> tuple[memoryview, str] | None:
        if (page := self.pages.get(path.partition("?")[0])) is not None:
            return memoryview(page.content), page.media_type
        if match := SEEN.fullmatch(path):
            self.on_seen(tuple(int(number) for number in match.groups()))
            return memoryview(b""), "text/plain"
        if match := SEGMENT.fullmatch(path):
            video, number = self.videos.get(int(match[1])), int(match[2])
            if video is not None and number < video.num_segments:
                return video.segment(number), "video/mp2t"
        elif (match := PLAYLIST.fullmatch(path)) and int(match[1]) in self.videos:
            playlist = self.videos[int(match[1])].playlist()
            return memoryview(playlist.encode()), "application/vnd.apple.mpegurl"
        return None


def _send_at_once(writer: asyncio.StreamWriter) -> None:
    """Else the kernel holds the end of an answer back until the player has acknowledged the rest: 40 ms of nothing."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _start(writer: asyncio.StreamWriter, status: HTTPStatus, size: int, media_type: str, *, keep_alive: bool) -> None:
    writer.write(
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: {size}\r\nContent-Type: {media_type}\r\n"
        f"Cache-Control: no-store\r\nConnection: {'keep-alive' if keep_alive else 'close'}\r\n\r\n".encode()
    )


async def _read_on(reader: asyncio.StreamReader) -> None:
    """Let the client come to its end, within limits: to hang up on unread bytes would throw away our answer."""
    async with asyncio.timeout(LINGER_S):
        for _ in range(MOST_IGNORED_READS):
            if not await reader.read(MOST_REQUEST_BYTES):
                return


async def _read_request(reader: asyncio.StreamReader) -> _Request:
    """The next request of a connection; one that never comes ends it."""
    try:
        async with asyncio.timeout(IDLE_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise _RequestRefused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from error
    if len(head) > MOST_REQUEST_BYTES:
        raise _RequestRefused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    return _parse(head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n"))


def _parse(lines: list[str]) -> _Request:
    request_line = REQUEST_LINE.fullmatch(lines[0])
    fields = [HEADER.fullmatch(line) for line in lines[1:]]
    headers = {field[1].lower(): field[2].strip() for field in fields if field is not None}
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if request_line is None or None in fields or len(headers) < len(fields) or has_body:
        raise _RequestRefused(HTTPStatus.BAD_REQUEST)
    method, path, minor_version = request_line.groups()
    if minor_version == "1" and "host" not in headers:
        raise _RequestRefused(HTTPStatus.BAD_REQUEST)
    keep_alive = minor_version == "1" and headers.get("connection", "").lower() != "close"
    return _Request(method, path, keep_alive)
