"""Which rank or link makes a job slow, without pausing it: from the calls of all ranks since it became slow.

All ranks take as long as the slowest, so times of iterations say nothing, and the slow rank is not the one whose calls
take long: it comes last and waits least. What tells is the account of each rank (see `accounts`): a slow rank needs
more time for its own work than before, or than others in the same role; a slow link moves messages more slowly than
before, or than others move as much. Those who merely come late because of another have waited for it themselves.

In a ring, what passes a slow link late arrives late with the next rank first: its ends shift most, those of the rank
before the link least. That names the link within a group whose clocks differ, as long as they keep differing by as much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.training.model.calls import CallLog
from takeup.training.model.slowdowns import Suspect
from takeup.training.policies.stragglers.accounts import Account, Anchor, Calls, account_of, anchor_of

__all__ = ["Suspect", "locate"]

Floats = npt.NDArray[np.float64]
Places = dict[tuple[int, ...], "_Link"]
LEAST_SHARE = 0.04  # of an iteration; what explains less is not worth a name
BESIDE_LARGEST = 0.5  # a second suspect explains at least so much of what the first does
LEAST_RATIO = 1.05
FEW_PLACES = 3  # so many links are needed to say what is usual among them
CLEAR_SHIFT = 0.15  # of the longer transfer: ends of ranks shift by up to half of it


def locate(logs: Sequence[CallLog], before: Sequence[CallLog] = ()) -> list[Suspect]:
    """Suspects in the calls since the change, the worst first; `before` are calls of the same ranks before it.

    Without calls from before, ranks in the same role are compared with each other, and links that move as much. None
    are found if all became slower alike, or if there is not one whole iteration.
    """
    anchors = _anchors(logs, before)
    now, past = _Window.of(logs, anchors), _Window.of(before, anchors)
    if not now.accounts:
        return []
    found = [*_slow_ranks(now, past), *_slow_links(now, past)]
    largest_s = max((each.excess_s for each in found), default=0.0)
    least_s = max(BESIDE_LARGEST * largest_s, LEAST_SHARE * now.iteration_s)
    kept = [each for each in found if each.excess_s >= least_s and each.suspect.factor >= LEAST_RATIO]
    return [each.suspect for each in sorted(kept, key=lambda each: -each.excess_s)]


class _Found(NamedTuple):
    excess_s: float  # of an iteration
    suspect: Suspect


@dataclass(frozen=True)
class _Window:
    """Calls of some time, and the accounts of ranks."""

    calls: Calls | None
    accounts: Mapping[int, Account]

    @classmethod
    def of(cls, logs: Sequence[CallLog], anchors: Mapping[int, Anchor]) -> _Window:
        usable = [log for log in logs if log.rank in anchors and len(log.calls)]
        if not usable:
            return cls(None, {})
        calls = Calls.of(usable)
        accounts = {log.rank: account_of(calls, place, anchors[log.rank]) for place, log in enumerate(usable)}
        return cls(calls, {rank: account for rank, account in accounts.items() if account is not None})

    @property
    def iteration_s(self) -> float:
        return float(np.median([account.iteration_s for account in self.accounts.values()]))

    @property
    def num_iterations(self) -> int:
        return max(account.num_iterations for account in self.accounts.values())


def _anchors(logs: Sequence[CallLog], before: Sequence[CallLog]) -> dict[int, Anchor]:
    earlier = {log.rank: log.calls for log in before}
    rows = {log.rank: np.concatenate([earlier.get(log.rank, log.calls[:0]), log.calls]) for log in logs}
    found = {rank: anchor_of(calls) for rank, calls in rows.items()}
    return {rank: anchor for rank, anchor in found.items() if anchor is not None}


# Ranks ----------------------------------------------------------------------------------------------------------------


def _slow_ranks(now: _Window, past: _Window) -> Iterator[_Found]:
    """Ranks whose own work takes longer, beyond what has become longer for all."""
    usual_s = _usual_own_s(now, past)
    more_s = {rank: now.accounts[rank].own_s - usual_s[rank] for rank in usual_s}
    common_s = _lower_quartile(list(more_s.values())) if more_s else 0.0
    late = _late_shares(now)
    for rank, each_s in more_s.items():
        own_s, usual = now.accounts[rank].own_s, max(usual_s[rank], 1e-9)
        reason = (
            f"{1e3 * own_s:.4g} ms of own work in an iteration instead of {1e3 * usual:.4g} ms; "
            f"the last to come in {late.get(rank, 0.0):.0%} of its calls"
        )
        suspect = Suspect("compute", (rank,), (own_s - common_s) / usual, late.get(rank, 0.0), reason)
        yield _Found(each_s - common_s, suspect)


def _usual_own_s(now: _Window, past: _Window) -> dict[int, float]:
    """What the own work of ranks took before, or takes the faster ones in the same role."""
    if past.accounts:
        return {rank: past.accounts[rank].own_s for rank in now.accounts if rank in past.accounts}
    roles: dict[frozenset[tuple[int, int]], list[int]] = defaultdict(list)
    for rank, role in _roles(now).items():
        roles[role].append(rank)
    own_s = {rank: account.own_s for rank, account in now.accounts.items()}
    return {rank: _lower_quartile([own_s[each] for each in ranks]) for ranks in roles.values() for rank in ranks}


def _roles(window: _Window) -> dict[int, frozenset[tuple[int, int]]]:
    """What ranks ask for and how much of it: who asks for the same has the same role."""
    assert window.calls is not None
    roles = {}
    for place, log in enumerate(window.calls.logs):
        if log.rank in window.accounts:
            kinds = window.calls.kinds[np.unique(window.calls.kind[window.calls.place == place])]
            sends = kinds[:, 1] == log.rank
            roles[log.rank] = frozenset(zip((kinds[:, 3] + 100 * sends).tolist(), kinds[:, 4].tolist(), strict=True))
    return roles


def _lower_quartile(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.25, method="lower"))


def _late_shares(window: _Window) -> dict[int, float]:
    """By rank: the share of its calls to which it came last."""
    calls = window.calls
    assert calls is not None
    transfer_s = calls.transfer_s[calls.instance]
    known = ~np.isnan(transfer_s) & (np.bincount(calls.instance)[calls.instance] > 1)
    last = known & (calls.lasts_s <= transfer_s)
    num_known, num_last = (np.bincount(calls.place, each, len(calls.logs)) for each in (known, last))
    shares = num_last / np.maximum(1, num_known)
    return {log.rank: share for log, share in zip(calls.logs, shares.tolist(), strict=True)}


# Links ----------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Link:
    """What moves between the same ranks in an iteration, now and usually."""

    now_s: float = 0.0
    usual_s: float = 0.0
    num_slow: int = 0
    num_known: int = 0


def _slow_links(now: _Window, past: _Window) -> Iterator[_Found]:
    """Groups and pairs of ranks whose transfers take longer."""
    for members, link in _links(now, past).items():
        factor = link.now_s / max(link.usual_s, 1e-9)
        excess_s = link.now_s - link.usual_s
        if factor >= LEAST_RATIO and excess_s >= LEAST_SHARE * now.iteration_s:
            ranks = _within_ring(members, excess_s, now, past) if len(members) > 2 else members
            reason = f"{1e3 * link.now_s:.4g} ms of transfer in an iteration instead of {1e3 * link.usual_s:.4g} ms"
            share = link.num_slow / max(1, link.num_known)
            yield _Found(excess_s, Suspect("link", tuple(sorted(ranks)), factor, share, reason))


def _links(now: _Window, past: _Window) -> Places:
    """By the ranks that take part."""
    calls, links = now.calls, Places()
    assert calls is not None
    medians, usual = _median_transfers(calls), _usual_transfers(now, past)
    for number, median_s in medians.items():
        usual_s = usual.get(tuple(calls.kinds[number].tolist()))
        if usual_s is not None:
            link = links.setdefault(tuple(sorted(calls.members[number])), _Link())
            transfer_s = calls.transfer_s[calls.instance_kind == number]
            a_time = len(transfer_s) / now.num_iterations
            link.now_s += a_time * median_s
            link.usual_s += a_time * usual_s
            link.num_known += int((~np.isnan(transfer_s)).sum())
            link.num_slow += int((transfer_s > 1.1 * usual_s).sum())
    return links


def _median_transfers(calls: Calls) -> dict[int, float]:
    """By number of the kind, in seconds; kinds among one rank, or with no transfer known, are left out."""
    medians = {}
    for number, members in enumerate(calls.members):
        transfer_s = calls.transfer_s[calls.instance_kind == number]
        known_s = transfer_s[~np.isnan(transfer_s)]
        if len(known_s) and len(members) > 1:
            medians[number] = float(np.median(known_s))
    return medians


def _usual_transfers(now: _Window, past: _Window) -> dict[tuple[int, ...], float]:
    """By kind: what it took before; if nothing is known of before, what is usual among those that move as much."""
    if past.calls is not None:
        return {tuple(past.calls.kinds[n].tolist()): each for n, each in _median_transfers(past.calls).items()}
    assert now.calls is not None
    medians, clusters = _median_transfers(now.calls), defaultdict(list)
    for number in medians:
        clusters[_cluster(now.calls, number)].append(number)
    return {
        tuple(now.calls.kinds[number].tolist()): float(np.median([medians[each] for each in cluster]))
        for cluster in clusters.values()
        if len(cluster) >= FEW_PLACES
        for number in cluster
    }


def _cluster(calls: Calls, number: int) -> tuple[int, ...]:
    """Operation, bytes, and how many take part."""
    return (*calls.kinds[number, 3:].tolist(), len(calls.members[number]))


def _within_ring(members: tuple[int, ...], excess_s: float, now: _Window, past: _Window) -> tuple[int, ...]:
    """The two ranks of the slow link if ends of the group's calls tell, otherwise all."""
    if now.calls is None or past.calls is None:
        return members
    order, ends_now_s = _mean_ends(now.calls, members)
    _, ends_past_s = _mean_ends(past.calls, members)
    shifts_s = ends_now_s - ends_past_s
    if not np.isfinite(shifts_s).all():
        return members
    first, last = int(np.argmin(shifts_s)), int(np.argmax(shifts_s))
    are_neighbours = abs(first - last) in {1, len(order) - 1}
    is_clear = np.ptp(shifts_s) >= CLEAR_SHIFT * excess_s
    return (order[first], order[last]) if are_neighbours and is_clear else members


