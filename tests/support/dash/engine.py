"""The engine: plans a run, plays all videos of a cell over one link, and computes an answer from them."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.random import Generator

from support.dash.links import UserSpaceLink
from support.dash.server import SegmentServer, Video
from takeup.core.arrays import Floats
from takeup.errors import BadInput, TakeupError
from takeup.streaming.model import Cell, Player, QoeMetrics
from takeup.streaming.playback import play
from takeup.streaming.simulate.video_records import VideoRecords, metrics_from_batches

LEAST_VIDEOS, LEAST_WATCHED = 20, 10


def summarise_sessions(sessions: Sequence[VideoSession], player: Player, source: str) -> QoeMetrics:
    """The answer for viewers with this player; errors of batches, for videos that follow each other meet."""
    blocked = np.array([session.blocked for session in sessions])
    watched = [
        play(np.diff(each.contents_s, prepend=0.0), np.diff(each.times_s, prepend=0.0), player)
        for each in sessions
        if not each.blocked
    ]
    if len(watched) < LEAST_WATCHED:
        raise BadInput(f"only {len(watched)} of {len(sessions)} videos were let in; measure more for an error estimate")
    next_video = np.minimum(np.cumsum(~blocked), len(watched) - 1)
    lived = VideoRecords(
        startup_s=np.array([each.startup_s for each in watched]),
        num_stalls=np.array([each.num_stalls for each in watched]),
        stall_s=np.array([each.stall_s for each in watched]),
        finished_early=np.array([each.finished_early for each in watched]),
        gave_up=np.zeros(len(watched), np.bool_),
        num_blocked=np.bincount(next_video[blocked], minlength=len(watched)),
    )
    return metrics_from_batches(source, lived)


MOST_VIDEOS = 100_000
MOST_USERS = 200
MOST_BPS = 400e6  # what one Python process carries on one core without falling behind


class RunTimeout(TakeupError):
    """A run that was not through in three times the time it was expected to take."""


@dataclass(frozen=True, slots=True)
class DashPlan:
    """What a run will do, before it does anything."""

    num_videos: int
    expected_s: float
    link_bps: float
    speedup: float
    segment_bytes: int
    max_users: int

    @property
    def limit_s(self) -> float:
        """When the run is given up."""
        return 3 * self.expected_s + 30

    def __str__(self) -> str:
        return (
            f"{self.num_videos} videos in about {self.expected_s:.0f} s, {self.speedup:g} times faster than life;\n"
            f"at most {self.max_users} download at a time, in segments of {self.segment_bytes} bytes,\n"
            f"over one link of {self.link_bps / 1e6:.1f} Mbit/s on loopback;\n"
            f"the run is given up after {self.limit_s:.0f} s"
        )


@dataclass(frozen=True, slots=True)
class Downloads:
    """Result of a run: the videos that arrived, and the link they used. It can be evaluated for any player."""

    sessions: tuple[VideoSession, ...]
    speed: float
    visits: tuple[Visit, ...]  # all that were let in, also before the first and after the last that count

    def answer(self, player: Player) -> QoeMetrics:
        """What viewers with this player experience; downloads do not depend on it."""
        return summarise_sessions(self.sessions, player, "dash")


class DashEngine:
    """Real players, a real server and one real bottleneck on this machine.

    `speedup` makes everything shorter by that factor; answers are in the seconds of the cell.
    """

    def __init__(self, speedup: float = 10.0, segment_s: float = 1.0) -> None:
        if not (0 < speedup < math.inf and 0 < segment_s < math.inf):
            raise BadInput(f"found a speed-up of {speedup} and segments of {segment_s} s; give finite numbers above 0")
        self.speedup, self.segment_s = speedup, segment_s

    def plan(self, cell: Cell, num_videos: int) -> DashPlan:
        """What a run would do."""
        if cell.opportunistic or cell.capacity is not None or cell.variation > 0:
            raise BadInput("this engine has one fixed rate; leave out 'opportunistic', 'capacity' and 'variation'")
        if not LEAST_VIDEOS <= num_videos <= MOST_VIDEOS:
            raise BadInput(f"num_videos is {num_videos}; expected {LEAST_VIDEOS} to {MOST_VIDEOS}")
        if cell.max_users > MOST_USERS:
            raise BadInput(
                f"max_users is {cell.max_users}; this engine opens two sockets each for at most {MOST_USERS}"
            )
        return DashPlan(
            num_videos=num_videos,
            expected_s=(num_videos / cell.arrivals_per_s + cell.mean_video_s) / self.speedup,
            link_bps=cell.capacity_bps * self.speedup,
            speedup=self.speedup,
            segment_bytes=math.ceil(cell.bitrate_bps * self.segment_s / 8),
            max_users=cell.max_users,
        )

    def download(self, cell: Cell, num_videos: int, rng: Generator) -> Downloads:
        """Let the videos happen."""
        plan = self.plan(cell, num_videos)
        if plan.link_bps > MOST_BPS:
            found = f"the link would carry {plan.link_bps / 1e6:.0f} Mbit/s, this engine at most {MOST_BPS / 1e6:.0f}"
            raise BadInput(f"{found}; lower the speed-up, or the capacity and bitrate of the cell together")
        ring = CellEmulator(cell, UserSpaceLink(plan.link_bps / 8), rng, self.speedup, self.segment_s)
        try:
            sessions = asyncio.run(asyncio.wait_for(ring.run(num_videos), plan.limit_s))
        except TimeoutError as error:
            found = f"the ring was not through after {plan.limit_s:.0f} s"
            raise RunTimeout(f"{found}; lower the speed-up, or let the machine rest") from error
        return Downloads(tuple(sessions), cell.speed, tuple(ring.visits))

    def measure(self, cell: Cell, player: Player, num_videos: int = 600, rng: Generator | None = None) -> QoeMetrics:
        """What viewers experience, in the cell's seconds, with standard errors by batch means."""
        downloads = self.download(cell, num_videos, np.random.default_rng(0) if rng is None else rng)
        return downloads.answer(player)


