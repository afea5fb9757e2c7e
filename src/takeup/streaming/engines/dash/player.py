"""One player: the download of all segments over one kept-alive connection, and the playout of what arrived."""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from takeup.errors import TakeupError
from takeup.streaming.engines.dash.links import BottleneckLink
from takeup.streaming.engines.dash.server import Video
from takeup.streaming.model import Player

# One player's download: all segments of a video over one kept-alive connection, with the time of every arrival --------

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


# Playback model: start-up delay, stalls and their length, from the arrival times of the content -----------------------

TOLERANCE_S = 1e-9  # sums of segments may miss a threshold by rounding


@dataclass(frozen=True, slots=True)
class Playback:
    """Playback of one video as the viewer experiences it. Stalls do not include the start-up."""

    startup_s: float
    num_stalls: int
    stall_s: float
    finished_early: bool


def play(arrivals: Iterable[tuple[float, float]], player: Player) -> Playback:
    """Play a video from arrivals `(time_s, content_s)`: time since the request, and content received *in total*.

    The last arrival is the end of the download. What plays after it cannot stall.
    """
    screen = _PlaybackState(player)
    for time_s, content_s in arrivals:
        screen.arrive(time_s, content_s)
    return screen.end()


class _PlaybackState:
    """Either plays until the buffer is empty, or waits since some time for the buffer to reach a threshold."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.threshold_s = player.start_s
        self.waiting_since_s: float | None = 0.0
        self.empty_at_s = self.played_s = self.content_s = self.now_s = 0.0
        self.waits_s: list[float] = []
        self.num_stalls = 0

    def arrive(self, time_s: float, content_s: float) -> None:
        if self.waiting_since_s is None and time_s > self.empty_at_s + TOLERANCE_S:
            self._stall()
        if self.waiting_since_s is None:
            self.empty_at_s += content_s - self.content_s
        elif content_s - self.played_s >= self.threshold_s - TOLERANCE_S:
            self._resume(time_s, content_s)
        self.now_s, self.content_s = time_s, content_s

    def _stall(self) -> None:
        """Record that the buffer ran empty before this arrival: all received content was played by then."""
        self.waiting_since_s, self.played_s = self.empty_at_s, self.content_s
        self.threshold_s = self.player.again_s
        self.num_stalls += 1

    def _resume(self, time_s: float, content_s: float) -> None:
        assert self.waiting_since_s is not None
        self.waits_s.append(time_s - self.waiting_since_s)
        self.waiting_since_s, self.empty_at_s = None, time_s + content_s - self.played_s

    def end(self) -> Playback:
        if self.waiting_since_s is not None:  # a whole video plays, however short
            self.waits_s.append(self.now_s - self.waiting_since_s)
        startup_s, *stalls_s = self.waits_s
        finished_early = self.num_stalls == 0 and self.waiting_since_s is not None
        return Playback(startup_s, self.num_stalls, sum(stalls_s), finished_early)
