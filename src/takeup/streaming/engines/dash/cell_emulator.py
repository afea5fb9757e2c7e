"""The ring: videos arrive at random, are admitted or blocked, and download over real TCP through one shared link.

The cell is in its long-run state from the first counted video on: as many downloads as a random moment finds are under
way when it starts (what is left of an exponential length is exponential again), and further videos keep coming until
the last counted one is through.
"""

import asyncio
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.random import Generator

from takeup.core.arrays import Floats
from takeup.streaming.engines.dash.links import BottleneckLink
from takeup.streaming.engines.dash.player import ByteArrivals, download
from takeup.streaming.engines.dash.server import SegmentServer, Video
from takeup.streaming.model import Cell

# What the same arrivals would experience on an ideal link, which shares its rate exactly at every moment --------------
#
# Chance is the same on both sides, so a difference to what players lived through comes from the transport alone.
#
# How it works. Everyone under way receives equally fast, so one curve serves all: the content that a video would have
# received by some time, had it been under way from the beginning. A video is through when the curve has risen by its
# length since it came.

Visit = tuple[float, float]  # requested at, length


def ideal_arrivals_s(visits: Sequence[Visit], speed: float, step_s: float) -> list[tuple[Floats, Floats]]:
    """For each visit the times since its request, and the content in total by then, in steps of `step_s` of content.

    Visits are in order of their requests.
    """
    times_s, curve_s, begins_s = _received_curve(visits, speed)
    arrivals = []
    for (requested_s, length_s), begin_s in zip(visits, begins_s, strict=True):
        contents_s = np.append(np.arange(step_s, length_s, step_s), length_s)
        arrivals.append((np.interp(begin_s + contents_s, curve_s, times_s) - requested_s, contents_s))
    return arrivals


def _received_curve(visits: Sequence[Visit], speed: float) -> tuple[list[float], list[float], list[float]]:
    """The corners of the curve, and where each visit stepped onto it."""
    times_s, curve_s, begins_s = [visits[0][0]], [0.0], []
    ends_s: list[float] = []  # where on the curve those under way are through

    def rise_until(time_s: float) -> None:
        while ends_s and (through_at_s := times_s[-1] + (ends_s[0] - curve_s[-1]) * len(ends_s) / speed) <= time_s:
            times_s.append(through_at_s)
            curve_s.append(heapq.heappop(ends_s))
        if time_s < math.inf:  # without active downloads the curve does not matter
            curve_s.append(curve_s[-1] + (time_s - times_s[-1]) * speed / max(1, len(ends_s)))
            times_s.append(time_s)

    for requested_s, length_s in visits:
        rise_until(requested_s)
        begins_s.append(curve_s[-1])
        heapq.heappush(ends_s, curve_s[-1] + length_s)
    rise_until(math.inf)
    return times_s, curve_s, begins_s


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

    def __init__(self, cell: Cell, link: BottleneckLink, rng: Generator, speedup: float, segment_s: float) -> None:
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
            arrivals = await download(self.link, address, number, video)
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
