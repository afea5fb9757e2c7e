"""Fit the parameters of a device to measured steps, so that the planner predicts them.

A step of masked tokens is the sum over its blocks of
    launch + max(operations / speed, weights / memory)
with tokens in whole tiles. Launch and speed are fitted by least squares, relative to what was measured and never
negative. Which blocks are bound by weight reads depends on the speed, so the fit is iterated; of the common tile sizes
the best fit is taken. Steps with pages from the host then give the link bandwidth and the start-up time of an edit.

An edit starts and waits for its first page. Then each step overlaps with the prefetch of the next page, so n steps take
    start + page + (n - 1) max(page, computation) + computation
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.serving.editing.planner.cost_model import DeviceSpeed, Mask, NetworkShape, costs_of

NUM_ROUNDS, NUM_START_ROUNDS = 10, 4
TILES = (1, 64, 128)
CLEARLY = 1.1
"""A step that takes so many times longer than its computation waited for its page."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """Mean step time of an edit of `num_steps` steps; `page_bytes`: page size on the host, 0 if on the device."""

    mask: Mask
    step_s: float
    page_bytes: float = 0.0
    num_steps: float = math.inf


def fitted(
    network: NetworkShape, steps: Sequence[MeasuredStep], device: DeviceSpeed, tiles: Sequence[int] = TILES
) -> DeviceSpeed:
    """The device fitted to the steps. For a device without tiles, such as a CPU, `tiles` is one token."""
    here = [one for one in steps if not one.page_bytes]
    if len(here) < 2 or min(one.step_s for one in steps) <= 0:
        raise BadInput(f"measured steps are {list(steps)}; give seconds above zero for two masks or more without pages")
    tiled = [_fitted(network, here, replace(device, tile_tokens=tile, start_s=0.0)) for tile in tiles]
    found = min(tiled, key=lambda one: _misfit(network, here, one))
    there = [one for one in steps if one.page_bytes]
    return min(_started(network, here, there, found), key=lambda one: _misfit(network, steps, one))


def predicted_s(
    network: NetworkShape, mask: Mask, device: DeviceSpeed, page_bytes: float = 0.0, num_steps: float = math.inf
) -> float:
    """Predicted mean step time of an edit in format `kv`; pages of `page_bytes` are loaded from the host."""
    computed_s, page_s = float(_compute_s(network, mask, device).sum()), page_bytes / device.link_bytes_per_s
    return max(computed_s, page_s) + (min(computed_s, page_s) + device.start_s) / num_steps


def _fitted(network: NetworkShape, steps: Sequence[MeasuredStep], device: DeviceSpeed) -> DeviceSpeed:
    seconds = np.array([max(0.1 * one.step_s, one.step_s - device.start_s / one.num_steps) for one in steps])
    device = replace(device, launch_s=0.0)
    work = np.array([_compute_s(network, one.mask, replace(device, flop_per_s=1.0)) for one in steps])
    floors = np.array([_compute_s(network, one.mask, replace(device, flop_per_s=1e30)) for one in steps])
    for _ in range(NUM_ROUNDS):
        device = _refitted(work, floors, seconds, device)
    return device


def _misfit(network: NetworkShape, steps: Sequence[MeasuredStep], device: DeviceSpeed) -> float:
    predicted = [predicted_s(network, one.mask, device, one.page_bytes, one.num_steps) for one in steps]
    return sum((seconds / one.step_s - 1) ** 2 for seconds, one in zip(predicted, steps, strict=True))


def _started(
    network: NetworkShape, here: Sequence[MeasuredStep], there: Sequence[MeasuredStep], device: DeviceSpeed
) -> Iterator[DeviceSpeed]:
    """Candidate devices: link fitted without start-up time, and with the start-up time that fits each short edit."""
    linked = _linked(network, there, device)
    yield linked
    for one in there:
        found = linked
        for _ in range(NUM_START_ROUNDS if math.isfinite(one.num_steps) else 0):
            predicted = predicted_s(network, one.mask, found, one.page_bytes, one.num_steps)
            start_s = max(0.0, found.start_s + one.num_steps * (one.step_s - predicted))
            found = _linked(network, there, _fitted(network, here, replace(device, start_s=start_s)))
        yield found


def _linked(network: NetworkShape, steps: Sequence[MeasuredStep], device: DeviceSpeed) -> DeviceSpeed:
    """The device with the best-fitting link bandwidth: the present one, or that of a step clearly bound by its page."""
    links = [device]
    for one in steps:
        computed_s = predicted_s(network, one.mask, device)
        page_s = one.step_s - (computed_s + device.start_s) / one.num_steps
        if page_s > CLEARLY * computed_s:
            links.append(replace(device, link_bytes_per_s=one.page_bytes / page_s))
    return min(links, key=lambda one: _misfit(network, steps, one))


def _compute_s(network: NetworkShape, mask: Mask, device: DeviceSpeed) -> Floats:
    return np.array([block.kv_s for block in costs_of(network, [mask], device)])


def _refitted(work: Floats, floors: Floats, seconds: Floats, device: DeviceSpeed) -> DeviceSpeed:
    """One least-squares fit of speed and launch time.

    `work`: operations of each block (columns) at each mask (rows), `floors`: seconds to read their weights.
    """
    is_floor = work / device.flop_per_s < floors
    known = np.where(is_floor, floors, 0.0).sum(axis=1)
    counted = np.where(is_floor, 0.0, work).sum(axis=1)
    unit = 1e-12
    system = np.column_stack([counted * unit, np.full(len(seconds), work.shape[1])]) / seconds[:, None]
    (per_tera_s, launch_s), _ = nnls(system, np.maximum(seconds - known, 0.0) / seconds)
    speed = 1 / (per_tera_s * unit) if per_tera_s > 0 else device.flop_per_s
    return replace(device, flop_per_s=float(speed), launch_s=float(launch_s))
