"""How a pipeline is computed where it lies, decided in one place: recorded on a CUDA device, as it is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from takeup.serving.engines.diffusers.controls.streams import StreamWorker
from takeup.serving.engines.diffusers.controls.workers import ThreadWorker, Worker
from takeup.serving.engines.diffusers.device.compute import Compute, Eager, Recorded
from takeup.serving.engines.diffusers.device.regions import FAST
from takeup.serving.engines.diffusers.device.stacks import Stacks
from takeup.serving.engines.diffusers.families import Family
from takeup.serving.engines.diffusers.masked.binding import can_bind

__all__ = ["binds_edits", "compute_for", "stacks_for", "workers_for"]


def compute_for(device: torch.device | str, *, compiles: bool = True) -> Compute:
    """How networks on this device are called."""
    if torch.device(device).type != "cuda":
        return Eager()
    return Recorded(FAST if compiles else None)


def stacks_for(compute: Compute, family: Family) -> Stacks | None:
    """The weights that LoRAs are merged into by whole stacks; none where layers are patched one by one."""
    return compute.prepared(family.network).stacks if isinstance(compute, Recorded) else None


def binds_edits(compute: Compute, family: Family) -> bool:
    """Whether masked edits are recorded, or made by hooks."""
    return isinstance(compute, Recorded) and can_bind(compute.prepared(family.network))


def workers_for(compute: Compute, nets: Mapping[str, Any]) -> dict[str, Worker]:
    """Who computes ControlNets: recorded in streams of their own, or threads."""
    if isinstance(compute, Recorded):
        return {name: StreamWorker(net, compute) for name, net in nets.items()}
    return {name: ThreadWorker(net) for name, net in nets.items()}
