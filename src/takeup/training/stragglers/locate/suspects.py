"""Which rank or link makes a job slow, without pausing it: from the calls of all ranks since it became slow.

All ranks take as long as the slowest, so iteration times carry no information, and the slow rank is not the one whose
calls take long: it arrives last and waits least. The time account of each rank does (see `accounts`): a slow rank needs
more time for its own work than before, or than others in the same role; a slow link (see `links`) moves messages more
slowly. Ranks that are late only because of another rank have waited for it themselves.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from takeup.core.arrays import Floats
from takeup.training.stragglers.locate.accounts import (
    LEAST_RATIO,
    LEAST_SHARE,
    CallWindow,
    RankedSuspect,
    TimeAccount,
    windows_of,
)
from takeup.training.stragglers.locate.links import slow_links
from takeup.training.stragglers.model import CallLog, SlowdownEvent, Suspect

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
    now, past = windows_of(logs, before)
    if not now.accounts:
        return []
    found = [*_slow_ranks(now, past), *slow_links(now, past)]
    largest_s = max((each.excess_s for each in found), default=0.0)
    least_s = max(BESIDE_LARGEST * largest_s, LEAST_SHARE * now.iteration_s, LEAST_EXPLAINED * _lost_s(now, past))
    kept = [each for each in found if each.excess_s >= least_s and each.suspect.factor >= LEAST_RATIO]
    ranks, links = ([each for each in kept if each.suspect.kind == kind] for kind in ("compute", "link"))
    free = [rank for rank in ranks if not any(_is_held_up(rank, link) for link in links)]
    free += [link for link in links if not any(_is_late_with(rank, link) for rank in ranks)]
    return [replace(each.suspect, excess_s=each.excess_s) for each in sorted(free, key=lambda each: -each.excess_s)]


def _lost_s(now: CallWindow, past: CallWindow) -> float:
    """How much longer an iteration takes; 0 if there is no earlier window."""
    return now.iteration_s - past.iteration_s if past.accounts else 0.0


def _is_held_up(rank: RankedSuspect, link: RankedSuspect) -> bool:
    """Whether a rank only seems to work longer because its sends block on a slow link."""
    return _is_at(rank, link) and rank.excess_s < HELD_UP * link.excess_s


def _is_late_with(rank: RankedSuspect, link: RankedSuspect) -> bool:
    """Whether a link only seems slow because a slow rank is also slow to send and receive messages."""
    return _is_at(rank, link) and rank.excess_s >= HELD_UP * link.excess_s


def _is_at(rank: RankedSuspect, link: RankedSuspect) -> bool:
    return rank.suspect.ranks[0] in link.suspect.ranks


def _slow_ranks(now: CallWindow, past: CallWindow) -> Iterator[RankedSuspect]:
    """Ranks whose own work takes longer, beyond the increase common to all."""
    late = _late_shares(now)
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
        ours, theirs = _beside_fast_s(now, everybody), _beside_fast_s(past, everybody)
        return {rank: _more_s(each, theirs[rank]) for rank, each in ours.items() if rank in theirs}
    roles: dict[frozenset[tuple[int, int]], list[int]] = defaultdict(list)
    for rank, role in _roles(now).items():
        roles[role].append(rank)
    alike = [_beside_fast_s(now, ranks) for ranks in roles.values()]
    return {rank: _more_s(each, _fast_half(beside)) for beside in alike for rank, each in beside.items()}


def _more_s(these_s: Floats, those_s: Floats) -> tuple[float, bool]:
    """The difference of the medians, and whether most of these are above most of those."""
    is_sure = np.quantile(these_s, 0.25) > np.quantile(those_s, 0.75)
    return float(np.median(these_s) - np.median(those_s)), bool(is_sure)


def _fast_half(beside_s: Mapping[int, Floats]) -> Floats:
    """All values of the faster half of the ranks."""
    fastest = sorted(beside_s.values(), key=lambda each: float(np.median(each)))
    return np.concatenate(fastest[: (len(fastest) + 1) // 2])


def _beside_fast_s(window: CallWindow, ranks: Sequence[int]) -> dict[int, Floats]:
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
        return [account.owns_s[np.isin(account.numbers, common)] for account in accounts]
    number = min(len(account.owns_s) for account in accounts)
    return [account.owns_s[len(account.owns_s) - number :] for account in accounts]


def _roles(window: CallWindow) -> dict[int, frozenset[tuple[int, int]]]:
    """Operations and sizes that a rank calls: ranks with the same calls have the same role."""
    calls, roles = window.calls, {}
    assert calls is not None
    for place, log in enumerate(calls.logs):
        if log.rank in window.accounts:
            kinds = calls.kinds[np.unique(calls.kind[calls.place == place])]
            what = kinds[:, 3] + SENDS * (kinds[:, 1] == log.rank)
            roles[log.rank] = frozenset(zip(what.tolist(), kinds[:, 4].tolist(), strict=True))
    return roles


def _late_shares(window: CallWindow) -> dict[int, float]:
    """By rank: the share of its calls at which it arrived last."""
    calls = window.calls
    assert calls is not None
    transfer_s = calls.transfer_s[calls.instance]
    known = ~np.isnan(transfer_s) & (np.bincount(calls.instance)[calls.instance] > 1)
    last = known & (calls.lasts_s <= transfer_s)
    num_known, num_last = (np.bincount(calls.place, each, len(calls.logs)) for each in (known, last))
    shares = num_last / np.maximum(1, num_known)
    return {log.rank: share for log, share in zip(calls.logs, shares.tolist(), strict=True)}
