"""Shares of the radio: the smallest groups by largest saving, and what is left over to whom it helps most."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.edge.energy import ABSENT, PrefixGroups
from takeup.edge.model import Reason
from takeup.edge.policies.plan import Plan, Site

__all__ = ["give_groups", "hand_out", "why_not"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WORTH_IT = 1e-12  # of the energy of an upload; a smaller reduction is rounding


def give_groups(site: Site, devices: Ints, limits_s: Floats) -> Plan:
    """Groups for the devices that save most, one device at a time. Limits are by device.

    Savings only fall while subcarriers are taken, so a group is looked for again only when it would be next.
    """
    plan, free = Plan(site), site.all_subcarriers
    savings_j, sizes, ranked = _wishes(site, devices, free, limits_s)
    while len(devices) and len(free) and savings_j[best := int(np.argmax(savings_j))] > 0:
        device, group = int(devices[best]), ranked[best, : sizes[best]].copy()
        if np.isin(group, free).all():
            plan.groups[device], plan.limits_s[device] = group.tolist(), float(limits_s[device])
            free = np.setdiff1d(free, group)
            savings_j[best] = -np.inf
        else:
            again = _wishes(site, devices[[best]], free, limits_s)
            savings_j[best], sizes[best] = again[0][0], again[1][0]
            ranked[best, : len(free)] = again[2][0]
    return plan


def _wishes(site: Site, devices: Ints, free: Ints, limits_s: Floats) -> tuple[Floats, Ints, Ints]:
    """What each device would save with its smallest group (-inf: it has none), and its size and ranking."""
    sizes, costs_j, ranked = site.smallest_groups(devices, free, limits_s[devices])
    return np.where(sizes > 0, site.worth_j[devices] - costs_j, -np.inf), sizes, ranked


def hand_out(plan: Plan) -> None:
    """Give every free subcarrier to the device whose upload it makes cheaper by most, while it helps at all."""
    free = plan.free()
    if not (len(free) and plan.groups):
        return
    costs_j = plan.uploads().energy_j
    devices = list(plan.groups)
    with_one_more_j = np.stack([_with_one_more(plan, device, free) for device in devices])
    while len(free):
        reductions_j = costs_j[:, None] - with_one_more_j
        row, column = np.unravel_index(int(np.argmax(reductions_j)), reductions_j.shape)
        if reductions_j[row, column] <= WORTH_IT * costs_j[row]:
            return
        costs_j[row] = with_one_more_j[row, column]
        plan.groups[devices[row]].append(int(free[column]))
        free = np.delete(free, column)
        with_one_more_j = np.delete(with_one_more_j, column, axis=1)
        with_one_more_j[row] = _with_one_more(plan, devices[row], free)


def _with_one_more(plan: Plan, device: int, free: Ints) -> Floats:
    """What the upload of a device would cost with each of the free subcarriers."""
    site = plan.site
    gains = np.full((len(free), len(plan.groups[device]) + 1), ABSENT)
    gains[:, :-1] = site.gains[device, plan.groups[device]]
    gains[:, -1] = site.gains[device, free]
    bits = np.full(len(free), site.instance.bits[device])
    table = PrefixGroups(-np.sort(-gains, axis=1), bits, site.instance.radio)
    return table.whole(np.full(len(free), plan.window_s(device))).energy_j


def why_not(site: Site, promising: Ints) -> npt.NDArray[np.int8]:
    """The usual reasons of those who do not offload: they would not save anything, or others save more."""
    reasons = np.full(site.instance.num_devices, np.int8(Reason.NO_SAVING))
    reasons[promising] = Reason.CROWDED_OUT
    return reasons
