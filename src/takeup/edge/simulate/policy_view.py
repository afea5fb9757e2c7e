"""What a policy is shown while the site is at work: an instance of newcomers, free subcarriers and kept promises.

How it works. Time begins now. Tasks that were accepted before take part as devices whose upload is over at once, on a
subcarrier that only they can use, and which are worth more than all newcomers together. One that is still uploading is
released when its upload is to end; one that runs needs the rest of its time, beginning now. So any policy that does
what is worth most keeps all promises, and newcomers get what is left of the CPU. Policies know nothing of this.

An upload that takes no time, and a task that must begin now, leave no slack for rounding. So these uploads take a
fraction of a `grain`, a running task may end one grain late, and all other promises two; newcomers seem to take three
grains longer than they do, so that promises can be kept without these grains when it comes to that. A grain is some
millionths of the longest time there is for a task.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Ints
from takeup.edge.model import Instance

FAINT = 1e-100  # the gain of a subcarrier that a device cannot use
LATER = 2  # grains that promises which are not running may be late
STRONG = 1e4  # the signal-to-noise ratio, beyond what any modulation needs, at full power on one that only it can use


@dataclass(frozen=True, slots=True)
class Commitment:
    """A task that was accepted: from when on it can run, how long it will take, and when it is due."""

    device: int
    ready_s: float
    run_s: float
    due_s: float
    is_running: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PolicyView:
    """The instance to decide: first `newcomers`, then `promises`; of the subcarriers the first are real ones."""

    instance: Instance
    newcomers: Ints
    promises: tuple[Commitment, ...]
    subcarriers: Ints

    def group(self, place: int, owners: Ints) -> Ints | None:
        """The real subcarriers of a newcomer, or None if it was given one that is not for it."""
        columns = np.flatnonzero(owners == place)
        return self.subcarriers[columns] if (columns < len(self.subcarriers)).all() else None


def grain_of(instance: Instance) -> float:
    """The time that rounding may cost."""
    return 5e-6 * float((instance.deadlines_s - instance.releases_s).max(initial=0.0))


def policy_view(
    planned: Instance, now_s: float, newcomers: Ints, promises: Sequence[Commitment], free: Ints, grain_s: float
) -> PolicyView:
    """The instance of these newcomers. Promises that cannot be kept any more are left out."""
    kept = tuple(each for each in promises if now_s + _ready_in(each, now_s) + each.run_s <= each.due_s + grain_s)
    if planned.contiguous:
        free = _longest_run(free)
    ready_s = np.array([_ready_in(each, now_s) for each in kept])
    run_s = np.array([each.run_s for each in kept])
    due_s = np.array(
        [each.run_s + grain_s if each.is_running else each.due_s - now_s + LATER * grain_s for each in kept]
    )
    bits, longer_s = _fastest_bps(planned) * grain_s / 4, (3 * grain_s if kept else 0.0)
    shown = replace(
        planned,
        gains=_gains(planned, newcomers, len(kept), free),
        bits=np.append(planned.bits[newcomers], np.full(len(kept), bits)),
        cycles=np.append(planned.cycles[newcomers] + longer_s * planned.edge_hz, run_s * planned.edge_hz),
        deadlines_s=np.append(planned.deadlines_s[newcomers] - now_s, due_s),
        releases_s=np.append(np.zeros(len(newcomers)), ready_s),
        values_j=np.append(planned.values_j[newcomers], np.zeros(len(kept))),
    )
    large_j = 2 * float(shown.worth_j.sum())
    values_j = np.append(shown.values_j[: len(newcomers)], np.full(len(kept), large_j))
    return PolicyView(replace(shown, values_j=values_j), newcomers, kept, free)


def _ready_in(promise: Commitment, now_s: float) -> float:
    return max(0.0, promise.ready_s - now_s)


def _own(planned: Instance) -> tuple[int, float]:
    """How many dedicated subcarriers a promise has (the smallest group size), and its ratio there at full power."""
    most = max((each.least_ratio for each in planned.radio.modulations), default=1.0)
    return min(planned.group_sizes, default=1), STRONG * most


def _fastest_bps(planned: Instance) -> float:
    """The rate on the dedicated subcarriers at full power."""
    size, ratio = _own(planned)
    rate = max((each.bits_per_hz_s for each in planned.radio.modulations), default=math.log2(1 + ratio))
    return size * planned.radio.bandwidth_hz * rate


def _gains(planned: Instance, newcomers: Ints, num_kept: int, free: Ints) -> npt.NDArray[np.float64]:
    """Gains of newcomers on the free subcarriers, and of every promise on its dedicated ones."""
    (size, ratio), radio = _own(planned), planned.radio
    strong = ratio * size * radio.noise_w_per_hz * radio.bandwidth_hz / radio.max_power_w
    gains = np.full((len(newcomers) + num_kept, len(free) + num_kept * size), FAINT)
    gains[: len(newcomers), : len(free)] = planned.gains[np.ix_(newcomers, free)]
    for place in range(num_kept):
        begin = len(free) + place * size
        gains[len(newcomers) + place, begin : begin + size] = strong
    return gains


def _longest_run(free: Ints) -> Ints:
    """Where groups must be runs, what lies on both sides of a used subcarrier must not look like neighbours."""
    runs = np.split(free, np.flatnonzero(np.diff(free) > 1) + 1)
    return max(runs, key=len)
