"""Simulate iterations of a pipeline whose operation times vary."""

import numpy as np
from numpy.random import Generator

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.training.pipelines.profile import Profile
from takeup.training.pipelines.schedule import PipelinePlan
from takeup.training.pipelines.timing.evaluation import timeline_of


def jitter(random: Generator, profile: Profile, share: float) -> Floats:
    """Log-normal factors for operation times, with mean 1 and about this standard deviation."""
    if not 0 <= share <= 10:
        raise BadInput(f"the jitter is {share:g}; give a share of the operation time from 0 to 10")
    sigma = np.sqrt(np.log1p(share**2))
    shape = (3, profile.num_stages, profile.num_microbatches)
    return random.lognormal(-(sigma**2) / 2, sigma, shape)


def sample(plan: PipelinePlan, random: Generator, *, jitter_share: float, num_runs: int) -> Floats:
    """Iteration times of a plan with varying operation times, in seconds."""
    times_s = [
        timeline_of(plan.schedule, plan.profile, jitter(random, plan.profile, jitter_share)).iteration_s
        for _ in range(num_runs)
    ]
    return np.array(times_s)
