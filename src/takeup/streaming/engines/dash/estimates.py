"""From measured playbacks to an answer with standard errors.

Videos that follow each other meet the same crowd, so they are not independent: errors come from the means of batches
of consecutive videos.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from takeup.errors import BadInput
from takeup.streaming.engines.dash.playout import Playback, play
from takeup.streaming.engines.dash.ring import VideoSession
from takeup.streaming.model import Estimate, Player, QoeMetrics

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
