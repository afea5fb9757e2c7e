"""Numba kernel: tabu search around an order, for ranks whose memory decides what they may begin.

How it works. With one stage on each rank and micro-batches in order, the order of a rank is a sequence of kinds: at any
place there are at most as many W as I, as many I as F, and no more F than W plus what fits into memory. Only changes of
operations on the critical path can shorten an iteration. That path is a chain of blocks, each of operations that a rank
runs without a pause; in every round operations of a block are moved to its begin or end or past their neighbour, all
such moves are replayed, and the best is made even if it is worse, unless it undoes a recent one. After some rounds
without improvement the search continues from the best order with a few random moves.
"""

from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Ints
from takeup.core.compiled import bare, inner, kernel
from takeup.training.pipelines.timing.replay import DEADLOCK, NEVER, PipelineArrays, replay

TENURE = 7  # rounds in which a move is not undone
PATIENCE = 12  # rounds without improvement before the search continues from the best order
NUM_SHAKES = 3
MULTIPLIER, INCREMENT, MODULUS = 1103515245, 12345, 2**31


Block = tuple[int, int]  # first and last place
RANDOM, REPLAYS, ROUND = 0, 1, 2  # what is in `state`


class OrderSearch(NamedTuple):
    """Kinds by rank and place, what a replay needs, the critical path, when a place was last changed, and counters."""

    kinds: Ints
    codes: Ints
    offsets: Ints
    starts: Ints
    ends: Ints
    peaks: Ints
    where: Ints
    path: Ints
    changed: Ints
    done: Ints
    state: Ints
    chosen: Ints


@inner
def _make_search(num_ranks: int, count: int) -> OrderSearch:
    size = 3 * count
    total = num_ranks * size
    return OrderSearch(
        np.empty((num_ranks, size), np.int64),
        np.empty(total, np.int64),
        np.arange(num_ranks + 1) * size,
        np.empty(total, np.int64),
        np.empty(total, np.int64),
        np.zeros(num_ranks, np.int64),
        np.empty(4 * num_ranks * count, np.int64),
        np.empty(total, np.int64),
        np.full((num_ranks, size), -TENURE, np.int64),
        np.zeros(3, np.int64),
        np.ones(3, np.int64),
        np.zeros(3, np.int64),
    )


@bare
def _write_codes(room: OrderSearch, rank: int, count: int) -> None:
    """The operations of a rank from its kinds: the n-th of a kind is of micro-batch n."""
    room.done[:] = 0
    for place in range(3 * count):
        kind = room.kinds[rank, place]
        room.codes[room.offsets[rank] + place] = (rank * count + room.done[kind]) * 4 + kind
        room.done[kind] += 1


@bare
def _fits(room: OrderSearch, rank: int, cap: int) -> bool:
    forwards = backwards = weights = 0
    for place in range(room.kinds.shape[1]):
        kind = room.kinds[rank, place]
        forwards += kind == 0
        backwards += kind == 1
        weights += kind == 2
        if weights > backwards or backwards > forwards or forwards - weights > cap:
            return False
    return True


@bare
def _move(room: OrderSearch, rank: int, source: int, target: int) -> None:
    """Take the operation at `source` out and put it at `target`."""
    kind = room.kinds[rank, source]
    step = 1 if target > source else -1
    for place in range(source, target, step):
        room.kinds[rank, place] = room.kinds[rank, place + step]
    room.kinds[rank, target] = kind


@inner
def _write_all(room: OrderSearch, kinds: Ints, count: int) -> None:
    room.kinds[:] = kinds
    for rank in range(kinds.shape[0]):
        _write_codes(room, rank, count)


@inner
def _run(course: PipelineArrays, room: OrderSearch) -> int:
    room.state[REPLAYS] += 1
    whole = replay(course, room.codes, room.offsets, room.starts, room.ends, room.peaks)
    return NEVER if whole == DEADLOCK else int(whole)


@bare
def _sender(room: OrderSearch, index: int, count: int, num_ranks: int) -> int:
    """The operation whose message this one waits for; -1 if none."""
    cell, kind = room.codes[index] // 4, room.codes[index] % 4
    stage = cell // count
    if kind == 0:
        return int(room.where[((stage - 1) * count + cell % count) * 4]) if stage else -1
    if kind == 1:
        last = stage == num_ranks - 1
        return int(room.where[cell * 4 if last else ((stage + 1) * count + cell % count) * 4 + 1])
    return -1


