"""Serve diffusion models where each request brings its own LoRAs and ControlNets.

Public names are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.serving.contract import CachePolicy
    from takeup.serving.engines.diffusers.controls.addon import Controls
    from takeup.serving.engines.diffusers.lora.addon import Loras
    from takeup.serving.engines.diffusers.steps import StepEngine
    from takeup.serving.engines.diffusers.tiny import tiny
    from takeup.serving.model import Access, Cancelled, ControlUse, Expired, LoraUse, Replay, Request
    from takeup.serving.policies.adapters import ADAPTER_POLICIES
    from takeup.serving.policies.admission import Admission
    from takeup.serving.policies.lateness import bound_for, measured_bound
    from takeup.serving.policies.routing import Affinity, NearbyAffinity
    from takeup.serving.simulate.adapters import replay_adapters, replay_routed
    from takeup.serving.simulate.instance import Rules
    from takeup.serving.simulate.queue import simulate_queue
    from takeup.serving.simulate.residents import Tiers
    from takeup.serving.traces.arrivals import poisson_arrivals, read_arrivals, retail_arrivals
    from takeup.serving.traces.gentd26 import read_gentd26
    from takeup.serving.traces.stacks import generate_accesses
    from takeup.serving.traffic import Arrival, Design, Outcome, RowCosts

__all__ = [
    "ADAPTER_POLICIES",
    "Access",
    "Admission",
    "Affinity",
    "Arrival",
    "CachePolicy",
    "Cancelled",
    "ControlUse",
    "Controls",
    "Design",
    "Expired",
    "LoraUse",
    "Loras",
    "NearbyAffinity",
    "Outcome",
    "Replay",
    "Request",
    "RowCosts",
    "Rules",
    "StepEngine",
    "Tiers",
    "bound_for",
    "generate_accesses",
    "measured_bound",
    "poisson_arrivals",
    "read_arrivals",
    "read_gentd26",
    "replay_adapters",
    "replay_routed",
    "retail_arrivals",
    "simulate_queue",
    "tiny",
]

_HOMES = {
    "model": ("Access", "Cancelled", "ControlUse", "Expired", "LoraUse", "Replay", "Request"),
    "contract": ("CachePolicy",),
    "policies.adapters": ("ADAPTER_POLICIES",),
    "policies.admission": ("Admission",),
    "policies.routing": ("Affinity", "NearbyAffinity"),
    "policies.lateness": ("bound_for", "measured_bound"),
    "simulate.adapters": ("replay_adapters", "replay_routed"),
    "simulate.instance": ("Rules",),
    "simulate.queue": ("simulate_queue",),
    "simulate.residents": ("Tiers",),
    "traces.arrivals": ("poisson_arrivals", "read_arrivals", "retail_arrivals"),
    "traces.gentd26": ("read_gentd26",),
    "traces.stacks": ("generate_accesses",),
    "traffic": ("Arrival", "Design", "Outcome", "RowCosts"),
    "engines.diffusers.steps": ("StepEngine",),
    "engines.diffusers.tiny": ("tiny",),
    "engines.diffusers.lora.addon": ("Loras",),
    "engines.diffusers.controls.addon": ("Controls",),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
