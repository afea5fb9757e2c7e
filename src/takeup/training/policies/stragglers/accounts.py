"""Where the time of every rank goes: its own work, waiting for others, and messages on their way.

How it works: a rank that is not waiting is working. The time before it begins a call is its own; the time before a call
ends was spent on that call, unless the rank works on meanwhile. It does so if the time from the beginning of the call
to that of the next varies less than the time from its end to that of the next: what varies less is the work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from takeup.training.policies.stragglers.matched import Anchor, Calls, tokens_of

__all__ = ["Account", "Timeline", "worked_through"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Pair = tuple[tuple[int, int], tuple[int, int]]  # operation and bytes of a call and of the next
FEW = 4  # instances from which a spread is taken
CLEARLY = 0.85


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """What iterations of a rank consist of; one value for each, in seconds. `numbers` are those of their first call."""

    numbers: Ints
    iterations_s: Floats
    owns_s: Floats
    waits_s: Floats
    transfers_s: Floats

    @property
    def iteration_s(self) -> float:
        """The median."""
        return float(np.median(self.iterations_s))

    @property
    def own_s(self) -> float:
        """The median."""
        return float(np.median(self.owns_s))

    def medians(self) -> tuple[float, float, float, float]:
        """Of the whole iteration, own work, waiting and transfers."""
        parts = (self.iterations_s, self.owns_s, self.waits_s, self.transfers_s)
        whole_s, own_s, wait_s, transfer_s = (float(np.median(each)) for each in parts)
        return whole_s, own_s, wait_s, transfer_s


@dataclass(frozen=True)
class Timeline:
    """Beginnings and ends of the calls of one rank, in the order of time."""

    calls: Calls
    place: int

    @cached_property
    def _rows(self) -> Ints:
        return np.flatnonzero(self.calls.place == self.place)

    @cached_property
    def _order(self) -> tuple[Ints, Ints]:
        """Row and moment of every event; rows of ends are counted from the negative end, beginning with -1."""
        ended = self._rows[self.calls.has_ended[self._rows]]
        rows = np.concatenate([-1 - ended, self._rows])
        moments = np.concatenate([self.calls.rows["ended_ns"][ended], self.calls.rows["began_ns"][self._rows]])
        order = np.argsort(moments, kind="stable")  # ends before what begins at the same time
        return rows[order], moments[order]

    @cached_property
    def _is_end(self) -> Flags:
        return self._order[0] < 0

    @cached_property
    def _gaps_s(self) -> Floats:
        """From the event before."""
        moments = self._order[1]
        return np.diff(moments, prepend=moments[:1]) / 1e9

    @cached_property
    def _before_own(self) -> Flags:
        """Ends after which the next thing is that the rank begins a call."""
        flags: Flags = self._is_end & ~np.append(self._is_end[1:], True)
        return flags

    @cached_property
    def _pairs(self) -> list[Pair]:
        """By event: what is asked for and how much, here and by the next event."""
        rows, _ = self._order
        calls = self.calls.rows[np.where(rows < 0, -1 - rows, rows)]
        sorts = list(zip(calls["operation"].tolist(), calls["size_bytes"].tolist(), strict=True))
        return list(zip(sorts, [*sorts[1:], *sorts[-1:]], strict=True))

    def spreads(self) -> dict[Pair, tuple[float, float]]:
        """By sorts of a call and the next: spreads of the time until that begins, with the call and from its end."""
        places = defaultdict(list)
        for place in np.flatnonzero(self._before_own).tolist():
            places[self._pairs[place]].append(place)
        chosen = {pair: np.array(each) for pair, each in places.items() if len(each) >= FEW}
        return {
            pair: (_spread(self._gaps_s[each] + self._gaps_s[each + 1]), _spread(self._gaps_s[each + 1]))
            for pair, each in chosen.items()
        }

    def account(self, anchor: Anchor, worked_through: frozenset[Pair]) -> Account | None:
        """What iterations consist of; none if there is no whole one."""
        rows = self.calls.rows[self._rows]
        marks = np.sort(rows[(tokens_of(rows) == anchor).all(axis=1)], order="began_ns")
        if len(marks) < 2:
            return None
        cuts = marks["began_ns"]
        return Account(marks["number"][:-1], np.diff(cuts) / 1e9, *self._parts_s(cuts, worked_through))

    def _parts_s(self, cuts: Ints, worked_through: frozenset[Pair]) -> Floats:
        """Own work, waiting and transfer, by iteration."""
        events, moments = self._order
        through = np.array([pair in worked_through for pair in self._pairs])
        is_own = ~self._is_end | (self._before_own & through)
        of_end_s = np.nan_to_num(self.calls.transfer_s[self.calls.instance[np.where(events < 0, -1 - events, 0)]])
        moved_s = np.where(is_own, 0.0, np.minimum(self._gaps_s, of_end_s))
        own_s = np.where(is_own, self._gaps_s, 0.0)
        iteration = np.searchsorted(cuts, moments, side="left") - 1
        inside = (iteration >= 0) & (iteration < len(cuts) - 1)
        parts_s = (own_s, self._gaps_s - own_s - moved_s, moved_s)
        return np.array([np.bincount(iteration[inside], part[inside], len(cuts) - 1) for part in parts_s])


def _spread(values: Floats) -> float:
    """The standard deviation, from the middle half."""
    return float(np.subtract(*np.quantile(values, (0.75, 0.25)))) / 1.35


def worked_through(timelines: Iterable[Timeline]) -> frozenset[Pair]:
    """Sorts of calls, each with that of the next, between which ranks work all the time; judged over all ranks."""
    sums: dict[Pair, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for timeline in timelines:
        for pair, (whole, after) in timeline.spreads().items():
            sums[pair][0] += whole
            sums[pair][1] += after
    return frozenset(pair for pair, (whole, after) in sums.items() if whole < CLEARLY * after)
