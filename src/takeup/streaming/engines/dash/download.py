"""One player's download: all segments of a video over one kept-alive connection, with the time of every arrival."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field

from takeup.errors import TakeupError
from takeup.streaming.engines.dash.links import BottleneckLink
from takeup.streaming.engines.dash.videos import Video

READ_BYTES = 64 * 1024
NUM_AHEAD = 3
HEAD = re.compile(rb"HTTP/1\.1 200 OK\r\n(?:.*\r\n)*?Content-Length: (\d{1,12})\r\n")


class UnexpectedResponse(TakeupError):
    """The server sent something else than the segment it was asked for."""


@dataclass(slots=True)
class ByteArrivals:
    """When bytes came, by the clock of the event loop, and how many there were in total by then."""

    times_s: list[float] = field(default_factory=list)
    total_bytes: list[int] = field(default_factory=list)

    def add(self, time_s: float, num_bytes: int) -> None:
        self.times_s.append(time_s)
        self.total_bytes.append(num_bytes + (self.total_bytes[-1] if self.total_bytes else 0))


async def download(link: BottleneckLink, address: tuple[str, int], number: int, video: Video) -> ByteArrivals:
    """Fetch a whole video. The next segments are asked for while one comes, so that the link does not fall idle."""
    reader, writer = await link.dial(address)
    arrivals = ByteArrivals()
    try:
        for segment in range(min(NUM_AHEAD, video.num_segments)):
            _request_segment(writer, address, number, segment)
        for segment, size_bytes in enumerate(video.segment_bytes):
            if segment + NUM_AHEAD < video.num_segments:
                _request_segment(writer, address, number, segment + NUM_AHEAD)
            await _receive_segment(reader, size_bytes, arrivals)
    except (OSError, asyncio.IncompleteReadError) as error:
        raise UnexpectedResponse(f"the connection to the server broke ({error}); run it again") from error
    finally:
        writer.close()
    return arrivals


def _request_segment(writer: asyncio.StreamWriter, address: tuple[str, int], number: int, segment: int) -> None:
    writer.write(f"GET /video/{number}/{segment} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n\r\n".encode())


async def _receive_segment(reader: asyncio.StreamReader, size_bytes: int, arrivals: ByteArrivals) -> None:
    now = asyncio.get_running_loop().time
    head = await reader.readuntil(b"\r\n\r\n")
    match = HEAD.match(head)
    if match is None or int(match[1]) != size_bytes:
        raise UnexpectedResponse(
            f"expected a segment of {size_bytes} bytes, the server answered {head[:80]!r}; check the video"
        )
    while size_bytes > 0:
        received = await reader.read(min(READ_BYTES, size_bytes))
        if not received:
            raise UnexpectedResponse(
                f"the connection ended {size_bytes} bytes before the end of a segment; run it again"
            )
        arrivals.add(now(), len(received))
        size_bytes -= len(received)