@bare
def _trace(course: PipelineArrays, room: OrderSearch, whole: int, count: int) -> int:
    """Write the critical path, from its end on, and return its length."""
    num_ranks = room.kinds.shape[0]
    last = 0
    for index in range(room.codes.size):
        room.where[room.codes[index]] = index
        if room.ends[index] + course.tail[room.codes[index] // 4 // count] == whole:
            last = index
    number = 0
    while last >= 0 and number < room.path.size:
        room.path[number] = last
        number += 1
        rank = room.codes[last] // 4 // count
        if room.starts[last] == 0:
            break
        if last > room.offsets[rank] and room.ends[last - 1] == room.starts[last]:
            last -= 1
            continue
        sender = _sender(room, last, count, num_ranks)
        if sender >= 0:
            last = _queued_behind(course, room, last, sender, count)
        else:
            last = last - 1 if last > room.offsets[rank] else -1
    return number


@bare
def _queued_behind(course: PipelineArrays, room: OrderSearch, index: int, sender: int, count: int) -> int:
    """The sender of the message that kept the wire busy, if that delayed this one."""
    stage, microbatch = room.codes[index] // 4 // count, room.codes[index] // 4 % count
    other = room.codes[sender] // 4 // count
    if other == stage:
        return sender
    link = min(stage, other)
    at = room.starts[index] - course.latency[link]
    while microbatch > 0 and room.ends[sender] + course.service[link, microbatch] < at:
        at -= course.service[link, microbatch]
        microbatch -= 1
        sender = room.where[((other * count) + microbatch) * 4 + room.codes[sender] % 4]
    return sender


@inner
def _try(course: PipelineArrays, room: OrderSearch, caps: Ints, rank: int, source: int, target: int) -> int:
    """The time after a move, which is undone; NEVER if it is not allowed."""
    count, whole = course.lasts.shape[2], NEVER
    _move(room, rank, source, target)
    if _fits(room, rank, caps[rank]):
        _write_codes(room, rank, count)
        whole = _run(course, room)
    _move(room, rank, target, source)
    _write_codes(room, rank, count)
    return whole


@inner
def _try_block(
    course: PipelineArrays, room: OrderSearch, caps: Ints, rank: int, ends: Block, best: int, now: int
) -> int:
    """The least time of the moves within a block, or `now` if that is less; the move is written to `chosen`."""
    first, last = ends
    for source in range(first, last + 1):
        for choice in range(3):
            target = first if choice == 0 else last if choice == 1 else min(source + 1, last)
            is_again = choice < 2 and abs(target - source) == 1
            if is_again or room.kinds[rank, source] == room.kinds[rank, target]:
                continue
            found = _try(course, room, caps, rank, source, target)
            latest = max(room.changed[rank, source], room.changed[rank, target])
            if found < now and (found < best or room.state[ROUND] - latest > TENURE):
                now = found
                room.chosen[0], room.chosen[1], room.chosen[2] = rank, source, target
    return now


@inner
def _make_best_move(course: PipelineArrays, room: OrderSearch, caps: Ints, whole: int, best: int, most: int) -> int:
    """Make the best move on the critical path of the order, which takes `whole`; the new time, or NEVER."""
    count = course.lasts.shape[2]
    room.state[ROUND] += 1
    _run(course, room)
    number = _trace(course, room, whole, count)
    path, last, now = room.path[:number].copy(), 0, NEVER
    while last < number and room.state[REPLAYS] < most:
        first, rank = last, path[last] // (3 * count)
        while last + 1 < number and path[last + 1] == path[last] - 1 and path[last + 1] // (3 * count) == rank:
            last += 1
        block = (path[last] - room.offsets[rank], path[first] - room.offsets[rank])
        now = _try_block(course, room, caps, rank, block, best, now)
        last += 1
    if now < NEVER:
        rank, source, target = room.chosen
        _move(room, rank, source, target)
        _write_codes(room, rank, count)
        room.changed[rank, source] = room.changed[rank, target] = room.state[ROUND]
    return now


@bare
def _random(room: OrderSearch, below: int) -> int:
    room.state[RANDOM] = (room.state[RANDOM] * MULTIPLIER + INCREMENT) % MODULUS
    return int(room.state[RANDOM] // 65536 % below)


@bare
def _shake(room: OrderSearch, caps: Ints, count: int) -> None:
    """A few random exchanges that are allowed."""
    for _ in range(NUM_SHAKES):
        rank, place = _random(room, room.kinds.shape[0]), _random(room, 3 * count - 1)
        _move(room, rank, place, place + 1)
        if not _fits(room, rank, caps[rank]):
            _move(room, rank, place, place + 1)
        _write_codes(room, rank, count)


@kernel
def improve_order(course: PipelineArrays, caps: Ints, bound: int, most: int, codes: Ints) -> tuple[int, int]:
    """Improve `codes[rank]` in place with about `most` replays; returns the time and the number of replays."""
    num_ranks, count = caps.size, course.lasts.shape[2]
    room = _make_search(num_ranks, count)
    _write_all(room, codes[:, : 3 * count] % 4, count)
    best = now = _run(course, room)
    kept, since_better = room.kinds.copy(), 0
    while best > bound and room.state[REPLAYS] < most:
        now = _make_best_move(course, room, caps, now, best, most)
        since_better += 1
        if now < best:
            best, since_better = now, 0
            kept[:] = room.kinds
        elif now == NEVER or since_better > PATIENCE:
            since_better = 0
            _write_all(room, kept, count)
            _shake(room, caps, count)
            now = _run(course, room)
        if now == NEVER:
            _write_all(room, kept, count)
            now = best
    _write_all(room, kept, count)
    codes[:, : 3 * count] = room.codes.reshape(num_ranks, 3 * count)
    return best, int(room.state[REPLAYS])
