"""Detectors as published, for comparison: Bayesian online change points with verification, and a sliding window.

Read literally, the paper declares a change when the probability that the run length is zero exceeds 0.9; with a
constant hazard that probability is the hazard, so it never does. Read in hindsight, a change is declared when the
probability that the run began a few points ago exceeds 0.9. A change is verified if the means of the points before and
after it differ by a tenth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Floats
from takeup.training.policies.stragglers.fast.published import run_length_probabilities, sliding_window_alarms
from takeup.training.policies.stragglers.fast.run_lengths import RunPrior, initial_run_lengths

Alarm = tuple[int, bool]  # the point of the alarm, and whether it says slower
MOST_PUBLISHED_RUNS = 300


@dataclass(frozen=True, slots=True)
class OnlineChangePoints:
    """Bayesian online change points on logarithms; `is_literal` applies the rule as it is printed."""

    is_literal: bool = False
    verify: bool = True
    least_probability: float = 0.9
    num_after: int = 3
    hazard: float = 1 / 250
    spread: float = 0.03
    least_ratio: float = 0.1

    def alarms(self, times_s: Floats) -> list[Alarm]:
        """All alarms of a stream."""
        logs = np.log(times_s)
        fresh, near = np.zeros((2, len(logs)))
        prior = RunPrior(float(np.median(logs[:20])), 0.1, 2.0, 2 * self.spread**2, self.hazard)
        run_length_probabilities(prior, initial_run_lengths(MOST_PUBLISHED_RUNS), logs, self.num_after, fresh, near)
        declared = np.flatnonzero((fresh if self.is_literal else near) >= self.least_probability)
        found, began = list[Alarm](), 0
        for point in declared.tolist():
            start = point - self.num_after + 1
            if start - began > self.num_after:
                ratio = verify_change(times_s, began, start, point + 1)
                began = start
                if not self.verify or abs(ratio) > self.least_ratio:
                    found.append((point, ratio > 0))
        return found


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """The median of the last few points against that of those before them: more than a tenth is a change."""

    num_now: int = 5
    num_before: int = 20
    least_ratio: float = 0.1

    def alarms(self, times_s: Floats) -> list[Alarm]:
        """All alarms of a stream; the window restarts after each."""
        slower = np.zeros(len(times_s), np.int64)
        sliding_window_alarms(times_s, self.num_now, self.num_before, self.least_ratio, slower)
        return [(int(point), bool(slower[point] > 0)) for point in np.flatnonzero(slower)]


def verify_change(times_s: Floats, began: int, start: int, end: int) -> float:
    """Mean of the points from `start` less that of the points before, as a share of the larger; signed."""
    before, after = times_s[began:start].mean(), times_s[start:end].mean()
    return float((after - before) / max(after, before))
