"""The simulated engine: one iteration of a schedule, many iterations with jitter, and the predicted cost of faults."""

from __future__ import annotations

from takeup.training.simulate.predicted import calibrate_profile, with_faults
from takeup.training.simulate.runs import SampledTimes, jitter, sample, simulate, work_conserving

__all__ = ["SampledTimes", "calibrate_profile", "jitter", "sample", "simulate", "with_faults", "work_conserving"]
