"""A bound for any number of devices, and what one more subcarrier or core is worth by it.

How it works. The easier problem of `choices` is solved, in fractions, for the devices that could add most. Its dual
values are prices. At these prices everybody is asked what it could gain; for those who were left out a guess that is
too good will do. Prices and gains together exceed what any allocation is worth, whatever the prices are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from takeup.core.native_output import native_output_to_stderr
from takeup.edge.energy import PrefixGroups, oracle
from takeup.edge.model import Instance, Prices
from takeup.edge.policies.bounds.choices import Choices, choices_of, rows_of

__all__ = ["MOST_PRICED", "Priced", "price", "reach"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_PRICED = 12_000  # choices in the program
CHUNK = 50_000  # devices whose reach is computed at once


class Priced(NamedTuple):
    """A bound, and the worth of one more subcarrier and one more core by it."""

    bound_j: float
    prices: Prices


def price(instance: Instance) -> Priced:
    """The bound of the priced problem; the worth of a resource is how much the bound rises with one more of it."""
    reach_j = reach(instance)
    order = np.argsort(-reach_j, kind="stable")
    order = order[: int((reach_j > 0).sum())]
    most = max(1, MOST_PRICED // instance.num_subcarriers)
    choices = choices_of(instance, np.sort(order[:most]))
    left_out_j = reach_j[order[most:]]
    bound_j = _bound(instance, choices, left_out_j, 0)
    more_radio_j = _bound(instance, choices, left_out_j, 1)
    more_cores_j = _bound(replace(instance, num_cores=instance.num_cores + 1), choices, left_out_j, 0)
    prices = Prices(max(0.0, more_radio_j - bound_j), max(0.0, more_cores_j - bound_j))
    return Priced(bound_j, prices)


def _bound(instance: Instance, choices: Choices, left_out_j: Floats, extra_subcarriers: int) -> float:
    """The value of the program, and what the others could gain at the price of a single subcarrier."""
    if len(choices.device) == 0:
        return float(left_out_j.sum())
    rows, kinds = rows_of(instance, choices)
    room = np.where(kinds == 1, 1 + extra_subcarriers / instance.num_subcarriers, 1.0)
    scale_j = float(choices.value_j.max())
    with native_output_to_stderr():
        found = linprog(-choices.value_j / scale_j, A_ub=rows, b_ub=room, method="highs")
    one_j = float(-found.ineqlin.marginals[kinds == 1].sum()) * scale_j / instance.num_subcarriers
    return -float(found.fun) * scale_j + float(np.maximum(0.0, left_out_j - one_j).sum())


def reach(instance: Instance) -> Floats:
    """More than any device can add, in joules: as if it had all bandwidth at its best gain, until its deadline.

    Not above zero for devices that cannot save anything.
    """
    parts = [
        _reach(instance, np.arange(begin, min(begin + CHUNK, instance.num_devices)))
        for begin in range(0, instance.num_devices, CHUNK)
    ]
    return np.concatenate([np.zeros(0), *parts])


def _reach(instance: Instance, devices: Ints) -> Floats:
    gains, count = instance.gains[devices], instance.num_subcarriers
    radio, bits = instance.radio, instance.bits[devices]
    windows_s = (instance.deadlines_s - instance.run_s - instance.releases_s)[devices]
    best = gains.max(axis=1, keepdims=True) / (radio.noise_w_per_hz * radio.bandwidth_hz)
    if radio.modulations:
        costs_j = oracle(np.repeat(best, count, axis=1), bits, radio).whole(windows_s).energy_j
    else:
        wide = replace(radio, bandwidth_hz=radio.bandwidth_hz * count)
        costs_j = PrefixGroups(best / count, bits, wide).whole(windows_s).energy_j
    reach_j: Floats = (instance.worth_j)[devices] - costs_j
    return reach_j
