"""All groups of a few subcarriers, and what uploads over them cost."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.edge.energy import ABSENT, ModulatedGroups, PrefixGroups
from takeup.edge.model import Instance
from takeup.edge.policies.bounds.fast.groups import GroupCosts

MOST_LISTED = 10  # subcarriers; there are two to this power groups to a device
MOST_ENTRIES = 2_000_000  # of device, slot and group


def can_list(instance: Instance, num_slots: int) -> bool:
    """Whether there are few enough groups to look at all of them, for every device and slot."""
    if not 0 < instance.num_subcarriers <= MOST_LISTED or instance.num_devices == 0:
        return False
    num_times = max(1, (len(instance.radio.modulations) * instance.num_subcarriers) ** 2)
    return instance.num_devices * max(num_slots, num_times) << instance.num_subcarriers <= MOST_ENTRIES


def group_of(mask: int) -> list[int]:
    """The subcarriers of a mask."""
    return [each for each in range(mask.bit_length()) if mask >> each & 1]


def list_groups(instance: Instance, most_size: int | None = None) -> GroupCosts:
    """The tables for every device and mask, or only for masks with at most `most_size` subcarriers."""
    if most_size is None:
        masks, width = list(range(1 << instance.num_subcarriers)), instance.num_subcarriers
    else:
        masks, width = _small_masks(instance, most_size), most_size
    gains = instance.gain_to_noise
    order = np.argsort(-gains, axis=1, kind="stable")
    ranked = np.take_along_axis(gains, order, axis=1)
    padded = np.column_stack([gains, np.full(len(gains), ABSENT)])
    inside = -np.sort(-padded[:, _members(masks, width, instance.num_subcarriers)], axis=-1)
    allowed = np.array([_is_allowed(instance, mask) for mask in masks])
    shortest_s, cheapest_s, least_j, step_s, step_j = _tables(instance, inside)
    return GroupCosts(
        masks=np.array(masks),
        ranked=np.left_shift(1, order),
        logs=np.log2(ranked),
        inverse=1 / ranked,
        bits_per_hz=instance.bits / instance.radio.bandwidth_hz,
        circuit_power_w=instance.radio.circuit_power_w,
        shortest_s=np.where(allowed, shortest_s, np.inf),
        cheapest_s=np.ascontiguousarray(cheapest_s),  # another layout would be compiled once more
        least_j=np.ascontiguousarray(least_j),
        step_s=step_s,
        step_j=step_j,
    )


def _small_masks(instance: Instance, most_size: int) -> list[int]:
    subcarriers = range(instance.num_subcarriers)
    return [
        sum(1 << each for each in group)
        for size in range(1, most_size + 1)
        for group in combinations(subcarriers, size)
    ]


def _members(masks: list[int], width: int, absent: int) -> Ints:
    """The subcarriers of every mask in a row, filled up with a number that stands for none."""
    rows = [group_of(mask) for mask in masks]
    return np.array([row + [absent] * (width - len(row)) for row in rows])


def _is_allowed(instance: Instance, mask: int) -> bool:
    """Whether a device may have the group: of the sizes, and neighbours, where the instance asks for it."""
    lowest = mask & -mask
    is_run = (mask + lowest) & mask == 0
    is_of_size = not instance.group_sizes or mask.bit_count() in instance.group_sizes
    return mask > 0 and is_of_size and (is_run or not instance.contiguous)


def _tables(instance: Instance, inside: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Shortest, cheapest, its energy, and the steps, for gains by device and mask from the best on."""
    bits = np.broadcast_to(instance.bits[:, None], inside.shape[:2])
    forever_s = np.full(inside.shape[:2], np.inf)
    if not instance.radio.modulations:
        plain = PrefixGroups(inside, bits, instance.radio)
        cheapest_s, none = plain.cheapest_s[..., -1], np.zeros((*inside.shape[:2], 0))
        least_j = plain.whole(np.where(np.isfinite(cheapest_s), cheapest_s, 0.0)).energy_j
        return plain.shortest_s[..., -1], cheapest_s, least_j, none, none
    modulated = ModulatedGroups(inside, bits, instance.radio)
    times_s = np.sort(_every_time(instance, inside), axis=-1)
    energies_j = modulated.whole(times_s.transpose(2, 0, 1)).energy_j.transpose(1, 2, 0)
    uploads = modulated.whole(forever_s)
    return modulated.shortest_s[..., -1], uploads.time_s, uploads.energy_j, times_s, np.ascontiguousarray(energies_j)


def _every_time(instance: Instance, inside: Floats) -> Floats:
    """How long uploads may take: one time for each modulation and number of subcarriers in use."""
    rates = np.array([each.bits_per_hz_s for each in instance.radio.modulations])
    counts = np.arange(1, inside.shape[-1] + 1)
    per_bit_s = 1 / (instance.radio.bandwidth_hz * np.unique(rates[:, None] * counts))
    return np.broadcast_to(instance.bits[:, None, None] * per_bit_s, (*inside.shape[:2], len(per_bit_s)))
