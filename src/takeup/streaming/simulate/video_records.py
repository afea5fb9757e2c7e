"""Statistics of every video of a simulation, and the answer computed from them, with standard errors.

Videos that were simulated one by one are independent: their errors are the usual ones of a mean. Videos that shared a
cell are not, since a crowded minute affects all of them. Their errors come from batch means: the run is cut into
long pieces, and what differs between the pieces is the noise, whatever the correlation within them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Bools, Floats, Ints
from takeup.errors import BadInput
from takeup.streaming.model import Estimate, Player, QoeMetrics

Column = Floats | Ints | Bools

MAX_BATCHES = 50
MIN_BATCH_VIDEOS = 200
FEW_BATCHES, FEW_VIDEOS = 20, 5
MIN_RESUME_S = 0.001


class VideoRecords(NamedTuple):
    """One entry per video, in order of arrival; `num_blocked` were turned away since the video before."""

    startup_s: Floats
    num_stalls: Ints
    stall_s: Floats
    finished_early: Bools
    gave_up: Bools
    num_blocked: Ints

    def after(self, num_videos: int) -> VideoRecords:
        """The same without the first `num_videos`."""
        return VideoRecords._make(column[num_videos:] for column in self)


def empty_records(num_videos: int) -> VideoRecords:
    """Allocate the statistics of `num_videos` videos."""
    seconds, counts = np.zeros((2, num_videos)), np.zeros((2, num_videos), np.int64)
    flags = np.zeros((2, num_videos), np.bool_)
    return VideoRecords(seconds[0], counts[0], seconds[1], flags[0], flags[1], counts[1])


def check_run(player: Player, num_videos: int) -> None:
    """Refuse a run that has no error, or no end."""
    player.check_fluid()
    if num_videos < 2:
        raise BadInput(f"{num_videos} videos have no standard error; simulate at least 2, better 10000")
    if player.again_s < MIN_RESUME_S:
        raise BadInput(
            f"resume_s is {player.again_s}; a player that resumes on an empty buffer stalls again at once, without "
            f"end: give at least {MIN_RESUME_S} s (it is start_s unless given)"
        )


def mean_patience_s(give_up_per_s: float) -> float:
    """How long viewers wait altogether before they give up, on average."""
    if not 0 <= give_up_per_s < math.inf:
        raise BadInput(f"the rate of giving up is {give_up_per_s} per second; give a finite number, zero or more")
    return 1 / give_up_per_s if give_up_per_s > 0 else math.inf


def metrics_from_independent(source: str, lived: VideoRecords, blocked_share: float) -> QoeMetrics:
    """The answer from independent videos; which share is blocked is known beforehand."""
    return _metrics(source, lived, _mean, _share, Estimate(blocked_share))


def metrics_from_batches(source: str, lived: VideoRecords) -> QoeMetrics:
    """The answer from videos that shared a cell."""
    return _metrics(source, lived, _batched, _batched_share, _blocked_share(lived.num_blocked))


def _metrics(
    source: str,
    lived: VideoRecords,
    mean: Callable[[Column], Estimate],
    share: Callable[[Bools], Estimate],
    blocked: Estimate,
) -> QoeMetrics:
    return QoeMetrics(
        source=source,
        startup_s=mean(lived.startup_s),
        stall_probability=share(lived.num_stalls > 0),
        num_stalls=mean(lived.num_stalls),
        stall_s=mean(lived.stall_s),
        finished_early=share(lived.finished_early),
        blocked_share=blocked,
        num_videos=len(lived.startup_s),
        gave_up=share(lived.gave_up) if lived.gave_up.any() else Estimate(0.0),
    )


def _mean(values: Column) -> Estimate:
    return Estimate(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)))


def _share(happened: Bools) -> Estimate:
    return Estimate(float(happened.mean()), _share_error(int(happened.sum()), len(happened)))


def _share_error(num_seen: float, num_all: int) -> float:
    """The binomial error, with two events of each kind added: what was never seen is not known to be impossible."""
    share = (num_seen + 2) / (num_all + 4)
    return math.sqrt(share * (1 - share) / (num_all + 4))


def _batch_means(values: Column) -> Floats:
    few = min(FEW_BATCHES, len(values) // FEW_VIDEOS)  # of a short run, whose batches are still correlated a little
    num_batches = max(2, few, min(MAX_BATCHES, len(values) // MIN_BATCH_VIDEOS))
    return np.array([batch.mean() for batch in np.array_split(values, num_batches)])


def _error(batch_means: Floats) -> float:
    return float(batch_means.std(ddof=1)) / math.sqrt(len(batch_means))


def _batched(values: Column) -> Estimate:
    return Estimate(float(values.mean()), _error(_batch_means(values)))


def _batched_share(happened: Bools) -> Estimate:
    """At least as uncertain as independent videos would be, also when all batches agree by chance."""
    alone = _share(happened)
    return Estimate(alone.value, max(alone.error, _error(_batch_means(happened))))


def _blocked_share(num_blocked: Ints) -> Estimate:
    blocked_per_video = _batch_means(num_blocked)
    total, accepted = int(num_blocked.sum()), len(num_blocked)
    error = max(_error(blocked_per_video / (1 + blocked_per_video)), _share_error(total, total + accepted))
    return Estimate(total / (total + accepted), error)
