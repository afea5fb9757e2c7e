"""Serving: images from diffusion models, where every request brings LoRAs and ControlNets of its own.

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
    from takeup.serving.policies.lateness import bound_for, measured_bound
    from takeup.serving.policies.routing import Affinity
    from takeup.serving.simulate.adapters import replay_adapters, replay_routed
    from takeup.serving.traces.gentd26 import read_gentd26
    from takeup.serving.traces.stacks import generate_accesses

__all__ = [
    "ADAPTER_POLICIES",
    "Access",
    "Affinity",
    "CachePolicy",
    "Cancelled",
    "ControlUse",
    "Controls",
    "Expired",
    "LoraUse",
    "Loras",
    "Replay",
    "Request",
    "StepEngine",
    "bound_for",
    "generate_accesses",
    "measured_bound",
    "read_gentd26",
    "replay_adapters",
    "replay_routed",
    "tiny",
]

_HOMES = {
    "model": ("Access", "Cancelled", "ControlUse", "Expired", "LoraUse", "Replay", "Request"),
    "contract": ("CachePolicy",),
    "policies.adapters": ("ADAPTER_POLICIES",),
    "policies.routing": ("Affinity",),
    "policies.lateness": ("bound_for", "measured_bound"),
    "simulate.adapters": ("replay_adapters", "replay_routed"),
    "traces.gentd26": ("read_gentd26",),
    "traces.stacks": ("generate_accesses",),
    "engines.diffusers.steps": ("StepEngine",),
    "engines.diffusers.tiny": ("tiny",),
    "engines.diffusers.lora.addon": ("Loras",),
    "engines.diffusers.controls.addon": ("Controls",),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
