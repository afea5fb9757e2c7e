"""Caching: which block to evict first, when the engine knows the future readers of each block.

Public names are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.caching.contract import Policy, PolicySpec, Store
    from takeup.caching.engines.local import LocalStore
    from takeup.caching.groups import GroupTable
    from takeup.caching.model import EngineModel, Evict, FlatTrace, Result, Room, Task, Workload
    from takeup.caching.policies import POLICIES, find_policy
    from takeup.caching.policies.fast.flat import replay_flat
    from takeup.caching.policies.fast.replay import replay
    from takeup.caching.traces import WORKLOADS, generate, read_trace
    from takeup.caching.traces.builder import WorkloadBuilder

__all__ = [
    "POLICIES",
    "WORKLOADS",
    "EngineModel",
    "Evict",
    "FlatTrace",
    "GroupTable",
    "LocalStore",
    "Policy",
    "PolicySpec",
    "Result",
    "Room",
    "Store",
    "Task",
    "Workload",
    "WorkloadBuilder",
    "find_policy",
    "generate",
    "read_trace",
    "replay",
    "replay_flat",
]

_HOMES = {
    "model": ("EngineModel", "Evict", "FlatTrace", "Result", "Room", "Task", "Workload"),
    "groups": ("GroupTable",),
    "contract": ("Policy", "PolicySpec", "Store"),
    "policies": ("POLICIES", "find_policy"),
    "policies.fast.flat": ("replay_flat",),
    "policies.fast.replay": ("replay",),
    "engines.local": ("LocalStore",),
    "traces": ("WORKLOADS", "generate", "read_trace"),
    "traces.builder": ("WorkloadBuilder",),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
