"""A pool at one moment of a replay: which jobs wait, whether they would fit, and how much work is left.

Only for evaluating a replay afterwards: the remaining work is known from true durations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from takeup.cluster.fleet.layout import NUM_WAITING_HIGH, NUM_WAITING_SPOT, Fleet
from takeup.cluster.simulate.fast.story import ReplayRecord
from takeup.core.arrays import Floats, Ints

MILLI = 1000


class IdleReason(Enum):
    """Why GPUs are idle: a job that waits may ask for more than there are, or for others than those."""

    NOBODY_WAITS = "nobody waits"
    TOO_WIDE = "too few for all who wait"
    SCATTERED = "enough for one, but scattered"
    FITS = "one would fit"


@dataclass(frozen=True, slots=True)
class ReplayMoment:
    """A view of the arrays of a replay: valid until the replay continues."""

    now_s: float
    fleet: Fleet
    story: ReplayRecord

    @property
    def idle_gpus(self) -> Ints:
        """Whole GPUs of each node that are neither held nor reserved."""
        nodes = self.fleet.nodes
        return np.where(nodes["healthy"] > 0, np.maximum(0, nodes["free"] - nodes["reserved"]), 0)

    @property
    def waiting(self) -> Ints:
        """Numbers of the jobs that wait for any GPUs."""
        fleet, totals = self.fleet, self.fleet.totals
        high, spot = fleet.high_queue[: totals[NUM_WAITING_HIGH]], fleet.spot_queue[: totals[NUM_WAITING_SPOT]]
        jobs = np.concatenate([high, spot])
        return np.asarray(jobs[fleet.jobs["nominated"][jobs] < 0])

    def why_idle(self) -> IdleReason:
        """Why the currently idle GPUs are idle."""
        jobs = self.fleet.jobs[self.waiting]
        if not len(jobs):
            return IdleReason.NOBODY_WAITS
        if (jobs["workers"] <= self._num_places(jobs["milli"])).any():
            return IdleReason.FITS
        asked_milli = jobs["milli"] * jobs["workers"]
        room_milli = MILLI * int(self.idle_gpus.sum()) + int(self._shared_room_milli.sum())
        return IdleReason.SCATTERED if (asked_milli <= room_milli).any() else IdleReason.TOO_WIDE

    def left_gpu_s(self) -> Floats:
        """Remaining GPU-seconds of work of each job; all of it before the job arrives."""
        jobs, story = self.fleet.jobs, self.story
        ran_s = np.maximum(0.0, self.now_s - jobs["start_s"] - story.overhead_s)
        done_s = story.done_s + np.where(jobs["running"] > 0, ran_s, 0.0)
        return np.asarray(np.maximum(0.0, story.duration_s - done_s) * jobs["milli"] * jobs["workers"] / MILLI)

    @property
    def _shared_room_milli(self) -> Ints:
        """Free milli-GPUs on GPUs that are already shared."""
        room = self.fleet.share_room_milli
        return np.where(room < MILLI, room, 0)

    def _num_places(self, milli: Ints) -> Ints:
        """For each request of one worker, how many workers of its size fit."""
        sizes, which = np.unique(milli, return_inverse=True)
        return np.array([self._places(int(size)) for size in sizes])[which]

    def _places(self, milli: int) -> int:
        if milli >= MILLI:
            return int((self.idle_gpus // (milli // MILLI)).sum())
        return int((self._shared_room_milli // milli).sum() + self.idle_gpus.sum() * (MILLI // milli))