def _mean_ends(calls: Calls, members: tuple[int, ...]) -> tuple[tuple[int, ...], Floats]:
    """Ranks in the order of their group; by rank, when its calls end, beside the mean of all: the median, in seconds.

    Of all calls of the group together that move the most: those are the ones a slow link delays.
    """
    numbers = [number for number, ranks in enumerate(calls.members) if tuple(sorted(ranks)) == members]
    number = max(numbers, key=lambda number: int(calls.kinds[number, 4]), default=0)
    order = calls.members[number] if numbers else members
    chosen = (calls.kind == number) & calls.has_ended
    rank = np.array([log.rank for log in calls.logs])[calls.place[chosen]]
    _, row = np.unique(calls.instance[chosen], return_inverse=True)
    ends_s = np.full((int(row.max(initial=-1)) + 1, len(order)), np.nan)
    column = {each: place for place, each in enumerate(order)}
    origin = int(calls.rows["ended_ns"][chosen].min()) if chosen.any() else 0
    ends_s[row, [column[each] for each in rank.tolist()]] = (calls.rows["ended_ns"][chosen] - origin) / 1e9
    whole = ends_s[~np.isnan(ends_s).any(axis=1)]
    if not numbers or not len(whole):
        return order, np.full(len(order), np.nan)
    return order, np.median(whole - whole.mean(axis=1, keepdims=True), axis=0)
