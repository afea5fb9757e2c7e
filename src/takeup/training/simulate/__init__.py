"""The simulated engine: one iteration of a schedule, many iterations with jitter, and the predicted cost of faults."""

from __future__ import annotations

from takeup.training.simulate.predicted import calibrated, with_faults
from takeup.training.simulate.runs import Sampled, jitter, sample, simulate, work_conserving

__all__ = ["Sampled", "calibrated", "jitter", "sample", "simulate", "with_faults", "work_conserving"]
