"""Predict the times of a pipeline with faults from a healthy run on the same machine."""

from __future__ import annotations

from dataclasses import replace

from takeup.training.model.pipeline import Link, Profile, Stage
from takeup.training.model.schedule import Schedule
from takeup.training.timing.runs import timeline_of

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
