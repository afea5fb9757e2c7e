"""The group table on arrays: readers of a block, ranks of the policies, events, and producers that must run again."""

import math

import numpy as np

from takeup.caching.policies.dag import HORIZON_SHARE, NUM_CONSUMERS, RESOLUTION
from takeup.caching.simulate.compiled import layout
from takeup.caching.simulate.compiled.layout import ReplayState
from takeup.core.compiled import bare, inlined

# The ranks of the policies on arrays: what `rank` computes in each policy's own file, written into a block's keys -----


@inlined
def first_user(run: ReplayState, block: int) -> int:
    """Where to begin the search for open users of the block."""
    start = run.blocks[block].users
    if run.blocks[block].reopened > 0:
        return start
    place = start + run.blocks[block].head
    while place < last_user(run, block) and run.tasks[run.users[place]].consumer == layout.CLOSED:
        place += 1
    run.blocks[block].head = place - start
    return place


@inlined
def last_user(run: ReplayState, block: int) -> int:
    """Where the announced users of the block end."""
    return run.blocks[block].users + run.blocks[block].announced


@inlined
def next_use(run: ReplayState, block: int) -> float:
    nearest = math.inf
    for place in range(first_user(run, block), last_user(run, block)):
        task = run.users[place]
        if run.tasks[task].consumer == layout.OPEN:
            nearest = min(nearest, run.tasks[task].position)
            if run.blocks[block].reopened == 0:
                break
    return nearest


@inlined
def next_stage(run: ReplayState, block: int) -> float:
    nearest = math.inf
    for place in range(first_user(run, block), last_user(run, block)):
        task = run.users[place]
        if run.tasks[task].consumer == layout.OPEN:
            nearest = min(nearest, float(run.tasks[task].stage_now))
            if run.rules.stages_ascend and run.blocks[block].reopened == 0:
                break
    return nearest


@bare
def _log_worth(run: ReplayState, block: int) -> float:
    """See `DagValue.rank`: the logarithm of the discounted savings of the nearest open consumers."""
    num_terms, cost_s, total = _nearest_positions(run, block), run.blocks[block].cost_s, 0.0
    if num_terms == 0 or cost_s <= 0:
        return -math.inf
    horizon_bytes = HORIZON_SHARE * max(1, run.rules.worker_bytes)
    peak = math.log(cost_s) - run.nearest[0] / horizon_bytes
    for slot in range(num_terms):
        total += math.exp(math.log(cost_s) - run.nearest[slot] / horizon_bytes - peak)
    return peak + math.log(total)


@inlined
def _nearest_positions(run: ReplayState, block: int) -> int:
    """Fill `nearest` with the positions of the nearest open consumers, in their order; returns their number."""
    found = 0
    for place in range(first_user(run, block), last_user(run, block)):
        task = run.users[place]
        if run.tasks[task].consumer != layout.OPEN:
            continue
        if found == NUM_CONSUMERS and run.blocks[block].reopened == 0:
            break
        position, slot = run.tasks[task].position, found
        while slot > 0 and run.nearest[slot - 1] > position:
            run.nearest[slot] = run.nearest[slot - 1]
            slot -= 1
        run.nearest[slot] = position
        found = min(found + 1, NUM_CONSUMERS)
    return found


@bare
def set_keys(run: ReplayState, block: int) -> None:
    """Write the block's rank under the policy into its keys."""
    policy, key1, key2 = run.rules.policy, 0.0, 0.0
    if policy == layout.LRC:
        key1 = float(run.blocks[block].rc)
    elif policy == layout.LERC:
        key1, key2 = float(run.blocks[block].erc), float(run.blocks[block].rc)
    elif policy == layout.MRD:
        key1 = -next_stage(run, block)
    elif policy == layout.NEXT:
        key1 = -next_use(run, block)
    elif policy == layout.DAG:
        worth = _log_worth(run, block)
        if worth > -math.inf:
            worth = np.floor((worth - math.log(run.blocks[block].bytes)) * RESOLUTION)
        key1, key2 = worth, float(run.blocks[block].rc)
    run.blocks[block].key1, run.blocks[block].key2 = key1, key2


