"""The group table on arrays: the events of `takeup.caching.groups`, and the producers that must run again."""

from __future__ import annotations

from takeup.caching.policies.fast.layout import CLOSED, DAG, LOST, OPEN, STORED, ReplayState
from takeup.caching.policies.fast.ranks import first_user, last_user, next_stage, next_use, refresh, refresh_group
from takeup.core.compiled import bare, inlined


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
        if record.status == STORED and was_active != (record.rc > 0):
            run.totals[0].inactive_now += record.bytes if was_active else -record.bytes
        if run.tasks[task].is_again:
            record.reopened += change
        record.announced = max(record.announced, run.inputs[place].user + 1)
        refresh(run, block)


@inlined
def open_group(run: ReplayState, task: int) -> None:
    run.tasks[task].missing = _num_lost(run, task) if run.rules.tracks_groups else 0
    run.tasks[task].consumer = OPEN
    _count(run, task, 1)


@inlined
def close_group(run: ReplayState, task: int) -> None:
    if run.tasks[task].consumer == OPEN:
        run.tasks[task].consumer = CLOSED
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
        if run.tasks[task].consumer != OPEN:
            continue
        before = run.tasks[task].missing
        run.tasks[task].missing = before + change
        is_flip = before == 0 or before + change == 0
        if is_flip:
            broke |= before == 0
            _flip(run, task, -change)
        if is_flip or run.rules.policy == DAG:
            refresh_group(run, task)
    return broke


@inlined
def _completes_a_group(run: ReplayState, block: int) -> bool:
    """Whether this lost block is the only one missing in an open group. For policies that do not track group counts."""
    for place in range(first_user(run, block), last_user(run, block)):
        task = run.users[place]
        if run.tasks[task].consumer == OPEN and _num_lost(run, task) == 1:
            return True
    return False


@inlined
def _num_lost(run: ReplayState, task: int) -> int:
    num_lost = 0
    for place in range(run.tasks[task].inputs, run.tasks[task + 1].inputs):
        num_lost += run.blocks[run.inputs[place].block].status == LOST
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
        if task < 0 or run.tasks[task].consumer == OPEN or record.status != LOST or record.rc == 0:
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
