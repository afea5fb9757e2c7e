"""A relaxation: devices choose how many subcarriers, not which, and CPU capacity is checked over time spans only.

How it works. A device that offloads with k subcarriers saves at most what its k best ones would save if the CPU waited
until its deadline allows no more. Between a moment r and a deadline d no more than m (d - r) can be run on m cores,
among the tasks that cannot be uploaded before r and are due by d. Every real allocation keeps these rules, so the best
choice is worth at least as much as any of them.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, vstack

from takeup.core.arrays import Floats, Ints
from takeup.edge.energy import oracle
from takeup.edge.model import Instance

MOMENTS = (0.0, 0.25, 0.5, 0.75)  # quantiles of the earliest ends of uploads
MOST_DEADLINES = 60  # in the rows about CPU time


class SizeChoices(NamedTuple):
    """Devices with a number of subcarriers each: what they add at most, and when they are uploaded at the earliest."""

    device: Ints
    size: Ints
    value_j: Floats
    uploaded_s: Floats


class ChoiceConstraints(NamedTuple):
    """Rows whose right side is one: first one for each device, then one about subcarriers, then those about CPU time.

    `spans_s` has the moment and the deadline of each row about CPU time.
    """

    rows: csr_array
    num_devices: int
    spans_s: Floats


def size_choices(instance: Instance, devices: Ints) -> SizeChoices:
    """All choices of these devices that save anything."""
    ranked = -np.sort(-instance.gain_to_noise[devices], axis=1)
    table = oracle(ranked, instance.bits[devices], instance.radio)
    windows_s = (instance.deadlines_s - instance.run_s - instance.releases_s)[devices]
    values_j = instance.worth_j[devices, None] - table.prefixes(windows_s).energy_j
    rows, columns = np.nonzero((values_j > 0) & _is_allowed(instance))
    uploaded_s = instance.releases_s[devices[rows]] + table.shortest_s[rows, columns]
    return SizeChoices(devices[rows], columns + 1, values_j[rows, columns], uploaded_s)


def _is_allowed(instance: Instance) -> npt.NDArray[np.bool_]:
    sizes = np.arange(1, instance.num_subcarriers + 1)
    return np.isin(sizes, instance.group_sizes) if instance.group_sizes else np.ones(len(sizes), np.bool_)


def choice_constraints(instance: Instance, choices: SizeChoices, moments_s: Floats) -> ChoiceConstraints:
    """The constraints on all choices together; CPU time is constrained from each of the moments on."""
    count = len(choices.device)
    devices, places = np.unique(choices.device, return_inverse=True)
    once = csr_array((np.ones(count), (places, np.arange(count))), shape=(len(devices), count))
    radio = csr_array((choices.size / instance.num_subcarriers)[None, :])
    cpu, spans_s = _cpu_rows(instance, choices, moments_s)
    return ChoiceConstraints(vstack([once, radio, csr_array(cpu)], format="csr"), len(devices), spans_s)


def quantile_moments(choices: SizeChoices) -> Floats:
    """Some of the earliest ends of uploads: what is run later is run after them."""
    return np.unique(np.quantile(choices.uploaded_s, MOMENTS, method="lower"))


def _cpu_rows(instance: Instance, choices: SizeChoices, moments_s: Floats) -> tuple[Floats, Floats]:
    """For every moment and deadline, the share of the time between them that each choice takes; and the two."""
    deadlines_s = instance.deadlines_s[choices.device]
    spans_s = np.array(list(product(moments_s.tolist(), _spread(np.unique(deadlines_s)).tolist())))
    spans_s = spans_s[spans_s[:, 1] > spans_s[:, 0]].reshape(-1, 2)
    begin_s, due_s = spans_s[:, :1], spans_s[:, 1:]
    inside = (choices.uploaded_s >= begin_s) & (deadlines_s <= due_s)
    room_s = instance.num_cores * (due_s - begin_s)
    shares = np.where(inside, instance.run_s[choices.device] / room_s, 0.0)
    says_something = shares.sum(axis=1) > 1.0  # otherwise all of them together keep it
    return shares[says_something], spans_s[says_something]


def _spread(moments_s: Floats) -> Floats:
    """At most `MOST_DEADLINES` of the moments, evenly spaced, including the last."""
    step = -(-len(moments_s) // MOST_DEADLINES)
    return moments_s[::-1][::step]
