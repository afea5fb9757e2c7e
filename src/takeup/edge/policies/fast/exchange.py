"""Local search for the same devices: move or swap subcarriers, swap neighbours in the order on the cores."""

from __future__ import annotations

from takeup.core.compiled import bare
from takeup.edge.policies.fast.oracle import upload_cost
from takeup.edge.policies.fast.plans import copy, insert, price, reschedule, worth
from takeup.edge.policies.fast.shapes import NO_INDEX, CellArrays, PlanArrays, SearchScratch

LEAST_EXCHANGE_GAIN = 1e-9  # of all there is to gain; a smaller gain is rounding


@bare
def exchange_subcarriers(cell: CellArrays, plans: PlanArrays, room: SearchScratch, plan: int) -> None:
    """Carry out the best move or swap of subcarriers, as long as one makes uploads cheaper.

    `less_j[x, y]` is what the owner of x pays with y instead of x, `less_j[x, -1]` without x; `more_j[seat, x]` is
    what a seat pays with x in addition. An unassigned subcarrier costs nothing.
    """
    for seat in range(plans.num_seated[plan]):
        _price_changes(cell, plans, room, plan, seat)
    while True:
        gain_j, giver, taker, taken, given = _best_change(plans, room, plan)
        if gain_j <= 0.0:
            return
        _move_subcarrier(cell, plans, plan, giver, taker, taken)
        if given != NO_INDEX:
            _move_subcarrier(cell, plans, plan, taker, giver, given)
        for seat in (giver, taker):
            if seat != NO_INDEX:
                price(cell, plans, plan, seat)
                _price_changes(cell, plans, room, plan, seat)


@bare
def _price_changes(cell: CellArrays, plans: PlanArrays, room: SearchScratch, plan: int, seat: int) -> None:
    """Fill the rows of a seat in `less_j` and `more_j`."""
    each = plans.seats[plan, seat]
    num_subcarriers = plans.owner.shape[1]
    window_s = each.start_s - cell.devices[each.device].release_s
    plans.work[0] += (each.size + 1) * num_subcarriers
    for leaves in range(each.size + 1):
        for joins in range(num_subcarriers + (leaves < each.size)):
            kept = 0
            for index in range(each.size):
                if index != leaves:
                    plans.group[kept] = plans.groups[plan, seat, index]
                    kept += 1
            if joins < num_subcarriers:
                if plans.owner[plan, joins] == each.device:
                    continue
                insert(cell, each.device, plans.group, kept, joins)
                kept += 1
            cost_j = upload_cost(cell, each.device, plans.group, kept, window_s)
            if leaves < each.size:
                room.less_j[plans.groups[plan, seat, leaves], joins] = cost_j
            else:
                room.more_j[seat, joins] = cost_j


@bare
def _best_change(plans: PlanArrays, room: SearchScratch, plan: int) -> tuple[float, int, int, int, int]:
    """The largest gain, the giver, the taker, the subcarrier, and the one given in return (-1: none)."""
    num_subcarriers = plans.owner.shape[1]
    total_j = 0.0
    for seat in range(plans.num_seated[plan]):
        total_j += plans.seats[plan, seat].cost_j
    best_j, best = LEAST_EXCHANGE_GAIN * total_j, (NO_INDEX, NO_INDEX, NO_INDEX, NO_INDEX)
    for taken in range(num_subcarriers):
        giver, giver_j, without_j = NO_INDEX, 0.0, 0.0
        if plans.owner[plan, taken] != NO_INDEX:
            giver = plans.seat_of[plan, plans.owner[plan, taken]]
            giver_j, without_j = plans.seats[plan, giver].cost_j, room.less_j[taken, num_subcarriers]
        for taker in range(plans.num_seated[plan]):
            gain_j = giver_j + plans.seats[plan, taker].cost_j - without_j - room.more_j[taker, taken]
            if taker != giver and gain_j > best_j:
                best_j, best = gain_j, (giver, taker, taken, NO_INDEX)
        for given in range(num_subcarriers):
            if plans.owner[plan, given] in (NO_INDEX, plans.owner[plan, taken]):
                continue
            taker = plans.seat_of[plan, plans.owner[plan, given]]
            instead_j = 0.0 if giver == NO_INDEX else room.less_j[taken, given]
            gain_j = giver_j + plans.seats[plan, taker].cost_j - instead_j - room.less_j[given, taken]
            if gain_j > best_j:
                best_j, best = gain_j, (giver, taker, taken, given)
    return (best_j if best[2] != NO_INDEX else 0.0), best[0], best[1], best[2], best[3]


@bare
def _move_subcarrier(cell: CellArrays, plans: PlanArrays, plan: int, giver: int, taker: int, subcarrier: int) -> None:
    """Move a subcarrier from one group to another; -1 as giver or taker means unassigned."""
    if giver != NO_INDEX:
        kept = 0
        for index in range(plans.seats[plan, giver].size):
            if plans.groups[plan, giver, index] != subcarrier:
                plans.groups[plan, giver, kept] = plans.groups[plan, giver, index]
                kept += 1
        plans.seats[plan, giver].size = kept
    plans.owner[plan, subcarrier] = NO_INDEX
    if taker != NO_INDEX:
        each = plans.seats[plan, taker]
        insert(cell, each.device, plans.groups[plan, taker], each.size, subcarrier)
        each.size += 1
        plans.owner[plan, subcarrier] = each.device


@bare
def swap_core_order(cell: CellArrays, plans: PlanArrays, plan: int, trial: int) -> bool:
    """Swap neighbours on the cores while that makes the plan better; whether it did. `trial` is a scratch plan."""
    now_j, did, again = worth(cell, plans, plan), False, True
    while again:
        again = False
        for turn in range(plans.num_seated[plan] - 1):
            copy(plans, plan, trial)
            first, second = plans.seats[trial, turn].order, plans.seats[trial, turn + 1].order
            plans.seats[trial, turn].order, plans.seats[trial, turn + 1].order = second, first
            if reschedule(cell, plans, trial) and worth(cell, plans, trial) > now_j * (1.0 + LEAST_EXCHANGE_GAIN):
                copy(plans, trial, plan)
                now_j = worth(cell, plans, plan)
                did = again = True
    return did
