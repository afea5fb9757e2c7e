"""Online change-point detection: when iterations became slower and when they recovered, from their times alone.

All computation is on logarithms, so that a threshold is a ratio. The rule printed in the paper (declare a change when
the probability that the run length is zero exceeds 0.9) can never fire: with a constant hazard that probability equals
the hazard. This detector estimates in hindsight where the current run began.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.training.stragglers.detect.kernels import (
    ChangeBuffer,
    DetectorState,
    RunLengths,
    detect_changes,
    initial_run_lengths,
    initial_state,
)

MOST_RUNS = 32


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """The iteration time changed from iteration `began` on; known since iteration `declared`."""

    began: int
    declared: int
    before_s: float
    after_s: float

    @property
    def factor(self) -> float:
        """Time ratio after/before; above one if iterations became slower."""
        return self.after_s / self.before_s

    @property
    def is_onset(self) -> bool:
        return self.after_s > self.before_s


@dataclass(slots=True)
class ChangePointDetector:
    """Consumes iteration times online and reports changes."""

    _memory: DetectorState = field(default_factory=initial_state, repr=False)
    _runs: RunLengths = field(default_factory=lambda: initial_run_lengths(MOST_RUNS), repr=False)

    def see(self, times_s: Floats) -> list[ChangePoint]:
        """Process these iterations; returns the changes they revealed."""
        times_s = np.asarray(times_s, np.float64)
        if not (np.isfinite(times_s) & (times_s > 0)).all():
            raise BadInput("times of iterations must be finite and above zero; leave out what was not measured")
        counters, levels = np.zeros((2, len(times_s)), np.int64), np.zeros((2, len(times_s)))
        found = ChangeBuffer(np.zeros(1, np.int64), *counters, *levels)
        detect_changes(self._memory, self._runs, np.log(times_s), found)
        rows = zip(*(column[: found.size[0]].tolist() for column in found[1:]), strict=True)
        return [
            ChangePoint(began, declared, math.exp(before), math.exp(after)) for began, declared, before, after in rows
        ]

    def see_one(self, time_s: float) -> list[ChangePoint]:
        return self.see(np.array([time_s]))
