"""The energy oracle: the cheapest upload over a group of subcarriers before a time limit, in closed form.

How it works. A device sends `bits` in t seconds over subcarriers of bandwidth B with signal-to-noise ratios per watt
g_1 >= g_2 >= ... The least power fills water up to a level mu: P_l = mu - 1/g_l on the n best ones, where

    log2 mu = (bits / (B t) - sum log2 g_l) / n          and subcarrier n is on while t <= on_n,
    on_n    = bits / (B sum_(l <= n) log2(g_l / g_n))    which falls with n.

The energy t (p + sum P_l), with circuit power p, is convex in t. With n subcarriers on it is least where

    t = bits ln 2 / (n B y),   y = 1 + W((G (p - sum 1/g_l)) / (n e)),   G = (g_1 ... g_n)^(1/n),

W being the principal branch of Lambert's function. That t belongs to n as long as it is at most on_n; the true optimum
is at the largest such n. The shortest time is the one that takes all the power a device has: water-filling again.

All of it is computed at once for the groups {1}, {1, 2}, ... of the best subcarriers: with k of them the number that is
on is the smaller of k and what it would be with all.
"""

import math
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import lambertw

from takeup.core.arrays import Floats, Ints
from takeup.edge.model import Radio

ABSENT = 1e-200  # the gain of a subcarrier that a group does not have: never worth any power
ROUNDING = 1e-10  # a limit that is the end of an upload, less its release, may be a little shorter than the upload
LOWEST = -(1 - 1e-12) / np.e  # where Lambert's function ends, and a little for rounding


class Uploads(NamedTuple):
    """How long uploads take, and what they cost; both are inf where the limit cannot be met."""

    time_s: Floats
    energy_j: Floats


class Oracle(Protocol):
    """Answers for the groups {1}, {1, 2}, ... of subcarriers that are ranked from the best on."""

    shortest_s: Floats

    def prefixes(self, limits_s: Floats) -> Uploads:
        """For every device and number of best subcarriers, the cheapest upload that ends by the limit of the device."""

    def whole(self, limits_s: Floats) -> Uploads:
        """The same for all subcarriers of every device; one axis shorter."""


def oracle(gains: Floats, bits: Floats, radio: Radio) -> Oracle:
    """What uploads cost with this radio; arguments as for `PrefixGroups`."""
    return ModulatedGroups(gains, bits, radio) if radio.modulations else PrefixGroups(gains, bits, radio)


class PrefixGroups:
    """Uploads over the 1, 2, ... best of some subcarriers, for any number of devices.

    `gains[..., n]` are the ratios to noise, falling along the last axis, `ABSENT` where there are no more. `bits` has
    the shape of all other axes.
    """

    def __init__(self, gains: Floats, bits: Floats, radio: Radio) -> None:
        self._radio = radio
        self._size = gains.shape[-1]
        self._inverse = 1 / gains
        self._logs = np.log2(gains)
        self._sum_inverse = np.cumsum(self._inverse, axis=-1)
        self._sum_logs = np.cumsum(self._logs, axis=-1)
        self._counts = np.arange(1, self._size + 1)
        self._bits_per_hz = bits[..., None] / radio.bandwidth_hz
        with np.errstate(divide="ignore"):
            self._on_s = self._bits_per_hz / np.maximum(self._sum_logs - self._counts * self._logs, 0.0)
        self.shortest_s = self._shortest()
        self.cheapest_s = self._cheapest()

    def prefixes(self, limits_s: Floats) -> Uploads:
        """For every device and number of best subcarriers, the cheapest upload that ends by the limit of the device."""
        return self._uploads(limits_s[..., None], self._counts)

    def whole(self, limits_s: Floats) -> Uploads:
        """The same for all subcarriers of every device; one axis shorter."""
        times, energies = self._uploads(limits_s[..., None], self._counts[-1:])
        return Uploads(times[..., 0], energies[..., 0])

    def _shortest(self) -> Floats:
        level = (self._radio.max_power_w + self._sum_inverse) / self._counts
        num_on = np.maximum(1, (level > self._inverse).sum(axis=-1, keepdims=True))
        bits_per_hz_s = self._counts * np.log2(level) + self._sum_logs
        with np.errstate(divide="ignore"):
            return self._bits_per_hz / np.maximum(self._at(bits_per_hz_s, np.minimum(self._counts, num_on)), 0.0)

    def _cheapest(self) -> Floats:
        mean_gain = np.exp2(self._sum_logs / self._counts)
        argument = mean_gain * (self._radio.circuit_power_w - self._sum_inverse) / (self._counts * np.e)
        # down here the energy falls for ever: then fewer subcarriers are on, or only the limit ends the upload
        y = np.where(argument < LOWEST, 0.0, 1 + lambertw(np.maximum(argument, LOWEST)).real)
        with np.errstate(divide="ignore"):
            time_s = np.log(2) * self._bits_per_hz / (self._counts * y)
        num_on = np.maximum(1, (time_s <= self._on_s).sum(axis=-1, keepdims=True))
        return self._at(time_s, np.minimum(self._counts, num_on))

    def _uploads(self, limits_s: Floats, sizes: Ints) -> Uploads:
        shortest_s, cheapest_s = self.shortest_s[..., sizes - 1], self.cheapest_s[..., sizes - 1]
        can = (shortest_s <= limits_s * (1 + ROUNDING)) & np.isfinite(shortest_s)
        time_s = np.where(can, np.maximum(shortest_s, np.minimum(cheapest_s, limits_s)), np.inf)
        power_w = self._power(time_s, sizes)
        with np.errstate(invalid="ignore"):
            return Uploads(time_s, np.where(can, time_s * (self._radio.circuit_power_w + power_w), np.inf))

    def _power(self, time_s: Floats, sizes: Ints) -> Floats:
        num_on = np.maximum(1, (time_s[..., None] <= self._on_s[..., None, :]).sum(axis=-1))
        num_on = np.minimum(sizes, num_on)
        level = np.exp2((self._bits_per_hz / time_s - self._at(self._sum_logs, num_on)) / num_on)
        power_w: Floats = np.maximum(0.0, num_on * level - self._at(self._sum_inverse, num_on))
        return power_w

    @staticmethod
    def _at(values: Floats, num_on: Ints) -> Floats:
        """The entries for this many subcarriers."""
        leading = np.broadcast_shapes(values.shape[:-1], num_on.shape[:-1])
        values = np.broadcast_to(values, (*leading, values.shape[-1]))
        return np.take_along_axis(values, np.broadcast_to(num_on - 1, (*leading, num_on.shape[-1])), axis=-1)