# One player: all segments of a video over one kept-alive connection, with the time of every arrival -------------------

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


async def download(address: tuple[str, int], number: int, video: Video) -> ByteArrivals:
    """Fetch a whole video. The next segments are asked for while one comes, so that the link does not fall idle."""
    reader, writer = await asyncio.open_connection(*address)
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


# The ring: videos arrive at random, are admitted or blocked, and download over real TCP through one shared link -------
#
# The cell is in its long-run state from the first counted video on: as many downloads as a random moment finds are
# under way when it starts (what is left of an exponential length is exponential again), and further videos keep coming
# until the last counted one is through.

Visit = tuple[float, float]  # requested at, length


@dataclass(frozen=True, slots=True)
class VideoSession:
    """One video that came: its length, and when how much of it had arrived, in the cell's own seconds.

    Times count from the request. A blocked video has no arrivals.
    """

    requested_s: float
    length_s: float
    num_bytes: int = 0
    times_s: Floats = field(default_factory=lambda: np.empty(0))
    contents_s: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def blocked(self) -> bool:
        return len(self.times_s) == 0


class CellEmulator:
    """Plays a cell `speedup` times faster than life."""

    def __init__(self, cell: Cell, link: UserSpaceLink, rng: Generator, speedup: float, segment_s: float) -> None:
        self.cell, self.link, self.rng, self.speedup, self.segment_s = cell, link, rng, speedup, segment_s
        self.server = SegmentServer(link, most_connections=max_connections(cell))
        self.num_active = 0
        self.visits: list[Visit] = []  # all that were let in, counted or not
        self._ids = count()
        self._tasks: list[asyncio.Task[VideoSession]] = []

    async def run(self, num_videos: int) -> list[VideoSession]:
        """What `num_videos` lived through, in the order they came."""
        async with self.server.listening() as address:
            try:
                for length_s in self._lengths_found_s():
                    self._request(length_s, address)
                return await self._let_arrive(num_videos, address)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _let_arrive(self, num_videos: int, address: tuple[str, int]) -> list[VideoSession]:
        loop = asyncio.get_running_loop()
        arrives_at_s = loop.time()
        counted: list[asyncio.Task[VideoSession]] = []
        while len(counted) < num_videos or not all(task.done() for task in counted):
            arrives_at_s += self.rng.exponential(1 / self.cell.arrivals_per_s) / self.speedup
            await asyncio.sleep(arrives_at_s - loop.time())
            task = self._request(self._draw_length_s(), address)
            if len(counted) < num_videos:
                counted.append(task)
        return [task.result() for task in counted]

    def _request(self, length_s: float, address: tuple[str, int]) -> asyncio.Task[VideoSession]:
        task = asyncio.create_task(self._watch(length_s, address))
        self._tasks.append(task)
        return task

    async def _watch(self, length_s: float, address: tuple[str, int]) -> VideoSession:
        requested_s = asyncio.get_running_loop().time()
        if self.num_active >= self.cell.max_users:
            return VideoSession(requested_s * self.speedup, length_s)
        number, video = next(self._ids), Video(length_s, self.cell.bitrate_bps, self.segment_s)
        self.server.videos[number] = video
        self.visits.append((requested_s * self.speedup, length_s))
        self.num_active += 1
        try:
            arrivals = await download(address, number, video)
        finally:
            self.num_active -= 1
            del self.server.videos[number]
        return self._session(requested_s, video, arrivals)

    def _session(self, requested_s: float, video: Video, arrivals: ByteArrivals) -> VideoSession:
        times_s = (np.array(arrivals.times_s) - requested_s) * self.speedup
        contents_s = np.minimum(np.array(arrivals.total_bytes) * 8 / video.bitrate_bps, video.length_s)
        return VideoSession(requested_s * self.speedup, video.length_s, arrivals.total_bytes[-1], times_s, contents_s)

    def _draw_length_s(self) -> float:
        views = self.cell.views
        return float(self.rng.exponential(self.rng.choice([v.mean_s for v in views], p=[v.share for v in views])))

    def _lengths_found_s(self) -> list[float]:
        """What is left of the downloads that a random moment finds; long videos are found more often than they come."""
        logarithms = np.log(self.cell.load) * np.arange(self.cell.max_users + 1)
        weights = np.exp(logarithms - logarithms.max())  # powers of the load, however large
        num_found = int(self.rng.choice(len(weights), p=weights / weights.sum()))
        means_s = np.array([v.mean_s for v in self.cell.views])
        found = means_s * [v.share for v in self.cell.views]
        lengths_s = self.rng.exponential(self.rng.choice(means_s, num_found, p=found / found.sum()))
        return [float(length_s) for length_s in lengths_s]


def max_connections(cell: Cell) -> int:
    """Connections let in: more than users, because one may still be closing when the next one opens."""
    return 2 * cell.max_users + 2
