"""Which link is slow: transfers that take longer than before, or than others of the same size.

The transfer time of a message cannot be read off either end: the receiver also waits for a late sender, and the sender
may not wait at all. But the time from sending on one clock to receipt on another is at least the transfer plus the
clock offset; so the minimum of these times, now and before, shows how much longer the transfer takes.
A link is not slow, though, if the receiver posts its receives so late that messages have already arrived: a link costs
no more than receivers wait for its messages.

A collective over several ranks hides which of its links is slow, and clocks of ranks cannot be compared. But in a
ring, data delayed by a slow link is late at the next rank first: the ends of its calls shift most, those of the rank
before the link least. So the change of the clock differences identifies the link.

A rank that waits for a core receives messages late, too, but only some of them: others find a free core. A slow link
delays every message. So the excess of the fastest messages is also reported.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Floats
from takeup.training.stragglers.locate.accounts import LEAST_RATIO, LEAST_SHARE, CallWindow, RankedSuspect
from takeup.training.stragglers.locate.matching import CallKind, MatchedCalls
from takeup.training.stragglers.model import Operation, Suspect

Ranks = tuple[int, ...]
FEW_PLACES = 3  # minimum number of links for a typical value among them
CLEAR_SHIFT = 0.15  # share of the transfer's increase; in an even ring, ends shift by half of it
FASTEST = 0.05  # quantile of the messages; the minimum of many may be a clock glitch
MESSAGES = (Operation.SEND, Operation.RECEIVE)


@dataclass(slots=True)
class _LinkTransfers:
    """Transfer time between the same ranks per iteration, now and usual."""

    now_s: float = 0.0
    usual_s: float = 0.0
    least_s: float = 0.0  # excess if every message were delayed as much as the fastest
    num_slow: int = 0
    num_known: int = 0


def slow_links(now: CallWindow, past: CallWindow) -> Iterator[RankedSuspect]:
    """Groups and pairs of ranks whose transfers take longer; for a group, the two ranks of the link if it is known."""
    for members, link in _links(now, past).items():
        factor, excess_s = link.now_s / max(link.usual_s, 1e-9), link.now_s - link.usual_s
        if factor >= LEAST_RATIO and excess_s >= LEAST_SHARE * now.iteration_s:
            ranks = _within_ring(members, now, past) if len(members) > 2 else members
            reason = f"{1e3 * link.now_s:.4g} ms of transfer in an iteration instead of {1e3 * link.usual_s:.4g} ms"
            share = link.num_slow / max(1, link.num_known)
            suspect = Suspect("link", tuple(sorted(ranks)), factor, share, reason, least_s=link.least_s)
            yield RankedSuspect(excess_s, suspect)


def _links(now: CallWindow, past: CallWindow) -> dict[Ranks, _LinkTransfers]:
    """Links by participating ranks."""
    assert now.calls is not None
    links = dict[Ranks, _LinkTransfers]()
    moves = _moves_s(now.calls)
    usual = _usual_s(now.calls, moves) if past.calls is None else _before_s(past.calls)
    for number, moved_s in moves.items():
        before = usual.get(now.calls.key(number))
        if before is not None:
            link = links.setdefault(tuple(sorted(now.calls.members[number])), _LinkTransfers())
            most_s = float(np.mean(_awaited_s(now.calls, number))) if before.is_message else np.inf
            _add(link, moved_s, before, most_s, len(moved_s) / now.num_iterations)
    return links


class _UsualTransfer(NamedTuple):
    """Reference for calls of a kind: a typical value, for messages with an arbitrary clock offset, and a time.

    For messages, the least is typical; for other calls the median, which is also the time they take. Most are below
    `most_s`, all but the fastest above `least_s`.
    """

    least_s: float
    typical_s: float
    takes_s: float
    most_s: float
    is_message: bool


def _add(link: _LinkTransfers, moved_s: Floats, usual: _UsualTransfer, most_s: float, per_iteration: float) -> None:
    """Add the transfers of one kind of call to this link, each with an excess of at most `most_s`."""
    is_sure = np.quantile(moved_s, 0.25) > usual.most_s
    more_s = min(_typical_s(moved_s, usual.is_message) - usual.typical_s, most_s) * is_sure
    link.now_s += per_iteration * (usual.takes_s + more_s)
    link.usual_s += per_iteration * usual.takes_s
    fastest_s = _fastest_s(moved_s[len(moved_s) // 2 :])  # use later ones: the begin of the change is uncertain
    link.least_s += per_iteration * max(0.0, min(fastest_s - usual.least_s, more_s))
    link.num_known += len(moved_s)
    link.num_slow += int((moved_s > usual.typical_s + max(0.5 * more_s, 0.1 * usual.takes_s)).sum())


def _typical_s(moved_s: Floats, is_message: bool) -> float:
    return float(np.quantile(moved_s, 0.2 if is_message else 0.5))


def _fastest_s(moved_s: Floats) -> float:
    return float(np.quantile(moved_s, FASTEST, method="lower"))


def _moves_s(calls: MatchedCalls) -> dict[int, Floats]:
    """By kind index: known transfer times or, for messages, times from one clock to another."""
    moves = {}
    for number, members in enumerate(calls.members):
        times_s = _lags_s(calls, number) if _is_message(calls, number) else _transfers_s(calls, number)
        if len(times_s) and len(members) > 1:
            moves[number] = times_s
    return moves


def _is_message(calls: MatchedCalls, number: int) -> bool:
    return bool(calls.kinds[number, 3] == Operation.SEND)


def _transfers_s(calls: MatchedCalls, number: int) -> Floats:
    transfer_s = calls.transfer_s[calls.instance_kind == number]
    known: Floats = transfer_s[~np.isnan(transfer_s)]
    return known


def _lags_s(calls: MatchedCalls, number: int) -> Floats:
    """Times from the sending of a message to the end of its receipt on the other clock, where both are known."""
    sent, got = (np.flatnonzero((calls.kind == number) & (calls.rows["operation"] == each)) for each in MESSAGES)
    got = got[calls.has_ended[got]]
    _, ours, theirs = np.intersect1d(calls.instance[sent], calls.instance[got], return_indices=True)
    lags: Floats = (calls.rows["ended_ns"][got[theirs]] - calls.rows["began_ns"][sent[ours]]) / 1e9
    return lags


def _before_s(calls: MatchedCalls) -> dict[CallKind, _UsualTransfer]:
    """By kind: the reference from the earlier window."""
    found = {}
    for number, moved_s in _moves_s(calls).items():
        is_message = _is_message(calls, number)
        typical_s = _typical_s(moved_s, is_message)
        takes_s = float(np.quantile(_awaited_s(calls, number), 0.2)) if is_message else typical_s
        most_s = -np.inf if is_message else float(np.quantile(moved_s, 0.75))  # messages may be received late
        found[calls.key(number)] = _UsualTransfer(_fastest_s(moved_s), typical_s, takes_s, most_s, is_message)
    return found


def _awaited_s(calls: MatchedCalls, number: int) -> Floats:
    """How long receivers waited for messages of a kind; the minimum is about the transfer time."""
    chosen = (calls.kind == number) & (calls.rows["operation"] == Operation.RECEIVE) & calls.has_ended
    awaited: Floats = calls.lasts_s[chosen]
    return awaited


def _usual_s(calls: MatchedCalls, moves: Mapping[int, Floats]) -> dict[CallKind, _UsualTransfer]:
    """By kind: the typical value among kinds of the same size; not available for messages, as clocks differ."""
    medians = {number: float(np.median(each)) for number, each in moves.items() if not _is_message(calls, number)}
    clusters = defaultdict(list)
    for number in medians:
        clusters[*calls.kinds[number, 3:].tolist(), len(calls.members[number])].append(number)
    return {
        calls.key(number): _UsualTransfer(usual_s, usual_s, usual_s, usual_s, False)
        for cluster in clusters.values()
        if len(cluster) >= FEW_PLACES and (usual_s := float(np.median([medians[each] for each in cluster])))
        for number in cluster
    }


# Within a ring --------------------------------------------------------------------------------------------------------


class _CallEnds(NamedTuple):
    """By rank in ring order: median end of calls relative to the mean of all ranks; and the median transfer."""

    order: Ranks
    ends_s: Floats
    transfer_s: float


def _within_ring(members: Ranks, now: CallWindow, past: CallWindow) -> Ranks:
    """The two ranks of the slow link if the ends of the group's calls identify it, otherwise all."""
    ends, past_ends = (_ends(window.calls, members) for window in (now, past))
    if ends is None or past_ends is None:
        return members
    shifts_s = ends.ends_s - past_ends.ends_s
    if np.ptp(shifts_s) < CLEAR_SHIFT * (ends.transfer_s - past_ends.transfer_s):
        return members
    first, last = int(np.argmin(shifts_s)), int(np.argmax(shifts_s))
    are_neighbours = abs(first - last) in {1, len(members) - 1}
    return (ends.order[first], ends.order[last]) if are_neighbours else members


