"""The engine: plans a run of the ring, executes it, and computes an answer from it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from takeup.core.arrays import Floats
from takeup.errors import BadInput, TakeupError, UnknownName
from takeup.streaming.engines.dash.cell_emulator import (
    CellEmulator,
    VideoSession,
    Visit,
    ideal_arrivals_s,
    max_connections,
)
from takeup.streaming.engines.dash.links import LINKS, open_link
from takeup.streaming.engines.dash.player import Playback, play
from takeup.streaming.model import Cell, Estimate, Player, QoeMetrics

# From measured playbacks to an answer with standard errors ------------------------------------------------------------
#
# Videos that follow each other meet the same crowd, so they are not independent: errors come from the means of batches
# of consecutive videos.

LEAST_VIDEOS = 20
MOST_BATCHES = 20
LEAST_BATCH = 5

ContentArrival = tuple[float, float]


def summarise_sessions(
    sessions: Sequence[VideoSession], player: Player, source: str, segment_s: float | None = None
) -> QoeMetrics:
    """The answer for viewers with this player; with `segment_s` it plays only what has come in whole segments."""
    watched = [_play_session(session, player, segment_s) for session in sessions if not session.blocked]
    if len(watched) < 2 * LEAST_BATCH:
        raise BadInput(f"only {len(watched)} of {len(sessions)} videos were let in; measure more for an error estimate")
    return QoeMetrics(
        source=source,
        startup_s=batch_means(playback.startup_s for playback in watched),
        stall_probability=batch_means(playback.num_stalls > 0 for playback in watched),
        num_stalls=batch_means(playback.num_stalls for playback in watched),
        stall_s=batch_means(playback.stall_s for playback in watched),
        finished_early=batch_means(playback.finished_early for playback in watched),
        blocked_share=batch_means(session.blocked for session in sessions),
        num_videos=len(watched),
    )


def batch_means(values: Iterable[float]) -> Estimate:
    """The mean of a correlated sequence, with the standard error that the means of its batches show."""
    array: npt.NDArray[np.float64] = np.array([float(value) for value in values])
    num_batches = min(MOST_BATCHES, len(array) // LEAST_BATCH)
    means = [float(batch.mean()) for batch in np.array_split(array, num_batches)]
    return Estimate(float(array.mean()), float(np.std(means, ddof=1) / num_batches**0.5))


def whole_segments(arrivals: Iterable[ContentArrival], segment_s: float) -> Iterable[ContentArrival]:
    """The arrivals at which a segment became whole, with the content in whole segments; the last one always."""
    num_whole, last = 0, (0.0, 0.0)
    for time_s, content_s in arrivals:
        last = time_s, content_s
        if content_s + 1e-6 >= (num_whole + 1) * segment_s:
            num_whole = int((content_s + 1e-6) / segment_s)
            yield time_s, num_whole * segment_s
    yield last


def _play_session(session: VideoSession, player: Player, segment_s: float | None) -> Playback:
    arrivals: Iterable[ContentArrival] = zip(session.times_s.tolist(), session.contents_s.tolist(), strict=True)
    return play(arrivals if segment_s is None else whole_segments(arrivals, segment_s), player)


Appends = Literal["bytes", "segments"]

MOST_VIDEOS = 100_000
MOST_USERS = 200


class RunTimeout(TakeupError):
    """A run that was not through in three times the time it was expected to take."""


@dataclass(frozen=True, slots=True)
class DashPlan:
    """What a run will do, before it does anything."""

    num_videos: int
    expected_s: float
    link_bps: float
    bottleneck: str
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
            f"over one link of {self.link_bps / 1e6:.1f} Mbit/s (bottleneck '{self.bottleneck}');\n"
            f"the run is given up after {self.limit_s:.0f} s"
        )


@dataclass(frozen=True, slots=True)
class Downloads:
    """Result of a run: the videos that arrived, and the link they used. It can be evaluated for any player."""

    sessions: tuple[VideoSession, ...]
    link: str
    segment_s: float
    speed: float
    visits: tuple[Visit, ...]  # all that were let in, also before the first and after the last that count

    def answer(self, player: Player, appends: Appends = "bytes") -> QoeMetrics:
        """What viewers with this player experience; downloads do not depend on it."""
        segment_s = None if appends == "bytes" else self.segment_s
        return summarise_sessions(self.sessions, player, f"dash, {self.link}", segment_s)

    def on_ideal_link(self, step_s: float = 0.05) -> Downloads:
        """The same arrivals on a link that shares its rate exactly; the difference is due to the transport alone."""
        arrivals = dict(zip(self.visits, ideal_arrivals_s(self.visits, self.speed, step_s), strict=True))
        sessions = [session if session.blocked else self._ideal(session, arrivals) for session in self.sessions]
        return replace(self, sessions=tuple(sessions), link="ideal link")

    def _ideal(self, session: VideoSession, arrivals: dict[Visit, tuple[Floats, Floats]]) -> VideoSession:
        times_s, contents_s = arrivals[session.requested_s, session.length_s]
        return replace(session, times_s=times_s, contents_s=contents_s)


class DashEngine:
    """Real players, a real server and one real bottleneck on this machine.

    `appends` says when a player can use what comes: every byte at once, or whole segments, as browsers do. `speedup`
    makes everything shorter by that factor; answers are in the seconds of the cell.
    """

    def __init__(
        self,
        speedup: float = 10.0,
        segment_s: float = 1.0,
        bottleneck: str = "auto",
        appends: Appends = "bytes",
    ) -> None:
        if not (0 < speedup < math.inf and 0 < segment_s < math.inf):
            raise BadInput(f"found a speed-up of {speedup} and segments of {segment_s} s; give finite numbers above 0")
        if bottleneck not in LINKS:
            raise UnknownName("bottleneck", bottleneck, LINKS)
        if appends not in get_args(Appends):
            raise UnknownName("way to append", appends, get_args(Appends))
        self.speedup, self.segment_s, self.bottleneck, self.appends = speedup, segment_s, bottleneck, appends

    def plan(self, cell: Cell, num_videos: int) -> DashPlan:
        """What a run would do."""
        if cell.opportunistic or cell.capacity is not None:
            raise BadInput("the link of this engine has one fixed rate; leave out 'opportunistic' and 'capacity'")
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
            bottleneck=self.bottleneck,
            speedup=self.speedup,
            segment_bytes=math.ceil(cell.bitrate_bps * self.segment_s / 8),
            max_users=cell.max_users,
        )

    def dry_run(self, cell: Cell, num_videos: int, show: Callable[[str], None] = print) -> DashPlan:
        """Show the plan; no socket is opened."""
        plan = self.plan(cell, num_videos)
        show(str(plan))
        return plan

    def download(self, cell: Cell, num_videos: int, rng: Generator) -> Downloads:
        """Let the videos happen."""
        plan = self.plan(cell, num_videos)
        with open_link(self.bottleneck, plan.link_bps, max_connections(cell)) as link:
            ring = CellEmulator(cell, link, rng, self.speedup, self.segment_s)
            try:
                sessions = asyncio.run(asyncio.wait_for(ring.run(num_videos), plan.limit_s))
            except TimeoutError as error:
                found = f"the ring was not through after {plan.limit_s:.0f} s"
                raise RunTimeout(f"{found}; lower the speed-up, or let the machine rest") from error
        return Downloads(tuple(sessions), link.name, self.segment_s, cell.speed, tuple(ring.visits))

    def measure(self, cell: Cell, player: Player, num_videos: int = 600, rng: Generator | None = None) -> QoeMetrics:
        """What viewers experience, in the cell's seconds, with standard errors by batch means."""
        downloads = self.download(cell, num_videos, np.random.default_rng(0) if rng is None else rng)
        return downloads.answer(player, self.appends)
