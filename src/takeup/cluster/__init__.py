"""GPU fleet: forecast the demand that must be served, sell the rest with a promise, place and preempt with care.

Public names are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.cluster.contract import Engine, Scheduler
    from takeup.cluster.fleet.evidence import Evidence, NoQuota, QuotaSource, StaticQuota
    from takeup.cluster.fleet.outcome import Metrics, Outcome
    from takeup.cluster.model import (
        Decision,
        Evict,
        Eviction,
        Grade,
        Hold,
        Job,
        Kind,
        Node,
        Offer,
        Quota,
        Run,
        SetQuota,
        Start,
        State,
        Waiting,
        Workload,
    )
    from takeup.cluster.policies import POLICIES, find_policy
    from takeup.cluster.policies.gfs.forecast import make_forecaster
    from takeup.cluster.policies.gfs.quota import Goal, SpotQuota
    from takeup.cluster.simulate import replay
    from takeup.cluster.traces import PRESETS, Loaded, Options, generate, read_trace

__all__ = [
    "POLICIES",
    "PRESETS",
    "Decision",
    "Engine",
    "Evict",
    "Eviction",
    "Evidence",
    "Goal",
    "Grade",
    "Hold",
    "Job",
    "Kind",
    "Loaded",
    "Metrics",
    "NoQuota",
    "Node",
    "Offer",
    "Options",
    "Outcome",
    "Quota",
    "QuotaSource",
    "Run",
    "Scheduler",
    "SetQuota",
    "SpotQuota",
    "Start",
    "State",
    "StaticQuota",
    "Waiting",
    "Workload",
    "find_policy",
    "generate",
    "make_forecaster",
    "read_trace",
    "replay",
]

_HOMES = {
    "contract": ("Engine", "Scheduler"),
    "fleet.evidence": ("Evidence", "NoQuota", "QuotaSource", "StaticQuota"),
    "fleet.outcome": ("Metrics", "Outcome"),
    "model": (
        "Decision",
        "Evict",
        "Eviction",
        "Grade",
        "Hold",
        "Job",
        "Kind",
        "Node",
        "Offer",
        "Quota",
        "Run",
        "SetQuota",
        "Start",
        "State",
        "Waiting",
        "Workload",
    ),
    "policies": ("POLICIES", "find_policy"),
    "policies.gfs.forecast": ("make_forecaster",),
    "policies.gfs.quota": ("Goal", "SpotQuota"),
    "simulate": ("replay",),
    "traces": ("PRESETS", "Loaded", "Options", "generate", "read_trace"),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
