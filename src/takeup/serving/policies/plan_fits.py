"""How fast a device is, from steps that were measured: launches and speed such that the planner predicts them.

A step of masked tokens is the sum over its blocks of
    launch + max(operations / speed, weights / memory)
in which launch and speed are fitted by least squares, relative to what was measured and never negative. Which blocks
only wait for their weights depends on the speed, so the fit is repeated until it stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from takeup.errors import BadInput
from takeup.serving.policies.masks import Device, Network, costs_of
from takeup.serving.policies.plan import BlockCost, step_s

__all__ = ["fitted", "predicted_s", "with_pages"]

NUM_ROUNDS = 10
Floats = npt.NDArray[np.float64]


def fitted(network: Network, measured_s: Mapping[float, float], device: Device) -> Device:
    """The device, with launch and speed as steps say that were measured: their seconds by the share of the mask."""
    if len(measured_s) < 2 or min(measured_s.values()) <= 0:
        raise BadInput(f"measured steps are {dict(measured_s)}; give seconds above zero for two masks or more")
    seconds = np.array(list(measured_s.values()))
    work = np.array([_compute_s(network, share, replace(device, flop_per_s=1.0)) for share in measured_s])
    floors = np.array([_compute_s(network, share, replace(device, flop_per_s=1e30)) for share in measured_s])
    found = device
    for _ in range(NUM_ROUNDS):
        found = _refitted(work, floors, seconds, found)
    return found


def with_pages(blocks: Sequence[BlockCost], page_bytes: float, device: Device) -> list[BlockCost]:
    """The same blocks, of which each loads its part of a page of this size."""
    load_s = page_bytes / device.link_bytes_per_s
    every_s = sum(block.kv_load_s for block in blocks)
    return [replace(block, kv_load_s=load_s * block.kv_load_s / every_s) for block in blocks]


def predicted_s(network: Network, share: float, device: Device, page_bytes: float = 0.0) -> float:
    """A step with keys and values of the template, its next page loaded beside it; without bytes it is there."""
    blocks = with_pages(costs_of(network, [share], device), page_bytes, device)
    ahead_s = page_bytes / device.link_bytes_per_s
    return step_s(["kv"] * len(blocks), blocks, ahead_s)


def _compute_s(network: Network, share: float, device: Device) -> Floats:
    return np.array([block.kv_s for block in costs_of(network, [share], replace(device, launch_s=0.0))])


def _refitted(work: Floats, floors: Floats, seconds: Floats, device: Device) -> Device:
    """`work`: operations of each block (columns) at each mask (rows), `floors`: seconds for their weights."""
    is_floor = work / device.flop_per_s < floors
    known = np.where(is_floor, floors, 0.0).sum(axis=1)
    counted = np.where(is_floor, 0.0, work).sum(axis=1)
    unit = 1e-12
    system = np.column_stack([counted * unit, np.full(len(seconds), work.shape[1])]) / seconds[:, None]
    (per_tera_s, launch_s), _ = nnls(system, np.maximum(seconds - known, 0.0) / seconds)
    speed = 1 / (per_tera_s * unit) if per_tera_s > 0 else device.flop_per_s
    return replace(device, flop_per_s=float(speed), launch_s=float(launch_s))
