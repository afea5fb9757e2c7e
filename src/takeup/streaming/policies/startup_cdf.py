"""The whole law of the start-up delay, with its atoms.

How it works. The transform of the delay of x seconds of video is, with T the rates that a waiting video sees,

    E[e^(-s delay)] = pi ( V 1 + (I - V) (s I - T)^-1 end ),        V = expm(B^-1 (T - s I) x)

(the second term for videos that are downloaded before). Who stays in state i all the time waits exactly x / b_i, an
atom of mass pi_i exp(T_ii x / b_i); or is done before, at rate end_i. A smooth inversion is off by per cents near
atoms, so those who see one state only are taken out and put back exactly; the rest goes through Euler summation.
Viewers who give up never start: the law then ends below 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg import expm

from takeup.errors import BadInput
from takeup.streaming.model import Chain
from takeup.streaming.policies.censoring import censor_transforms, restore_transforms
from takeup.streaming.policies.euler import invert
from takeup.streaming.policies.phases import OUTAGE_FILL, check_seconds

__all__ = ["startup_atoms", "startup_cdf", "startup_quantile"]

Floats = npt.NDArray[np.float64]
Complexes = npt.NDArray[np.complex128]


def startup_cdf(chain: Chain, threshold_s: float, times_s: npt.ArrayLike) -> Floats:
    """P(start-up delay <= t) for every t of `times_s`."""
    check_seconds("a start threshold", threshold_s)
    times = np.atleast_1d(np.asarray(times_s, dtype=np.float64))
    if np.isnan(times).any():
        raise BadInput("times_s holds nan; give seconds")
    if threshold_s == 0:
        return (times >= 0).astype(np.float64)
    share = np.zeros(len(times))
    later = (times > 0) & np.isfinite(times)
    if later.any():
        share[later] = _positive_times(chain, threshold_s, times[later])
    share[np.isposinf(times)] = _positive_times(chain, threshold_s, np.array([1e12]))[0] if np.isinf(times).any() else 0
    return share


def startup_atoms(chain: Chain, threshold_s: float) -> tuple[Floats, Floats]:
    """The delays that have a probability of their own, and these probabilities."""
    fills = chain.fill > OUTAGE_FILL * chain.fill.max()
    delays = threshold_s / chain.fill[fills]
    leave = np.diag(chain.killed)[fills] - chain.give_up[fills]
    return delays, chain.initial[fills] * np.exp(leave * delays)


def startup_quantile(chain: Chain, threshold_s: float, share: float) -> float:
    """The delay that `share` of the viewers do not exceed, to a thousandth of itself."""
    if not 0 < share < 1:
        raise BadInput(f"share is {share}; give one between 0 and 1, such as 0.95")
    if threshold_s == 0:
        return 0.0
    low, high = 0.0, threshold_s / float(chain.fill.max())
    while startup_cdf(chain, threshold_s, high)[0] < share:
        low, high = high, 2 * high
        if high > 1e9:
            raise BadInput(f"less than {share:g} of the viewers ever start; ask for a smaller share")
    return _bisect(chain, threshold_s, share, (low, high))


def _bisect(chain: Chain, threshold_s: float, share: float, bracket: tuple[float, float]) -> float:
    low, high = bracket
    while high - low > 1e-4 * high:
        inside = np.linspace(low, high, 10)[1:-1]
        enough = np.append(startup_cdf(chain, threshold_s, inside) >= share, True)
        first = int(np.argmax(enough))
        low, high = np.concatenate(([low], inside, [high]))[first : first + 2].tolist()
    return high


def _positive_times(chain: Chain, threshold_s: float, times: Floats) -> Floats:
    steady = _Steady(chain, threshold_s)

    def smooth(s: Complexes) -> Complexes:
        return (_transform(chain, threshold_s, s) - steady.transform(s)) / s

    share = np.clip(invert(smooth, times) + steady.share(times), 0.0, 1.0)
    order = np.argsort(times)
    share[order] = np.maximum.accumulate(share[order])
    return share


class _Steady:
    """Videos that see one state only while they wait: they start at the atom, or are downloaded before it."""

    def __init__(self, chain: Chain, threshold_s: float) -> None:
        fills = chain.fill > OUTAGE_FILL * chain.fill.max()
        self._delays, self._masses = startup_atoms(chain, threshold_s)
        self._leave = chain.give_up[fills] - np.diag(chain.killed)[fills]
        self._ends = chain.initial[fills] * chain.end[fills]

    def transform(self, s: Complexes) -> Complexes:
        rate = s[:, None] + self._leave
        total: Complexes = (np.exp(-s[:, None] * self._delays) * self._masses).sum(axis=1)
        return total + (self._ends * (1 - np.exp(-rate * self._delays)) / rate).sum(axis=1)

    def share(self, times: Floats) -> Floats:
        reached = self._delays <= times[:, None] * (1 + 1e-12)
        until = np.minimum(times[:, None], self._delays)
        ended = self._ends * -np.expm1(-self._leave * until) / np.maximum(self._leave, 1e-300)
        total: Floats = reached @ self._masses + ended.sum(axis=1)
        return total


def _transform(chain: Chain, threshold_s: float, s: Complexes) -> Complexes:
    rates = (chain.killed - np.diag(chain.give_up)) - s[:, None, None] * np.eye(chain.num_states)
    fills = chain.fill > OUTAGE_FILL * chain.fill.max()
    watched, reach = censor_transforms(rates, fills)
    starts = expm(watched / chain.fill[fills][:, None] * threshold_s)
    everywhere = restore_transforms(starts, fills, reach)
    ended = np.linalg.solve(-rates, np.broadcast_to(chain.end[:, None], (len(s), chain.num_states, 1)))
    done = everywhere.sum(axis=2, keepdims=True) + ended - everywhere @ ended[:, fills]
    total: Complexes = (chain.initial @ done)[:, 0]
    return total
