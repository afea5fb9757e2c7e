"""Time accounts of ranks (own work, waiting for others, transfers), and windows of calls to compare."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Bools, Floats, Ints
from takeup.training.stragglers.contract import CallLog, Suspect
from takeup.training.stragglers.locate.matching import Anchor, MatchedCalls, agreed_anchors, tokens_of

# Time account of every rank: its own work, waiting for others, and transfers ------------------------------------------
#
# How it works: a rank that is not waiting is working. The time before it begins a call is its own work; the time
# before a call ends is spent on that call, unless the rank keeps working meanwhile. That is assumed if the time from
# the begin of the call to the begin of the next varies less than the time from its end to the begin of the next: the
# interval that varies less is the work. Variation is taken between iterations, and between before and after a change.
#
# The end of a call may be recorded late, after a rank that waited for it has begun its next call. So an end recorded
# just after the begin of another call is ordered before it.

Pair = tuple[tuple[int, int], tuple[int, int]]  # operation and bytes of a call and of the next one
FEW = 4  # minimum number of instances for a spread
CLEARLY = 0.85
LATE_NS = 1_000_000  # maximum delay of recording an end


@dataclass(frozen=True, slots=True, eq=False)
class TimeAccount:
    """Time account of a rank: one value per iteration, in seconds. `numbers` are those of their first call."""

    numbers: Ints
    iterations_s: Floats
    owns_s: Floats
    waits_s: Floats
    transfers_s: Floats

    @property
    def iteration_s(self) -> float:
        return float(np.median(self.iterations_s))

    @property
    def own_s(self) -> float:
        """Median time of own work per iteration."""
        return float(np.median(self.owns_s))


@dataclass(frozen=True)
class RankTimeline:
    """Begins and ends of the calls of one rank, in time order."""

    calls: MatchedCalls
    place: int

    @property
    def rank(self) -> int:
        return self.calls.logs[self.place].rank

    @cached_property
    def _rows(self) -> Ints:
        return np.flatnonzero(self.calls.place == self.place)

    @cached_property
    def _order(self) -> tuple[Ints, Ints, Ints]:
        """Row, time and recording delay of every event; rows of ends are negative, starting with -1."""
        ended = self._rows[self.calls.has_ended[self._rows]]
        rows = np.concatenate([-1 - ended, self._rows])
        late_ns = np.concatenate([self._late_ns(ended), np.zeros(len(self._rows), np.int64)])
        noted_ns = np.concatenate([self.calls.rows["ended_ns"][ended], self.calls.rows["began_ns"][self._rows]])
        moments = noted_ns - late_ns
        order = np.argsort(moments, kind="stable")  # ends sort before begins at the same time
        return rows[order], moments[order], late_ns[order]

    def _late_ns(self, ended: Ints) -> Ints:
        """Recording delay of ends: the time since another call began, if that is short."""
        noted_ns, began_ns = self.calls.rows["ended_ns"][ended], np.sort(self.calls.rows["began_ns"][self._rows])
        latest_ns = began_ns[np.searchsorted(began_ns, noted_ns, side="right") - 1]
        is_late = (latest_ns > self.calls.rows["began_ns"][ended]) & (noted_ns - latest_ns <= LATE_NS)
        return np.where(is_late, noted_ns - latest_ns, 0)

    @cached_property
    def _is_end(self) -> Bools:
        return self._order[0] < 0

    @cached_property
    def _gaps_s(self) -> Floats:
        """Time since the previous event."""
        moments = self._order[1]
        return np.diff(moments, prepend=moments[:1]) / 1e9

    @cached_property
    def _before_own(self) -> Bools:
        """Ends whose next event is the begin of a call by this rank."""
        flags: Bools = self._is_end & ~np.append(self._is_end[1:], True)
        return flags

    @cached_property
    def _pairs(self) -> list[Pair]:
        """By event: operation and bytes, of this event and of the next."""
        rows, _, _ = self._order
        sorts = _sorts_of(self.calls.rows[np.where(rows < 0, -1 - rows, rows)])
        return list(zip(sorts, [*sorts[1:], *sorts[-1:]], strict=True))

    def around(self) -> dict[Pair, Floats]:
        """By sorts of a call and the next: times in the call, and from its end until the next begins (or since)."""
        found = defaultdict(list)
        for pair, in_call_s, after_s in chain(self._followed(), self._overtaken()):
            found[pair].append((in_call_s, after_s))
        return {pair: np.array(times_s).T for pair, times_s in found.items() if len(times_s) >= FEW}

    def _followed(self) -> Iterator[tuple[Pair, float, float]]:
        """Calls whose end is followed by the begin of another."""
        places = np.flatnonzero(self._before_own)
        late_s = self._order[2][places] / 1e9
        times_s = self._gaps_s[places] + late_s, self._gaps_s[places + 1] - late_s
        return zip([self._pairs[place] for place in places.tolist()], *(each.tolist() for each in times_s), strict=True)

    def _overtaken(self) -> Iterator[tuple[Pair, float, float]]:
        """Calls during which the rank begins another."""
        calls = np.sort(self.calls.rows[self._rows], order="began_ns")
        sorts = _sorts_of(calls)
        in_call_ns, until_next_ns = (calls["ended_ns"] - calls["began_ns"])[:-1], np.diff(calls["began_ns"])
        for place in np.flatnonzero(in_call_ns > until_next_ns + LATE_NS).tolist():
            in_call_s, until_next_s = in_call_ns[place] / 1e9, until_next_ns[place] / 1e9
            yield (sorts[place], sorts[place + 1]), in_call_s, until_next_s - in_call_s

    def account(self, anchor: Anchor, worked_through: frozenset[Pair]) -> TimeAccount | None:
        """The account per iteration; None if there is no complete iteration."""
        rows = self.calls.logs[self.place].calls
        marks = np.sort(rows[(tokens_of(rows) == anchor).all(axis=1)], order="began_ns")
        if len(marks) < 2:
            return None
        cuts = marks["began_ns"]
        return TimeAccount(marks["number"][:-1], np.diff(cuts) / 1e9, *self._parts_s(cuts, worked_through))

    def _parts_s(self, cuts: Ints, worked_through: frozenset[Pair]) -> Floats:
        """Own work, waiting and transfer, by iteration."""
        events, moments, _ = self._order
        through = np.array([pair in worked_through for pair in self._pairs])
        is_own = ~self._is_end | (self._before_own & through)
        of_end_s = np.nan_to_num(self.calls.transfer_s[self.calls.instance[np.where(events < 0, -1 - events, 0)]])
        moved_s = np.where(is_own, 0.0, np.minimum(self._gaps_s, of_end_s))
        own_s = np.where(is_own, self._gaps_s, 0.0)
        iteration = np.searchsorted(cuts, moments, side="left") - 1
        inside = (iteration >= 0) & (iteration < len(cuts) - 1)
        parts_s = (own_s, self._gaps_s - own_s - moved_s, moved_s)
        return np.array([np.bincount(iteration[inside], part[inside], len(cuts) - 1) for part in parts_s])


def _sorts_of(calls: npt.NDArray[np.void]) -> list[tuple[int, int]]:
    return list(zip(calls["operation"].tolist(), calls["size_bytes"].tolist(), strict=True))


def _spread(values: Floats) -> float:
    """Robust standard deviation, from the interquartile range."""
    return float(np.subtract(*np.quantile(values, (0.75, 0.25)))) / 1.35


def overlapped_pairs(timelines: Iterable[RankTimeline]) -> frozenset[Pair]:
    """Pairs of call sorts between which ranks work all the time; decided over all ranks."""
    seen: dict[tuple[Pair, int], list[Floats]] = defaultdict(list)
    for timeline in timelines:
        for pair, times_s in timeline.around().items():
            seen[pair, timeline.rank].append(times_s)
    sums: dict[Pair, Floats] = defaultdict(lambda: np.zeros(2))
    for (pair, _), windows in seen.items():
        sums[pair] += sum(map(_spreads, windows)) + sum(map(_shifts, windows, windows[1:]))
    return frozenset(pair for pair, (whole, after) in sums.items() if whole < CLEARLY * after)


def _spreads(times_s: Floats) -> Floats:
    """Spread of the time until the next call begins, including the call and from its end."""
    in_call_s, after_s = times_s
    return np.array([_spread(in_call_s + after_s), _spread(after_s)])


def _shifts(one_s: Floats, other_s: Floats) -> Floats:
    """The same between two windows, limited to the shift of the time in the call: work may have shifted, too."""
    in_call_s, after_s = np.median(one_s, axis=1) - np.median(other_s, axis=1)
    shifts: Floats = np.minimum(np.abs([in_call_s + after_s, after_s]), abs(in_call_s))
    return shifts


# A window of calls of all ranks, with the account of every rank, and findings from comparing two windows --------------

LEAST_SHARE = 0.05  # share of an iteration; smaller findings are not reported
LEAST_RATIO = 1.05


class RankedSuspect(NamedTuple):
    """A suspect, and its cost per iteration."""

    excess_s: float
    suspect: Suspect


@dataclass(frozen=True)
class CallWindow:
    """Calls of a period, and the accounts of ranks that have one."""

    calls: MatchedCalls | None
    accounts: Mapping[int, TimeAccount]

    @property
    def iteration_s(self) -> float:
        """Median iteration time over ranks."""
        return float(np.median([account.iteration_s for account in self.accounts.values()]))

    @property
    def num_iterations(self) -> int:
        """Number of iterations of the rank that has most."""
        return max(len(account.iterations_s) for account in self.accounts.values())


def windows_of(logs: Sequence[CallLog], before: Sequence[CallLog]) -> tuple[CallWindow, CallWindow]:
    """The windows of these logs, with common anchors; ranks in which nothing marks iterations are left out."""
    anchors = _anchors(logs, before)
    usable = [[log for log in each if log.rank in anchors and len(log.calls)] for each in (logs, before)]
    calls = [MatchedCalls.of(each) if each else None for each in usable]
    timelines = [
        [] if each is None else [RankTimeline(each, place) for place in range(len(each.logs))] for each in calls
    ]
    through = overlapped_pairs(chain.from_iterable(timelines))
    accounts = [{line.rank: line.account(anchors[line.rank], through) for line in lines} for lines in timelines]
    known = [{rank: account for rank, account in each.items() if account is not None} for each in accounts]
    return CallWindow(calls[0], known[0]), CallWindow(calls[1], known[1])


# Very many ranks: those that can be the cause, and some to compare them with -----------------------------------------
#
# A slow rank waits less in its calls than the others, and behind a slow link ranks wait more. So where ranks are many,
# only those are looked at closely whose time in calls differs most, with the peers of their messages.

MOST_RANKS, NUM_EXTREME = 96, 24


def screened(logs: Sequence[CallLog], before: Sequence[CallLog]) -> tuple[Sequence[CallLog], Sequence[CallLog]]:
    """The logs of at most about a hundred ranks, from both windows."""
    if len(logs) <= MOST_RANKS:
        return logs, before
    usual_s = {log.rank: _in_calls_s(log) for log in before}
    more_s = np.array([_in_calls_s(log) - usual_s.get(log.rank, 0.0) for log in logs])
    order = np.argsort(more_s, kind="stable")
    others = order[NUM_EXTREME:-NUM_EXTREME]
    chosen = {*order[:NUM_EXTREME].tolist(), *order[-NUM_EXTREME:].tolist()}
    kept = {logs[place].rank for place in (*chosen, *others[:: -(-len(others) // NUM_EXTREME)].tolist())}
    near = {int(peer) for place in sorted(chosen) for peer in np.unique(logs[place].calls["peer"]) if peer >= 0}
    kept |= set(sorted(near - kept)[: MOST_RANKS - len(kept)])
    return [log for log in logs if log.rank in kept], [log for log in before if log.rank in kept]


def _in_calls_s(log: CallLog) -> float:
    """Mean time in a call whose end is known."""
    lasts_ns = (log.calls["ended_ns"] - log.calls["began_ns"])[log.calls["ended_ns"] > 0]
    return float(lasts_ns.sum()) / max(1, len(lasts_ns)) / 1e9


def _anchors(logs: Sequence[CallLog], before: Sequence[CallLog]) -> dict[int, Anchor]:
    """By rank, the call that marks its iterations in both windows together."""
    earlier = {log.rank: log.calls for log in before}
    rows = {log.rank: np.concatenate([earlier.get(log.rank, log.calls[:0]), log.calls]) for log in logs}
    return agreed_anchors(rows)
