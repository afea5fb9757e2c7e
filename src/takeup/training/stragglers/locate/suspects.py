"""Which rank or link makes a job slow, without pausing it: from the calls of all ranks since it became slow.

All ranks take as long as the slowest, so iteration times carry no information, and the slow rank is not the one whose
calls take long: it arrives last and waits least. The time account of each rank does (see `accounts`): a slow rank needs
more time for its own work than before, or than others in the same role; a slow link (see `links`) moves messages more
slowly. Ranks that are late only because of another rank have waited for it themselves.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Floats
from takeup.training.stragglers.contract import CallLog, Operation, SlowdownEvent, Suspect
from takeup.training.stragglers.locate.accounts import (
    LEAST_RATIO,
    LEAST_SHARE,
    CallWindow,
    RankedSuspect,
    TimeAccount,
    screened,
    windows_of,
)
from takeup.training.stragglers.locate.matching import CallKind, MatchedCalls

Ranks = tuple[int, ...]
FEW_PLACES = 3  # minimum number of links for a typical value among them
CLEAR_SHIFT = 0.15  # share of the transfer's increase; in an even ring, ends shift by half of it
FASTEST = 0.05  # quantile of the messages; the minimum of many may be a clock glitch
MESSAGES = (Operation.SEND, Operation.RECEIVE)

# Which link is slow: transfers that take longer than before, or than others of the same size --------------------------
#
# The transfer time of a message cannot be read off either end: the receiver also waits for a late sender, and the
# sender may not wait at all. But the time from sending on one clock to receipt on another is at least the transfer plus
# the clock offset; so the minimum of these times, now and before, shows how much longer the transfer takes. A link is
# not slow, though, if the receiver posts its receives so late that messages have already arrived: a link costs no more
# than receivers wait for its messages.
#
# A collective over several ranks hides which of its links is slow, and clocks of ranks cannot be compared. But in a
# ring, data delayed by a slow link is late at the next rank first: the ends of its calls shift most, those of the rank
# before the link least. So the change of the clock differences identifies the link.
#
# A rank that waits for a core receives messages late, too, but only some of them: others find a free core. A slow link
# delays every message. So the excess of the fastest messages is also reported.


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


# CPU contention: slow because the cores of a machine do other work; looks like a slow device and a slow link ----------
#
# A rank that is ready to run and does not get a core computes late, sends late and receives late. The OS reports how
# long it waited. If that grew by enough of the rank's extra compute time, it explains a slow rank, whether or not
# others waited, and no rank is blamed. A message over a link needs cores at all its ranks, one after the other: the
# link is not blamed if the waiting of these ranks together grew by at least the extra message time. But with a slow
# link, the waiting summed over all threads of these ranks can exceed the loss. Waiting for a core delays only those
# messages that find none free, and a slow link delays all of them: if most of the excess is also present in the
# fastest messages, it is the link.
#
# If there is no suspect, it suffices that the waiting of all ranks together grew by enough of the loss: in a pipeline,
# ranks wait for each other. Waiting because a rank's own CPU quota is exhausted does not count; that is a slow rank.

LEAST_EXPLAINED_BY_CORES = 0.5  # share of the lost iteration time, or of the rank's extra compute time
LEAST_FOR_ALL = 0.5  # a link is slow if the fastest messages have this share of the mean excess


def blame_cpu_contention(event: SlowdownEvent, more_waiting_s: Mapping[int, float]) -> SlowdownEvent:
    """The event, blamed on cores if core waiting per iteration grew by enough; `more_waiting_s` is by rank."""
    lost_s, together_s = event.after_s - event.before_s, sum(more_waiting_s.values())
    if event.suspects:
        is_explained = all(_is_explained_by_cores(suspect, more_waiting_s, lost_s) for suspect in event.suspects)
    else:
        is_explained = together_s >= LEAST_EXPLAINED_BY_CORES * lost_s
    if not event.is_slow or lost_s <= 0 or not is_explained:
        return event
    reason = (
        f"ready to run but without a core for {1e3 * together_s:.4g} ms more in an iteration, all ranks together; "
        f"it lost {1e3 * lost_s:.4g} ms"
    )
    ranks = tuple(rank for rank, more_s in sorted(more_waiting_s.items()) if more_s > 0)
    return replace(event, suspects=(Suspect("host", ranks, event.factor, 0.0, reason),))


def _is_explained_by_cores(suspect: Suspect, more_waiting_s: Mapping[int, float], lost_s: float) -> bool:
    """Whether a suspect only seems slow because ranks wait for cores."""
    there_s = sum(more_waiting_s.get(rank, 0.0) for rank in suspect.ranks)
    longer_s = suspect.excess_s or lost_s  # if unknown, the whole loss
    if suspect.kind == "link" and suspect.least_s >= LEAST_FOR_ALL * longer_s:
        return False
    return there_s >= (1.0 if suspect.kind == "link" else LEAST_EXPLAINED_BY_CORES) * longer_s


BESIDE_LARGEST = 0.5  # a second suspect explains at least this share of the first one's excess
LEAST_EXPLAINED = 1 / 3  # minimum share of the lost time that a suspect explains
HELD_UP = 1.25  # multiple of the loss at the link
SENDS = 100  # distinguishes sending from receiving in a role


def locate(logs: Sequence[CallLog], before: Sequence[CallLog] = ()) -> list[Suspect]:
    """Suspects in the calls since the change, the worst first; `before` are calls of the same ranks before it.

    Without calls from before, ranks in the same role are compared with each other, and links that move as much. The
    result is empty if all became slower alike, or if there is not one complete iteration.
    """
    now, past = windows_of(*screened(logs, before))
    if not now.accounts:
        return []
    found = [*_slow_ranks(now, past), *slow_links(now, past)]
    largest_s = max((each.excess_s for each in found), default=0.0)
    lost_s = now.iteration_s - past.iteration_s if past.accounts else 0.0
    least_s = max(BESIDE_LARGEST * largest_s, LEAST_SHARE * now.iteration_s, LEAST_EXPLAINED * lost_s)
    kept = [each for each in found if each.excess_s >= least_s and each.suspect.factor >= LEAST_RATIO]
    ranks, links = ([each for each in kept if each.suspect.kind == kind] for kind in ("compute", "link"))
    # A rank whose sends block on a slow link seems to work longer; the link of a slow rank, which is also slow to send
    # and receive, seems slow.
    pairs = [(rank, link) for rank in ranks for link in links if rank.suspect.ranks[0] in link.suspect.ranks]
    excused = {rank if rank.excess_s < HELD_UP * link.excess_s else link for rank, link in pairs}
    free = sorted((each for each in kept if each not in excused), key=lambda each: -each.excess_s)
    return [replace(each.suspect, excess_s=each.excess_s) for each in free]


def _slow_ranks(now: CallWindow, past: CallWindow) -> Iterator[RankedSuspect]:
    """Ranks whose own work takes longer, beyond the increase common to all."""
    late = late_shares(now)
    for rank, (excess_s, is_sure) in _excesses_s(now, past).items():
        own_s = now.accounts[rank].own_s
        usual_s = max(own_s - excess_s, 1e-9)
        reason = (
            f"{1e3 * own_s:.4g} ms of own work in an iteration instead of {1e3 * usual_s:.4g} ms; "
            f"the last to come in {late[rank]:.0%} of its calls"
        )
        if is_sure:
            yield RankedSuspect(excess_s, Suspect("compute", (rank,), own_s / usual_s, late[rank], reason))


def _excesses_s(now: CallWindow, past: CallWindow) -> dict[int, tuple[float, bool]]:
    """By rank: how much longer own work takes than before, or than in the same role; and if that is significant.

    Every iteration is compared with the time of the faster ranks for it: some iterations have more work than others.
    """
    if past.accounts:
        everybody = [rank for rank in now.accounts if rank in past.accounts]
        ours, theirs = beside_fast_s(now, everybody), beside_fast_s(past, everybody)
        return {rank: _more_s(each, theirs[rank]) for rank, each in ours.items() if rank in theirs}
    alike = [beside_fast_s(now, ranks) for ranks in ranks_by_role(now)]
    return {rank: _more_s(each, fast_half(beside)) for beside in alike for rank, each in beside.items()}


def _more_s(these_s: Floats, those_s: Floats) -> tuple[float, bool]:
    """The difference of the medians, and whether most of these are above most of those."""
    is_sure = np.quantile(these_s, 0.25) > np.quantile(those_s, 0.75)
    return float(np.median(these_s) - np.median(those_s)), bool(is_sure)


def fast_half(beside_s: Mapping[int, Floats]) -> Floats:
    """All values of the faster half of the ranks."""
    fastest = sorted(beside_s.values(), key=lambda each: float(np.median(each)))
    return np.concatenate(fastest[: (len(fastest) + 1) // 2])


def beside_fast_s(window: CallWindow, ranks: Sequence[int]) -> dict[int, Floats]:
    """By rank and iteration: own work, less that of a rank in the fastest quarter."""
    table = np.array(_side_by_side([window.accounts[rank] for rank in ranks]))
    beside = table - np.quantile(table, 0.25, axis=0, method="lower") if table.size else table
    return dict(zip(ranks, beside, strict=True)) if table.size else {}


def _side_by_side(accounts: Sequence[TimeAccount]) -> list[Floats]:
    """Own work in the same iterations: matched by number or, if ranks have none in common, the latest."""
    if not accounts:
        return []
    common = reduce(np.intersect1d, [account.numbers for account in accounts])
    if len(common) >= 0.5 * max(len(account.numbers) for account in accounts):
        places = [np.intersect1d(account.numbers, common, return_indices=True)[1] for account in accounts]
        return [account.owns_s[each] for account, each in zip(accounts, places, strict=True)]  # each number once
    number = min(len(account.owns_s) for account in accounts)
    return [account.owns_s[len(account.owns_s) - number :] for account in accounts]


def ranks_by_role(window: CallWindow) -> list[list[int]]:
    """Ranks that make the same calls, together.

    Sizes count too, unless they say nothing of the role: of all-to-alls, where each rank gets as much as its experts
    need, and where no two ranks move the same.
    """
    roles: dict[tuple[int, bool, frozenset[tuple[int, int]]], list[int]] = defaultdict(list)
    calls = window.calls
    assert calls is not None
    neighbours = {log.rank: set(log.calls["peer"][log.calls["peer"] >= 0].tolist()) for log in calls.logs}
    sorts = {log.rank: _sorts(calls, place, log.rank) for place, log in enumerate(calls.logs)}
    vague = {Operation.ALL_TO_ALL, *_all_different(list(sorts.values()))}
    has_pairs = sum(len(each) == 1 for each in neighbours.values()) > 2
    for log in calls.logs:
        if log.rank in window.accounts:
            kinds = frozenset((what, 0 if what in vague else size) for what, size in sorts[log.rank])
            steps = bool((log.calls["operation"] == Operation.STEP).any())
            roles[_end_of_pipeline(log.rank, neighbours, has_pairs), steps, kinds].append(log.rank)
    return list(roles.values())


def _sorts(calls: MatchedCalls, place: int, rank: int) -> set[tuple[int, int]]:
    """Operations, and whether messages are sent or received, with the sizes of a rank."""
    kinds = calls.kinds[np.unique(calls.kind[calls.place == place])]
    return set(zip((kinds[:, 3] + SENDS * (kinds[:, 1] == rank)).tolist(), kinds[:, 4].tolist(), strict=True))


def _all_different(sorts: Sequence[set[tuple[int, int]]]) -> set[int]:
    """What more than two ranks do, each with sizes of its own, as with sequences of different length."""
    sizes: dict[int, list[frozenset[int]]] = defaultdict(list)
    for each in sorts:
        for what in {what for what, _ in each}:
            sizes[what].append(frozenset(size for one, size in each if one == what))
    return {what for what, each in sizes.items() if len(set(each)) == len(each) > 2}


def _end_of_pipeline(rank: int, neighbours: Mapping[int, set[int]], has_pairs: bool) -> int:
    """-1 for the first stage and 1 for the last one, which have one neighbour; 0 for other ranks.

    Of a single pipeline with two stages, the ranks can only be compared with each other.
    """
    if len(neighbours[rank]) != 1:
        return 0
    (peer,) = neighbours[rank]
    return 0 if neighbours.get(peer) == {rank} and not has_pairs else int(np.sign(rank - peer))


def late_shares(window: CallWindow) -> dict[int, float]:
    """By rank: the share of its calls at which it arrived last."""
    calls = window.calls
    assert calls is not None
    transfer_s = calls.transfer_s[calls.instance]
    known = ~np.isnan(transfer_s) & (np.bincount(calls.instance)[calls.instance] > 1)
    last = known & (calls.lasts_s <= transfer_s)
    num_known, num_last = (np.bincount(calls.place, each, len(calls.logs)) for each in (known, last))
    shares = num_last / np.maximum(1, num_known)
    return {log.rank: share for log, share in zip(calls.logs, shares.tolist(), strict=True)}
