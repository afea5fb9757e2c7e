"""Lower bounds on the iteration time of any schedule, from the work of ranks, the load of links, and memory.

work     a rank cannot start before the first activation reaches it, and then has all its work to do
return   after a stage sends the last gradient, it still has to travel to the first stage
link     all messages must pass, after the first activation arrives and before the last message's remaining path
memory   until the first gradient is back, a stage can only fill its memory with forwards
"""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Ints
from takeup.training.model.pipeline import Profile
from takeup.training.timing.course import SECOND, pipeline_arrays
from takeup.training.timing.fast.traffic import NO_WIRE, PipelineArrays


def least_iteration_s(profile: Profile) -> float:
    """Lower bound on the iteration time, in seconds."""
    return least_nanoseconds(profile, pipeline_arrays(profile)) / SECOND


def least_nanoseconds(profile: Profile, course: PipelineArrays) -> int:
    """The largest of all bounds; `course` holds the arrays of the profile."""
    ways = _CriticalPaths(course)
    return max(ways.work(), ways.back_again(), ways.links(), ways.memory(profile) if profile.one_stage_per_rank else 0)


class _CriticalPaths:
    """Time from the start to a stage and back without contention."""

    def __init__(self, course: PipelineArrays) -> None:
        self.course = course
        self.forward, self.backward = course.lasts[:2].min(axis=2)
        service = course.service.min(axis=1) if course.service.size else np.zeros(0, np.int64)
        self.hop = np.where(course.forward_wire == NO_WIRE, 0, service + course.latency)
        self.head = _sums(self.forward[:-1] + self.hop)
        """From the start of the iteration to the first activation, by stage."""
        # after the last input gradient of the first stage; for a fused backward, its remainder
        self.last_weight = np.minimum(course.lasts[2, 0], course.lasts[3, 0] - course.lasts[1, 0]).min()
        self.home = _sums(self.hop + self.backward[:-1]) + self.last_weight + course.tail[0]
        """From the end of a backward to the end of the iteration, by stage."""
        turned = self.head[-1] + self.forward[-1]
        self.back = turned + _sums((self.backward[1:] + self.hop)[::-1])[::-1]
        """From the start of the iteration to the first gradient, by stage."""

    def work(self) -> int:
        """For every rank: its first activation, its work, and the shortest of its tails."""
        course = self.course
        per_stage = (course.lasts[0] + np.minimum(course.lasts[3], course.lasts[1] + course.lasts[2])).sum(axis=1)
        order, begins = course.stage_list, course.first[:-1]
        head, tail = (np.minimum.reduceat(values[order], begins) for values in (self.head, course.tail))
        return int((head + np.add.reduceat(per_stage[order], begins) + tail).max())

    def back_again(self) -> int:
        """For every stage: its first activation, all forwards and input gradients, and the path back."""
        return int((self.head + self.course.lasts[:2].sum(axis=(0, 2)) + self.home).max())

    def links(self) -> int:
        """For every link and direction: the path to it, all messages but one, and the remaining path of the last."""
        course, found = self.course, 0
        whole_way = self.back[0] + self.backward[0] + self.last_weight + course.tail[0]
        for wires in (course.forward_wire, course.backward_wire):
            for link, wire in enumerate(wires.tolist()):
                if wire != NO_WIRE:
                    load = course.service[link]
                    waits = -(-int(load.sum()) // int(course.num_channels[wire])) - int(load.max())
                    found = max(found, int(whole_way) + waits)
        return found

    def memory(self, profile: Profile) -> int:
        """For every stage: the first gradient, then all work that did not fit into memory before it."""
        course = self.course
        caps, count = np.array(profile.live_limits()), profile.num_microbatches
        late_forwards = (count - caps) * self.forward
        backwards = np.minimum(course.lasts[3], course.lasts[1] + course.lasts[2]).sum(axis=1)
        return int((self.back + late_forwards + backwards + course.tail).max())


def _sums(steps: Ints) -> Ints:
    """Prefix sums, starting with zero."""
    return np.concatenate([[0], np.cumsum(steps)]).astype(np.int64)
