"""The number of stalls and their length, from one cycle of waiting and playing.

How it works. Let v be the law of the state at the first stall (it sums to P(N >= 1)) and R = V(q_b) W(q_b) the law of
the state at the next one, for every state of a stall. Then, with m the mean time a stall lasts,

    P(N >= n) = v R^(n-1) 1         E[z^N] = 1 + (z - 1) v (I - z R)^-1 1
    E[N]      = v (I - R)^-1 1      E[time in stalls] = v (I - R)^-1 m
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Floats


@dataclass(frozen=True, slots=True)
class StallCounts:
    """The law of the number of stalls, and the expected time spent in them."""

    first: Floats
    cycle: Floats
    mean: float
    stall_s: float

    def at_least(self, num_stalls: int) -> float:
        """P(N >= num_stalls)."""
        if num_stalls <= 0:
            return 1.0
        law = self.first
        for _ in range(num_stalls - 1):
            law = law @ self.cycle
        return min(1.0, float(law.sum()))

    def law(self, most: int) -> Floats:
        """P(N = 0), .., P(N = most - 1), P(N >= most)."""
        tails = np.array([self.at_least(num) for num in range(most + 1)])
        return np.append(-np.diff(tails), tails[-1])

    def generating_function(self, z: complex) -> complex:
        """E[z^N] for |z| <= 1; the derivatives at 0 are the probabilities, those at 1 the moments."""
        if len(self.first) == 0:
            return 1.0
        ones = np.ones(len(self.first))
        return complex(1 + (z - 1) * self.first @ np.linalg.solve(np.eye(len(ones)) - z * self.cycle, ones))
