"""What a policy sees of the simulated site: an instance with newcomers and promises; and what it cannot know."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, log2

import numpy as np
import numpy.typing as npt
from scipy import stats

from takeup.core.arrays import Ints
from takeup.core.seeds import Streams
from takeup.edge.model import Instance
from takeup.errors import BadInput

# The view: newcomers, free subcarriers and accepted tasks as one instance ---------------------------------------------
#
# How it works. Time begins now. Tasks that were accepted before take part as devices whose upload is over at once, on a
# subcarrier that only they can use, and which are worth more than all newcomers together. One that is still uploading
# is released when its upload is to end; one that runs needs the rest of its time, beginning now. So any policy that
# does what is worth most keeps all promises, and newcomers get what is left of the CPU. Policies know nothing of this.
#
# An upload that takes no time, and a task that must begin now, leave no slack for rounding. So these uploads take a
# fraction of a `grain`, a running task may end one grain late, and all other promises two; newcomers seem to take three
# grains longer than they do, so that promises can be kept without these grains when it comes to that. A grain is some
# millionths of the longest time there is for a task.

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
        best_effort=np.append(planned.best_effort[newcomers], np.zeros(len(kept), np.bool_)),
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
    rate = max((each.bits_per_hz_s for each in planned.radio.modulations), default=log2(1 + ratio))
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


# Uncertainty that a plan does not see: the true number of cycles of a task, and the true gain of a channel ------------
#
# A plan uses a quantile, so that this share of the tasks takes no more cycles, and of the channels is no worse. The
# truth is drawn once, and only the simulator sees it.


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Cycles are those of the instance times a Gamma variable of mean one; gains are off by normal errors in dB.

    `cycles_shape` is the shape of the Gamma distribution: inf for cycles that are certain, 1 for exponential ones. The
    error of the gains, with standard deviation `gain_error_db`, is one for all subcarriers of a device.
    """

    cycles_shape: float = inf
    gain_error_db: float = 0.0
    quantile: float = 0.95

    def __post_init__(self) -> None:
        if not self.cycles_shape > 0:
            raise BadInput(
                f"cycles_shape is {self.cycles_shape:g}; give a number above zero, or inf for certain cycles"
            )
        if not (isfinite(self.gain_error_db) and self.gain_error_db >= 0):
            raise BadInput(f"gain_error_db is {self.gain_error_db:g}; give a finite number of zero or more")
        if not 0 < self.quantile < 1:
            raise BadInput(f"quantile is {self.quantile:g}; give a share between 0 and 1, such as 0.95")

    def planned(self, instance: Instance) -> Instance:
        """What plans reckon with."""
        margin_db = float(stats.norm.ppf(1 - self.quantile)) * self.gain_error_db
        return replace(
            instance, cycles=instance.cycles * self.cycles_factor(0.0), gains=instance.gains * 10 ** (margin_db / 10)
        )

    def truth(self, instance: Instance, streams: Streams) -> Instance:
        """What really is."""
        cycles, gains = instance.cycles, instance.gains
        if isfinite(self.cycles_shape):
            factors = streams.stream("cycles").gamma(self.cycles_shape, 1 / self.cycles_shape, len(cycles))
            cycles = cycles * np.maximum(factors, 1e-9)  # a task of no cycles is none
        if self.gain_error_db:
            errors_db = streams.stream("channel").normal(0.0, self.gain_error_db, (len(gains), 1))
            gains = gains * 10 ** (errors_db / 10)
        return replace(instance, cycles=cycles, gains=gains)

    def cycles_factor(self, at_least: float) -> float:
        """The quantile of the cycles over their mean, if it is known that they are more than `at_least` times it."""
        if not isfinite(self.cycles_shape):
            return max(1.0, at_least)
        gamma = stats.gamma(self.cycles_shape, scale=1 / self.cycles_shape)
        quantile = float(gamma.isf(gamma.sf(at_least) * (1 - self.quantile)))
        return max(at_least, quantile) if isfinite(quantile) else at_least


CERTAIN = Uncertainty()