class ModulatedGroups:
    """The same where every upload uses one of the modulations of the radio on all the subcarriers it uses.

    With modulation m on the n best subcarriers the rate, the power and so the energy are fixed: an upload is the
    cheapest of these choices that is in time, and that the device has the power for.
    """

    def __init__(self, gains: Floats, bits: Floats, radio: Radio) -> None:
        # axes: all others, modulation, number of subcarriers in use
        rates = np.array([each.bits_per_hz_s for each in radio.modulations])[:, None]
        ratios = np.array([each.least_ratio for each in radio.modulations])[:, None]
        power_w = ratios * np.cumsum(1 / gains, axis=-1)[..., None, :]
        time_s = bits[..., None, None] / (radio.bandwidth_hz * rates * np.arange(1, gains.shape[-1] + 1))
        self._time_s: Floats = np.where(power_w <= radio.max_power_w, time_s, np.inf)
        self._energy_j: Floats = self._time_s * (radio.circuit_power_w + power_w)
        self.shortest_s: Floats = np.minimum.accumulate(self._time_s.min(axis=-2), axis=-1)

    def prefixes(self, limits_s: Floats) -> Uploads:
        """For every device and number of best subcarriers, the cheapest upload that ends by the limit of the device."""
        times_s, energies_j = self._in_time(limits_s)
        modulation = np.argmin(energies_j, axis=-2)[..., None, :]
        energies_j = np.take_along_axis(energies_j, modulation, axis=-2)[..., 0, :]
        times_s = np.take_along_axis(times_s, modulation, axis=-2)[..., 0, :]
        least_j = np.minimum.accumulate(energies_j, axis=-1)
        num_used = np.maximum.accumulate(np.where(energies_j <= least_j, np.arange(energies_j.shape[-1]), 0), axis=-1)
        return Uploads(np.take_along_axis(times_s, num_used, axis=-1), least_j)

    def whole(self, limits_s: Floats) -> Uploads:
        """The same for all subcarriers of every device; one axis shorter."""
        together = (each.reshape(*each.shape[:-2], math.prod(each.shape[-2:])) for each in self._in_time(limits_s))
        times_s, energies_j = together
        choice = np.argmin(energies_j, axis=-1)[..., None]
        time_s = np.take_along_axis(times_s, choice, axis=-1)[..., 0]
        return Uploads(time_s, np.take_along_axis(energies_j, choice, axis=-1)[..., 0])

    def _in_time(self, limits_s: Floats) -> tuple[Floats, Floats]:
        late = self._time_s > limits_s[..., None, None] * (1 + ROUNDING)
        return np.where(late, np.inf, self._time_s), np.where(late, np.inf, self._energy_j)


def least_powers(gains: Floats, bits: float, time_s: float, radio: Radio) -> Floats:
    """The least powers, in watt, that send the bits in this time over subcarriers of these ratios in any order."""
    if not radio.modulations:
        return water_fill(gains, bits, time_s, radio)
    ranked = np.argsort(-gains, kind="stable")
    best, powers_w = np.inf, np.zeros(len(gains))
    for each in radio.modulations:
        share = bits / (radio.bandwidth_hz * each.bits_per_hz_s * time_s)
        used = ranked[: max(1, int(np.ceil(share * (1 - ROUNDING))))]
        needed_w = each.least_ratio / gains[used]
        if share <= len(gains) * (1 + ROUNDING) and needed_w.sum() < best:
            best, powers_w = float(needed_w.sum()), np.zeros(len(gains))
            powers_w[used] = needed_w
    return powers_w


def water_fill(gains: Floats, bits: float, time_s: float, radio: Radio) -> Floats:
    """The least powers, in watt, that send the bits in this time over subcarriers of these ratios in any order."""
    ranked = -np.sort(-gains)
    counts = np.arange(1, len(gains) + 1)
    logs = (bits / (radio.bandwidth_hz * time_s) - np.cumsum(np.log2(ranked))) / counts
    num_on = max(1, int((logs >= -np.log2(ranked)).sum()))
    powers_w: Floats = np.maximum(0.0, np.exp2(logs[num_on - 1]) - 1 / gains)
    return powers_w
