"""Simulate a pipeline: one iteration of a schedule, many with jitter, and the predicted cost of faults."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from takeup.core.arrays import Floats
from takeup.core.stats import percentile
from takeup.errors import BadInput
from takeup.training.pipelines.profile import Link, Profile, Stage
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


# Predict the times of a pipeline with faults from a healthy run on the same machine -----------------------------------

A_BIT_S = 1e-4


def calibrate_profile(found: Profile, schedule: Schedule, iteration_s: float) -> Profile:
    """The pipeline as measured, with the per-operation overhead that explains its iteration time.

    Host overhead is not in the measured operations: it is what a runtime does between them.
    """
    found = replace(found, host_s=0.0)
    plain_s = timeline_of(schedule, found).iteration_s
    slope = (timeline_of(schedule, replace(found, host_s=A_BIT_S)).iteration_s - plain_s) / A_BIT_S
    return replace(found, host_s=max(0.0, iteration_s - plain_s) / slope)


def with_faults(base: Profile, healthy: Profile, truth: Profile) -> Profile:
    """The calibrated pipeline `base`, whose nominal profile is `healthy`, changed to the nominal profile `truth`."""
    stages = [
        _shift_stage_times(stage, fine, found)
        for stage, fine, found in zip(truth.stages, healthy.stages, base.stages, strict=True)
    ]
    links = [
        Link(link.latency_s + found.delay_s, link.service_s)
        for link, found in zip(truth.links, base.links, strict=True)
    ]
    return replace(base, stages=tuple(stages), links=tuple(links))


def _shift_stage_times(stage: Stage, fine: Stage, found: Stage) -> Stage:
    """Predicted stage for nominal `stage`, given that nominal `fine` was measured as `found`."""
    times_s = [
        getattr(stage, name) + max(0.0, getattr(found, name) - getattr(fine, name))
        for name in ("forward_s", "backward_s", "weight_s")
    ]
    return Stage(*times_s)
