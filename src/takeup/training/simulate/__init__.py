"""The simulated engine: a schedule in virtual time, with operations that vary, and ranks that choose as they go."""

from __future__ import annotations

from takeup.training.simulate.runs import Sampled, jitter, sample, simulate, work_conserving

__all__ = ["Sampled", "jitter", "sample", "simulate", "work_conserving"]
