"""The law of the start-up delay, with its jumps, by inverting a Laplace transform."""

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Complexes, Floats
from takeup.errors import BadInput
from takeup.streaming.model import Chain
from takeup.streaming.numerics import censor_transforms, expm_many, expm_of_rates, invert_laplace, restore_transforms
from takeup.streaming.solvers.solution import OUTAGE_FILL, check_seconds

# How it works. The transform of the delay of x seconds of video is, with T the rates that a waiting video sees,
#
#     E[e^(-s delay)] = pi ( V 1 + (I - V) (s I - T)^-1 end ),        V = expm(B^-1 (T - s I) x)
#
# (the second term for videos that are downloaded before). A video with a constant fill rate b waits exactly x / b. With
# T' the rates between states of the same fill rate, these atoms have the masses pi expm(B^-1 T' x), and such a video is
# done before its atom with density pi expm(T' t) end. A smooth inversion is off by per cents near atoms, so all videos
# with one fill rate only are taken out and put back exactly; the rest goes through Euler summation. It still has kinks
# at the atoms, which cost accuracy within a thousandth of them (5e-4; elsewhere 1e-5 and better). Viewers that give up
# never start: the law then ends below 1.

NUM_TERMS, FOR_EVER_S = 100, 1e12
LARGEST_STACK = 4_000_000  # complex numbers in memory at a time


def startup_cdf(chain: Chain, threshold_s: float, times_s: npt.ArrayLike) -> Floats:
    """P(start-up delay <= t) for every t of `times_s`."""
    check_seconds("a start threshold", threshold_s)
    times = np.minimum(np.atleast_1d(np.asarray(times_s, dtype=np.float64)), FOR_EVER_S)
    if np.isnan(times).any():
        raise BadInput("times_s holds nan; give seconds")
    if threshold_s == 0:
        return (times >= 0).astype(np.float64)
    share, later = np.zeros(len(times)), times > 0
    if later.any():
        share[later] = _positive_times(chain, threshold_s, times[later])
    return share


def startup_atoms(chain: Chain, threshold_s: float) -> tuple[Floats, Floats]:
    """The delays that have a probability of their own, and these probabilities, by the state in which play starts."""
    steady = _ConstantFillVideos(chain, threshold_s)
    return steady.delays, steady.masses


def _positive_times(chain: Chain, threshold_s: float, times: Floats) -> Floats:
    steady = _ConstantFillVideos(chain, threshold_s)

    def smooth(s: Complexes) -> Complexes:
        return (_transform(chain, threshold_s, s) - steady.transform(s)) / s

    num_parts = 1 + len(times) * 200 * chain.num_states**2 // LARGEST_STACK
    parts = [invert_laplace(smooth, some, NUM_TERMS) + steady.share(some) for some in np.array_split(times, num_parts)]
    share: Floats = np.clip(np.concatenate(parts), 0.0, 1.0)
    order = np.argsort(times)
    share[order] = np.maximum.accumulate(share[order])
    return share


class _ConstantFillVideos:
    """Videos that see one fill rate only while they wait: they start at the atom, or are downloaded before it."""

    def __init__(self, chain: Chain, threshold_s: float) -> None:
        fills = np.flatnonzero(chain.fill > OUTAGE_FILL * chain.fill.max())
        fill = chain.fill[fills]
        rates = (chain.killed - np.diag(chain.give_up))[np.ix_(fills, fills)]
        self._rates = np.where(fill[:, None] == fill[None, :], rates, 0.0)
        self._end, self._initial = chain.end[fills], chain.initial[fills]
        self._stays = expm_of_rates(self._rates * threshold_s / fill[:, None])
        self.delays: Floats = threshold_s / fill
        self.masses: Floats = self._initial @ self._stays

    def transform(self, s: Complexes) -> Complexes:
        """The Laplace transform of their delays."""
        at_atom = np.exp(-s[:, None] * self.delays)
        ended = self._end - at_atom * (self._stays @ self._end)
        resolvent = s[:, None, None] * np.eye(len(self._end)) - self._rates
        total: Complexes = (np.linalg.solve(resolvent, ended[:, :, None])[:, :, 0] * self._initial).sum(axis=1)
        total += (at_atom * self.masses).sum(axis=1)
        return total

    def share(self, times: Floats) -> Floats:
        """The share of them that have started by each of the times."""
        reached = self.delays <= times[:, None] * (1 + 1e-12)
        bordered = np.zeros((len(self._end) + 1,) * 2)
        bordered[:-1, :-1], bordered[:-1, -1] = self._rates, self._end
        until = np.minimum(times[:, None], np.append(self.delays, 0.0))
        ended = expm_many(bordered * until[:, :, None])[:, :-1, -1]
        total: Floats = reached @ self.masses + ended @ self._initial
        return total


def _transform(chain: Chain, threshold_s: float, s: Complexes) -> Complexes:
    rates = (chain.killed - np.diag(chain.give_up)) - s[:, None, None] * np.eye(chain.num_states)
    fills = chain.fill > OUTAGE_FILL * chain.fill.max()
    watched, reach = censor_transforms(rates, fills)
    starts = expm_many(watched / chain.fill[fills][:, None] * threshold_s)
    everywhere = restore_transforms(starts, fills, reach)
    ended = np.linalg.solve(-rates, np.broadcast_to(chain.end[:, None], (len(s), chain.num_states, 1)))
    done = everywhere.sum(axis=2, keepdims=True) + ended - everywhere @ ended[:, fills]
    total: Complexes = (chain.initial @ done)[:, 0]
    return total
