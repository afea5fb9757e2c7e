"""Radio allocation: smallest groups by largest saving, then left-over subcarriers where they save most."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats, Ints
from takeup.edge.energy import ABSENT, oracle
from takeup.edge.model import Reason
from takeup.edge.policies.plan import PartialPlan, SiteQuantities
from takeup.edge.policies.runs import longer_runs

WORTH_IT = 1e-12  # of the energy of an upload; a smaller reduction is rounding


def assign_groups(site: SiteQuantities, devices: Ints, limits_s: Floats) -> PartialPlan:
    """Groups for the devices that save most, one device at a time. Limits are by device.

    Savings only fall while subcarriers are taken, so a group is looked for again only when it would be next.
    """
    plan, free = PartialPlan(site), site.all_subcarriers
    savings_j, sizes, ranked = _smallest_groups(site, devices, free, limits_s)
    while len(devices) and len(free) and savings_j[best := int(np.argmax(savings_j))] > 0:
        device, group = int(devices[best]), ranked[best, : sizes[best]].copy()
        if np.isin(group, free).all():
            plan.groups[device], plan.limits_s[device] = group.tolist(), float(limits_s[device])
            free = np.setdiff1d(free, group)
            savings_j[best] = -np.inf
        else:
            again = _smallest_groups(site, devices[[best]], free, limits_s)
            savings_j[best], sizes[best] = again[0][0], again[1][0]
            ranked[best, : len(free)] = again[2][0]
    return plan


def _smallest_groups(site: SiteQuantities, devices: Ints, free: Ints, limits_s: Floats) -> tuple[Floats, Ints, Ints]:
    """What each device would save with its smallest group (-inf: it has none), and its size and ranking."""
    sizes, costs_j, ranked = site.smallest_groups(devices, free, limits_s[devices])
    return np.where(sizes > 0, site.worth_j[devices] - costs_j, -np.inf), sizes, ranked


def assign_free_subcarriers(plan: PartialPlan) -> None:
    """Give every free subcarrier to the device whose upload it makes cheaper by most, while it helps at all."""
    free = plan.free()
    if not (len(free) and plan.groups):
        return
    if plan.site.has_own_groups:
        _assign_in_steps(plan)
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


def _with_one_more(plan: PartialPlan, device: int, free: Ints) -> Floats:
    """What the upload of a device would cost with each of the free subcarriers."""
    site = plan.site
    gains = np.full((len(free), len(plan.groups[device]) + 1), ABSENT)
    gains[:, :-1] = site.gains[device, plan.groups[device]]
    gains[:, -1] = site.gains[device, free]
    bits = np.full(len(free), site.instance.bits[device])
    table = oracle(-np.sort(-gains, axis=1), bits, site.instance.radio)
    return table.whole(np.full(len(free), plan.window_s(device))).energy_j


class _Step(NamedTuple):
    """The best way for a device to have a larger group: what it costs less, and which subcarriers are added."""

    reduction_j: float
    added: frozenset[int]


def _assign_in_steps(plan: PartialPlan) -> None:
    """The same where a group must be a run, or of certain sizes: devices grow to their next size, the best first."""
    steps = {device: _next_step(plan, device) for device in plan.groups}
    while steps[best := max(steps, key=lambda device: steps[device].reduction_j)].added:
        added = steps[best].added
        plan.groups[best] += sorted(added)
        for device in plan.groups:
            if device == best or added & steps[device].added:
                steps[device] = _next_step(plan, device)


def _next_step(plan: PartialPlan, device: int) -> _Step:
    site, group, free = plan.site, plan.groups[device], plan.free()
    sizes = [size for size in site.allowed_sizes(len(group) + len(free)) if size > len(group)]
    if not sizes:
        return _Step(0.0, frozenset())
    num_more = sizes[0] - len(group)
    if site.instance.contiguous:
        choices = list(longer_runs(group, free, num_more))
    else:
        choices = [free[np.argsort(-site.gains[device, free], kind="stable")][:num_more].tolist()]
    trials = [group, *(group + added for added in choices)]
    limits_s = np.full((len(trials), 1), plan.window_s(device))
    costs_j = site.table(np.full(len(trials), device), trials).whole(limits_s).energy_j[:, 0]
    best = int(np.argmin(costs_j))
    reduction_j = float(costs_j[0] - costs_j[best])
    helps = reduction_j > WORTH_IT * costs_j[0]
    return _Step(reduction_j, frozenset(choices[best - 1])) if helps else _Step(0.0, frozenset())


def refusal_reasons(site: SiteQuantities, promising: Ints) -> npt.NDArray[np.int8]:
    """The usual reasons of devices that do not offload: no saving, or others save more."""
    reasons = np.full(site.instance.num_devices, np.int8(Reason.NO_SAVING))
    reasons[promising] = Reason.CROWDED_OUT
    return reasons