@bare
def refresh(run: ReplayState, block: int) -> None:
    """Update the block's rank after a change it depends on."""
    if run.blocks[block].heap_place >= 0 and run.rules.policy >= layout.LRC:
        set_keys(run, block)
        layout.sift(run, run.blocks[block].worker, run.blocks[block].heap_place)


@bare
def refresh_group(run: ReplayState, task: int) -> None:
    for place in range(run.tasks[task].inputs, run.tasks[task + 1].inputs):
        refresh(run, run.inputs[place].block)


# The group table on arrays: the events of `takeup.caching.groups`, and the producers that must run again --------------


@inlined
def _count(run: ReplayState, task: int, change: int) -> None:
    """The group of `task` opens (+1) or closes (-1): its blocks gain or lose a reference."""
    effective = change if run.tasks[task].missing == 0 else 0
    for place in range(run.tasks[task].inputs, run.tasks[task + 1].inputs):
        block = run.inputs[place].block
        record = run.blocks[block]
        was_active = record.rc > 0
        record.rc += change
        record.erc += effective
        if record.status == layout.STORED and was_active != (record.rc > 0):
            run.totals[0].inactive_now += record.bytes if was_active else -record.bytes
        if run.tasks[task].is_again:
            record.reopened += change
        record.announced = max(record.announced, run.inputs[place].user + 1)
        refresh(run, block)


@inlined
def open_group(run: ReplayState, task: int) -> None:
    run.tasks[task].missing = _num_lost(run, task) if run.rules.tracks_groups else 0
    run.tasks[task].consumer = layout.OPEN
    _count(run, task, 1)


@inlined
def close_group(run: ReplayState, task: int) -> None:
    if run.tasks[task].consumer == layout.OPEN:
        run.tasks[task].consumer = layout.CLOSED
        _count(run, task, -1)
        run.tasks[task].is_again = False


@inlined
def _flip(run: ReplayState, task: int, change: int) -> None:
    """The group of `task` became complete (+1) or incomplete (-1)."""
    for place in range(run.tasks[task].inputs, run.tasks[task + 1].inputs):
        run.blocks[run.inputs[place].block].erc += change


@bare
def set_missing(run: ReplayState, block: int, change: int) -> bool:
    """Mark the block lost (+1) or restored (-1) in its groups; True if a complete group became incomplete."""
    if not run.rules.tracks_groups:
        return change > 0 and _completes_a_group(run, block)
    broke = False
    for place in range(first_user(run, block), last_user(run, block)):
        task = run.users[place]
        if run.tasks[task].consumer != layout.OPEN:
            continue
        before = run.tasks[task].missing
        run.tasks[task].missing = before + change
        if before == 0 or before + change == 0:
            broke |= before == 0
            _flip(run, task, -change)
            refresh_group(run, task)
    return broke


@inlined
def _completes_a_group(run: ReplayState, block: int) -> bool:
    """Whether this lost block is the only one missing in an open group. For policies that do not track group counts."""
    for place in range(first_user(run, block), last_user(run, block)):
        task = run.users[place]
        if run.tasks[task].consumer == layout.OPEN and _num_lost(run, task) == 1:
            return True
    return False


@inlined
def _num_lost(run: ReplayState, task: int) -> int:
    num_lost = 0
    for place in range(run.tasks[task].inputs, run.tasks[task + 1].inputs):
        num_lost += run.blocks[run.inputs[place].block].status == layout.LOST
    return num_lost


@bare
def reopen_producers(run: ReplayState, first: int) -> None:
    """See `Simulation._reopen_producers`; the recursion is a stack of blocks."""
    if not run.rules.recompute:
        return
    run.scratch[0].stack, depth = first, 1
    while depth > 0:
        depth -= 1
        block = run.scratch[depth].stack
        record, task = run.blocks[block], run.blocks[block].producer
        if (
            not record.recomputes
            or run.tasks[task].consumer == layout.OPEN
            or record.status != layout.LOST
            or record.rc == 0
        ):
            continue
        start, end = run.tasks[task].inputs, run.tasks[task + 1].inputs
        if start == end:
            continue
        run.tasks[task].position = next_use(run, block)
        run.tasks[task].stage_now = int(next_stage(run, block))
        run.tasks[task].is_again = True
        open_group(run, task)
        for place in range(end - 1, start - 1, -1):
            run.scratch[depth].stack = run.inputs[place].block
            depth += 1
