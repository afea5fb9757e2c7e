"""Better groups for the same devices: subcarriers that move to another device, or change places."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.edge.energy import ABSENT, PrefixGroups
from takeup.edge.policies.plan import Plan

__all__ = ["exchange"]

Floats = npt.NDArray[np.float64]

WORTH_IT = 1e-9  # of all upload energy; a smaller gain is rounding


def exchange(plan: Plan) -> None:
    """Carry out the best move or swap of subcarriers between two devices, as long as one makes uploads cheaper."""
    if len(plan.groups) < 2:
        return
    tables = {device: _costs(plan, device) for device in plan.groups}
    total_j = sum(float(table[-1, -1]) for table in tables.values())
    while True:
        gain_j, taker, giver, taken, given = _best(plan, tables)
        if gain_j <= WORTH_IT * total_j:
            return
        plan.groups[giver].remove(taken)
        plan.groups[taker].append(taken)
        if given is not None:
            plan.groups[taker].remove(given)
            plan.groups[giver].append(given)
        tables |= {device: _costs(plan, device) for device in (taker, giver)}


def _costs(plan: Plan, device: int) -> Floats:
    """What the upload costs with one subcarrier less (rows, as in the group) and one more (columns, by number).

    The last row is for none less, the last column for none more; inf where the upload cannot be made in time.
    """
    site, group = plan.site, plan.groups[device]
    size, count = len(group), site.instance.num_subcarriers
    gains = np.empty((size + 1, count + 1, size + 1))
    gains[:, :, :size] = site.gains[device, group]
    gains[np.arange(size), :, np.arange(size)] = ABSENT
    gains[:, :count, size] = site.gains[device]
    gains[:, count, size] = ABSENT
    bits = np.full(gains.shape[:2], site.instance.bits[device])
    table = PrefixGroups(-np.sort(-gains, axis=-1), bits, site.instance.radio)
    return table.whole(np.full(gains.shape[:2], plan.window_s(device))).energy_j


def _best(plan: Plan, tables: dict[int, Floats]) -> tuple[float, int, int, int, int | None]:
    """The largest gain, who takes from whom, which subcarrier, and which one is given for it."""
    best: tuple[float, int, int, int, int | None] = (-np.inf, -1, -1, -1, None)
    for giver, gives in plan.groups.items():
        for taker, owns in plan.groups.items():
            if taker == giver:
                continue
            before_j = tables[giver][-1, -1] + tables[taker][-1, -1]
            # rows: what the giver loses; columns: what the taker gives for it, at the end nothing
            giver_j = tables[giver][: len(gives)][:, [*owns, -1]]
            taker_j = tables[taker][:, gives].T
            after_j = giver_j + taker_j
            row, column = divmod(int(np.argmin(after_j)), after_j.shape[1])
            gain_j = float(before_j - after_j[row, column])
            if gain_j > best[0]:
                best = (gain_j, taker, giver, gives[row], owns[column] if column < len(owns) else None)
    return best
