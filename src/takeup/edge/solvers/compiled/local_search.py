"""Local search: better groups and core orders for the same devices, then better sets of devices."""

import numpy as np

from takeup.core.compiled import bare
from takeup.edge.solvers.compiled.arrays import (
    NO_INDEX,
    CellArrays,
    KernelState,
    PlanArrays,
    SearchEffort,
    SearchScratch,
)
from takeup.edge.solvers.compiled.greedy import SAVING, assign_free_subcarriers, gain_of, grow, smallest_group
from takeup.edge.solvers.compiled.plans import (
    add,
    clear,
    copy,
    insert,
    price,
    remove,
    reschedule,
    try_starts,
    upload_cost,
    worth,
)

# Local search for the same devices: move or swap subcarriers, swap neighbours in the order on the cores ---------------

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
        for place in range(plans.num_seated[plan] - 1):
            copy(plans, plan, trial)
            first, second = plans.seats[trial, place].order, plans.seats[trial, place + 1].order
            plans.seats[trial, place].order, plans.seats[trial, place + 1].order = second, first
            if reschedule(cell, plans, trial) and worth(cell, plans, trial) > now_j * (1.0 + LEAST_EXCHANGE_GAIN):
                copy(plans, trial, plan)
                now_j = worth(cell, plans, plan)
                did = again = True
    return did


# Local search for better sets of devices: remove up to two, add others, then add every device that still fits ---------
#
# How it works. Neighbours are made from the *core*, a plan with smallest groups. The *base* is the core without the
# removed devices. One device more makes the *second* plan of it, two make the *trial*, which then grows greedily. A
# device is added with its smallest group of free subcarriers, or all devices are regrouped. Left-over subcarriers are
# assigned on a copy, the *full* plan; if that is nearly as good as the *best* so far, its subcarriers are exchanged.

NEAR = 0.995  # of the best worth; a plan below will not be the best by an exchange
WORTH_IT = 1e-9  # of the worth; a smaller improvement is rounding
MIX, MIX_BITS = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)


@bare
def search(board: KernelState, best_j: float, effort: SearchEffort) -> float:
    """Take the first better neighbour of the core until there is none or the work limit is hit; the best worth.

    First at most one device is removed and one added by choice; then up to two are removed, and up to two added.
    """
    cell, plans, room, roles = board
    num_ranked = min(effort.most_searched, cell.ranking.shape[1])
    is_deep, first, second = False, NO_INDEX, NO_INDEX
    while num_ranked > 0 and first < plans.num_seated[roles.core] and plans.work[0] < effort.most_work:
        _remove_devices(board, first, second)
        found_j, num_joined, num_regrouped = -np.inf, 0, 0
        for rank in range(num_ranked):
            device = cell.ranking[SAVING, rank]
            if num_joined == effort.most_tried or found_j > best_j or plans.work[0] >= effort.most_work:
                break
            if plans.seat_of[roles.core, device] != NO_INDEX or plans.num_seated[roles.base] == plans.seats.shape[1]:
                continue
            for regroups in (False, True):
                if found_j > best_j or (regroups and num_regrouped == effort.most_tried):
                    continue
                num_regrouped += regroups
                if not _add_device(cell, plans, room, roles.base, roles.second, device, regroups):
                    continue
                num_joined += not regroups
                copy(plans, roles.second, roles.trial)
                found_j = evaluate_plan(board, roles.trial, best_j, num_ranked)
                for next_rank in range(rank + 1, min(num_ranked, rank + effort.most_tried) if is_deep else rank):
                    other = cell.ranking[SAVING, next_rank]
                    if (
                        plans.seat_of[roles.core, other] != NO_INDEX
                        or plans.num_seated[roles.second] == plans.seats.shape[1]
                    ):
                        continue
                    for regroups_too in (False, True):
                        if found_j <= best_j and _add_device(
                            cell, plans, room, roles.second, roles.trial, other, regroups_too
                        ):
                            found_j = evaluate_plan(board, roles.trial, best_j, num_ranked)
        if found_j > best_j:
            copy(plans, roles.trial, roles.core)
            copy(plans, roles.full, roles.best)
            best_j, is_deep, first, second = found_j, False, NO_INDEX, NO_INDEX
        elif is_deep:
            second += 1
            if second == first:
                first, second = first + 1, NO_INDEX
        else:
            first = second = first + 1
            if first == plans.num_seated[roles.core]:
                is_deep, first, second = True, 0, NO_INDEX
    _improve_order(board)
    return worth(cell, plans, roles.best)


@bare
def _improve_order(board: KernelState) -> None:
    """Improve the order on the cores in the best plan, then the groups, until neither helps."""
    cell, plans, room, roles = board
    while swap_core_order(cell, plans, roles.best, roles.trial):
        exchange_subcarriers(cell, plans, room, roles.best)


