"""Helpers shared by the reproduction: pipelines of equal operations, and times in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from takeup.training.model.pipeline import Link, Profile
from takeup.training.model.schedule import Schedule
from takeup.training.timing.runs import timeline_of

Numbers = Mapping[str, Any]


def profile_with_latencies(
    expected: Numbers, num_stages: int, num_microbatches: int, latencies_ms: Mapping[int, float]
) -> Profile:
    """Links with a latency."""
    links = {number: Link(latency / 1e3) for number, latency in latencies_ms.items()}
    return Profile.uniform(num_stages, num_microbatches, expected["setting"]["op_ms"] / 1e3, links)


def profile_with_queues(
    expected: Numbers, num_stages: int, num_microbatches: int, services_ms: Mapping[int, float]
) -> Profile:
    """Links that serve one message at a time."""
    links = {number: Link(service_s=service / 1e3) for number, service in services_ms.items()}
    return Profile.uniform(num_stages, num_microbatches, expected["setting"]["op_ms"] / 1e3, links)


def iteration_ms(schedule: Schedule, profile: Profile) -> float:
    """Iteration time of a schedule on a pipeline."""
    return to_ms(timeline_of(schedule, profile).iteration_s)


def to_ms(seconds: float) -> float:
    """Milliseconds, rounded to the nanosecond."""
    return round(1e3 * seconds, 6)