def _ends(calls: MatchedCalls | None, members: Ranks) -> _CallEnds | None:
    """For the largest calls of this group, which a slow link delays most; None if no call was seen by all ranks."""
    number = None if calls is None else _largest(calls, members)
    if calls is None or number is None:
        return None
    order = calls.members[number]
    seen = np.flatnonzero((calls.kind == number) & calls.has_ended)
    seen = seen[np.bincount(calls.instance[seen])[calls.instance[seen]] == len(order)]
    if not len(seen):
        return None
    column = np.array([order.index(log.rank) if log.rank in order else -1 for log in calls.logs])[calls.place[seen]]
    by_instance = seen[np.lexsort((column, calls.instance[seen]))]
    ended_ns = calls.rows["ended_ns"][by_instance].reshape(-1, len(order))
    ends_s = (ended_ns - ended_ns[:, :1]) / 1e9
    transfer_s = float(np.nanmedian(calls.transfer_s[calls.instance[by_instance]]))
    return _CallEnds(order, np.median(ends_s - ends_s.mean(axis=1, keepdims=True), axis=0), transfer_s)


def _largest(calls: MatchedCalls, members: Ranks) -> int | None:
    """The kind of call of this group that moves most bytes."""
    numbers = [number for number, ranks in enumerate(calls.members) if tuple(sorted(ranks)) == members]
    return max(numbers, key=lambda number: int(calls.kinds[number, 4]), default=None)
