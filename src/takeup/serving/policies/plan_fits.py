"""How fast a device is, from steps that were measured: such that the planner predicts them.

A step of masked tokens is the sum over its blocks of
    launch + max(operations / speed, weights / memory)
with tokens in whole tiles. Launch and speed are fitted by least squares, relative to what was measured and never
negative. Which blocks only wait for their weights depends on the speed, so the fit is repeated until it stays; of the
usual tiles the one that fits best is taken. Steps whose page comes from the host beside them then say how much it holds
up the computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from takeup.errors import BadInput
from takeup.serving.policies.masks import Device, Mask, Network, costs_of
from takeup.serving.policies.plan import BlockCost, step_s

__all__ = ["MeasuredStep", "fitted", "predicted_s", "with_pages"]

NUM_ROUNDS = 10
TILES = (1, 64, 128)
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step of an edit with this mask; bytes of the page that came from the host meanwhile, none if it was there."""

    mask: Mask
    step_s: float
    page_bytes: float = 0.0


def fitted(network: Network, steps: Sequence[MeasuredStep], device: Device) -> Device:
    """The device as the steps say. Pages hold nothing up if none of them brought one."""
    here = [one for one in steps if not one.page_bytes]
    if len(here) < 2 or min(one.step_s for one in steps) <= 0:
        raise BadInput(f"measured steps are {list(steps)}; give seconds above zero for two masks or more without pages")
    tiled = [_fitted(network, here, replace(device, tile_tokens=tile)) for tile in TILES]
    found = min(tiled, key=lambda one: _misfit(network, here, one))
    return replace(found, held_s_per_byte=_held_s_per_byte(network, steps, found))


def with_pages(blocks: Sequence[BlockCost], page_bytes: float, device: Device) -> list[BlockCost]:
    """The same blocks, of which each loads its part of a page of this size, and is held up by it."""
    load_s, held_s = device.page_s(page_bytes), page_bytes * device.held_s_per_byte
    every_s = sum(block.kv_load_s for block in blocks)
    shares = [block.kv_load_s / every_s for block in blocks]
    return [
        replace(block, kv_s=block.kv_s + held_s * share, kv_load_s=load_s * share)
        for block, share in zip(blocks, shares, strict=True)
    ]


def predicted_s(network: Network, mask: Mask, device: Device, page_bytes: float = 0.0) -> float:
    """A step with keys and values of the template, its next page loaded beside it; without bytes it is there."""
    blocks = with_pages(costs_of(network, [mask], device), page_bytes, device)
    return step_s(["kv"] * len(blocks), blocks, device.page_s(page_bytes))


def _fitted(network: Network, steps: Sequence[MeasuredStep], device: Device) -> Device:
    seconds = np.array([one.step_s for one in steps])
    work = np.array([_compute_s(network, one.mask, replace(device, flop_per_s=1.0)) for one in steps])
    floors = np.array([_compute_s(network, one.mask, replace(device, flop_per_s=1e30)) for one in steps])
    for _ in range(NUM_ROUNDS):
        device = _refitted(work, floors, seconds, device)
    return device


def _misfit(network: Network, steps: Sequence[MeasuredStep], device: Device) -> float:
    return sum((predicted_s(network, one.mask, device) / one.step_s - 1) ** 2 for one in steps)


def _held_s_per_byte(network: Network, steps: Sequence[MeasuredStep], device: Device) -> float:
    """Of steps that computed for longer than their page took: the mean of what they took more."""
    held = [
        (one.step_s - predicted_s(network, one.mask, device)) / one.page_bytes
        for one in steps
        if one.page_bytes and one.step_s > device.page_s(one.page_bytes)
    ]
    return max(0.0, float(np.mean(held))) if held else 0.0


def _compute_s(network: Network, mask: Mask, device: Device) -> Floats:
    return np.array([block.kv_s for block in costs_of(network, [mask], replace(device, launch_s=0.0))])


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