@bare
def evaluate_plan(board: KernelState, plan: int, best_j: float, most_asked: int) -> float:
    """Grow a plan and fill its *full* plan; the worth of the latter, or -inf if it is not better or not new."""
    cell, plans, room, roles = board
    if not _is_new(plans, room, plan):
        return -np.inf
    grow(cell, plans, room, plan, SAVING, most_asked)
    copy(plans, plan, roles.full)
    assign_free_subcarriers(cell, plans, roles.full)
    if worth(cell, plans, roles.full) < best_j * NEAR:
        return -np.inf
    exchange_subcarriers(cell, plans, room, roles.full)
    found_j = worth(cell, plans, roles.full)
    return found_j if found_j > best_j * (1.0 + WORTH_IT) else -np.inf


@bare
def _is_new(plans: PlanArrays, room: SearchScratch, plan: int) -> bool:
    """Whether no plan with these groups was judged before; records it as judged."""
    key = np.uint64(1)
    for subcarrier in range(plans.owner.shape[1]):
        key = (key ^ np.uint64(plans.owner[plan, subcarrier] + 2)) * MIX
        key ^= key >> MIX_BITS
    slot = key & np.uint64(len(room.seen) - 1)
    if room.seen[slot] == key:
        return False
    room.seen[slot] = key
    return True


@bare
def _remove_devices(board: KernelState, first: int, second: int) -> None:
    """The base becomes the core without these seats, which may be none, or the same one."""
    cell, plans, _, roles = board
    copy(plans, roles.core, roles.base)
    if first != NO_INDEX:
        remove(plans, roles.base, first)
    if second not in (NO_INDEX, first):
        remove(plans, roles.base, second)  # the smaller seat: no device has moved there
    reschedule(cell, plans, roles.base)


@bare
def _add_device(
    cell: CellArrays, plans: PlanArrays, room: SearchScratch, source: int, target: int, device: int, regroups: bool
) -> bool:
    """The target becomes the source with one more device, with new groups for all or not; whether that is possible."""
    if regroups:
        copy(plans, source, target)
        add(cell, plans, target, device, plans.group, 0)
        return regroup(cell, plans, room, target) and plans.seat_of[target, device] != NO_INDEX
    _, size = gain_of(cell, plans, source, device)
    if size == 0:
        return False
    copy(plans, source, target)
    add(cell, plans, target, device, plans.group, size)
    return reschedule(cell, plans, target)


@bare
def regroup(cell: CellArrays, plans: PlanArrays, room: SearchScratch, plan: int) -> bool:
    """New groups for all in a plan, each in time for its start, the largest saving first; whether starts exist.

    A device without a group is removed. Savings only fall while subcarriers are taken, so a group is searched again
    only when it would be next.
    """
    if np.isnan(try_starts(cell, plans, plan, int(np.int64(NO_INDEX)))):
        return False
    count = plans.num_seated[plan]
    for index in range(count):
        room.wishes[index].device = plans.seats[plan, index].device
        room.wishes[index].limit_s = plans.seats[plan, index].new_s
    clear(plans, plan)
    for index in range(count):
        _find_group(cell, plans, room, plan, index)
    while True:
        best = 0
        for index in range(1, count):
            if room.wishes[index].gain_j > room.wishes[best].gain_j:
                best = index
        if count == 0 or room.wishes[best].gain_j <= 0.0:
            return reschedule(cell, plans, plan)
        if _is_free(plans, room, plan, best):
            add(cell, plans, plan, room.wishes[best].device, room.wanted[best], room.wishes[best].size)
            room.wishes[best].gain_j = -np.inf
        else:
            _find_group(cell, plans, room, plan, best)


@bare
def _find_group(cell: CellArrays, plans: PlanArrays, room: SearchScratch, plan: int, index: int) -> None:
    """The smallest group for a device in time for its start, and what it would save with it."""
    wish = room.wishes[index]
    window_s = wish.limit_s - cell.devices[wish.device].release_s
    wish.size, cost_j = smallest_group(cell, plans, plan, wish.device, window_s)
    wish.gain_j = cell.devices[wish.device].worth_j - cost_j
    for at in range(wish.size):
        room.wanted[index, at] = plans.group[at]


@bare
def _is_free(plans: PlanArrays, room: SearchScratch, plan: int, index: int) -> bool:
    """Whether all subcarriers in the wish of a device are still free."""
    is_free = True
    for at in range(room.wishes[index].size):
        is_free &= plans.owner[plan, room.wanted[index, at]] == NO_INDEX
    return is_free


@bare
def least_seat(cell: CellArrays, plans: PlanArrays, plan: int) -> int:
    """The seat of the device that saves least, among those that are too late if any is."""
    least, least_j, least_is_late = 0, np.inf, False
    for seat in range(plans.num_seated[plan]):
        is_late = plans.seats[plan, seat].cost_j == np.inf
        reach_j = cell.devices[plans.seats[plan, seat].device].reach_j
        if is_late > least_is_late or (is_late == least_is_late and reach_j < least_j):
            least, least_j, least_is_late = seat, reach_j, is_late
    return least
