"""Simulate a pipeline: one iteration of a schedule, or many with jitter."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from takeup.core.arrays import Floats
from takeup.core.stats import percentile
from takeup.errors import BadInput
from takeup.training.pipelines.profile import Profile
from takeup.training.pipelines.schedule import PipelinePlan, Schedule, Timeline
from takeup.training.pipelines.timing.evaluation import timeline_of


@dataclass(frozen=True, slots=True, eq=False)
class SampledTimes:
    """Iteration times of many runs."""

    planner: str
    iterations_s: Floats

    @property
    def mean_s(self) -> float:
        return float(self.iterations_s.mean())

    def percentile_s(self, percent: float) -> float:
        """Percentile of the iteration times."""
        return percentile(self.iterations_s, percent)


def simulate(schedule: Schedule, profile: Profile, factors: Floats | None = None) -> Timeline:
    """Start and end of every operation; `factors[kind, stage, microbatch]` scale single operations."""
    return timeline_of(schedule, profile, factors)


def jitter(random: Generator, profile: Profile, share: float) -> Floats:
    """Log-normal factors for operation times, with mean 1 and about this standard deviation."""
    if not 0 <= share <= 10:
        raise BadInput(f"the jitter is {share:g}; give a share of the operation time from 0 to 10")
    sigma = np.sqrt(np.log1p(share**2))
    shape = (3, profile.num_stages, profile.num_microbatches)
    return random.lognormal(-(sigma**2) / 2, sigma, shape)


def sample(plan: PipelinePlan, random: Generator, *, jitter_share: float, num_runs: int) -> SampledTimes:
    """Iteration times of a plan with varying operation times."""
    times_s = [
        timeline_of(plan.schedule, plan.profile, jitter(random, plan.profile, jitter_share)).iteration_s
        for _ in range(num_runs)
    ]
    return SampledTimes(plan.planner, np.array(times_s))
