"""When the download of a video ends: the time at which its chain is left, a phase-type law.

    P(time > t) = pi exp(T t) 1          E[time] = pi (-T)^-1 1

T is the generator with the end of the download as a way out. The viewer is through later: after the start-up, the video
itself and the stalls.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.model import Chain
from takeup.streaming.policies.exponential import expm_of_rates


def mean_download_s(chain: Chain) -> float:
    """Expected seconds from the request to the last byte."""
    if not chain.end.any():
        raise BadInput("no state of this chain ends the download; give at least one an end rate above zero")
    return float(chain.initial @ np.linalg.solve(-chain.killed, np.ones(chain.num_states)))


def download_cdf(chain: Chain, times_s: npt.ArrayLike) -> Floats:
    """P(the download takes at most t), for every t of `times_s`."""
    times = np.atleast_1d(np.asarray(times_s, np.float64))
    if not (np.isfinite(times).all() and (times >= 0).all()):
        raise BadInput("times must be finite seconds, zero or more")
    left = [float(chain.initial @ expm_of_rates(chain.killed * time_s).sum(axis=1)) for time_s in times]
    return np.clip(1.0 - np.array(left), 0.0, 1.0)
