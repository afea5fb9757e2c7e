"""Convert a profile to the arrays of the kernels: nanoseconds, wires between ranks, and the stages of every rank."""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.training.model.pipeline import Profile
from takeup.training.timing.fast.traffic import NO_WIRE, PipelineArrays

SECOND = 10**9  # in nanoseconds, the unit of the kernels


def pipeline_arrays(profile: Profile, factors: Floats | None = None) -> PipelineArrays:
    """The profile as arrays; `factors[kind, stage, microbatch]` scale single operations."""
    lasts = _lasts(profile, factors)
    forward, backward, num_channels = _wires(profile)
    sizes = np.asarray(profile.sizes or (1.0,) * profile.num_microbatches)
    service_s = np.array([link.service_s for link in profile.links]).reshape(-1, 1) * sizes
    latency_s = np.array([link.latency_s + profile.hop_s for link in profile.links])
    stage_list = np.array([stage for stages in profile.chunks for stage in stages], np.int64)
    first = np.cumsum([0, *map(len, profile.chunks)]).astype(np.int64)
    by_stage = lasts[:3].sum(axis=(0, 2))
    rank_of = np.array(profile.placement, np.int64)
    work = np.bincount(rank_of, by_stage, profile.num_ranks).astype(np.int64)
    tails = _nanoseconds(np.array([stage.tail_s for stage in profile.stages]))
    max_sends = min(profile.max_sends or 0, 3 * profile.num_stages * profile.num_microbatches)
    return PipelineArrays(
        lasts,
        _nanoseconds(service_s),
        _nanoseconds(latency_s),
        forward,
        backward,
        num_channels,
        rank_of,
        stage_list,
        first,
        tails,
        work,
        max_sends,
    )


def _lasts(profile: Profile, factors: Floats | None) -> Ints:
    """Durations of F, I, W and B by stage and micro-batch; without a split backward, all of it is in I."""
    times = [(each.forward_s, each.backward_s, each.weight_s) for each in profile.stages]
    forward, backward, weight = np.array(times).T
    if not profile.can_split:
        backward, weight = backward + weight, np.zeros_like(weight)
    sizes = np.asarray(profile.sizes or (1.0,) * profile.num_microbatches)
    seconds = np.array([forward, backward, weight, backward + weight])[:, :, None] * sizes + profile.host_s
    if not profile.can_split:
        seconds[2] = 0.0
    if factors is not None:
        seconds[:3] *= factors
        seconds[3] = seconds[1] + seconds[2] - profile.host_s * profile.can_split
    return _nanoseconds(seconds)


def _wires(profile: Profile) -> tuple[Ints, Ints, Ints]:
    """One wire from every rank to each rank it sends to, shared by its stages; or one for both directions."""
    numbers: dict[tuple[int, int], int] = {}
    channels: dict[int, int] = {}
    forward: list[int] = []
    backward: list[int] = []
    for link, here, after in zip(profile.links, profile.placement, profile.placement[1:], strict=False):
        both = (min(here, after), max(here, after)) if link.half_duplex else None
        for ends, found in ((both or (here, after), forward), (both or (after, here), backward)):
            wire = NO_WIRE if here == after else numbers.setdefault(ends, len(numbers))
            found.append(wire)
            channels.setdefault(wire, link.num_channels)
    counts = [channels[wire] for wire in range(len(numbers))]
    return np.array(forward, np.int64), np.array(backward, np.int64), np.array(counts, np.int64)


def _nanoseconds(seconds: Floats) -> Ints:
    return np.rint(seconds * SECOND).astype(np.int64)
