"""Where the time of every rank goes: its own work, waiting for others, and messages on their way.

How it works: of those who take part in a call, the last to come does not wait, so the shortest duration is the transfer
and what others take longer is waiting. A rank that is not waiting is working: the time before it begins a call is its
own, the time before a call ends was spent on that call. Calls may overlap. All are durations on one clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from takeup.training.model.calls import CallLog, Operation
from takeup.training.policies.stragglers.iterations import anchored

__all__ = ["Account", "Calls", "account_of", "anchor_of", "tokens_of"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Anchor = tuple[int, int, int, int]
SECOND = 1e9  # nanoseconds
NOBODY = -1


@dataclass(frozen=True)
class Calls:
    """The calls of all ranks as columns, in the order of the logs.

    Calls with the same `instance` are one and the same of different ranks. Those with the same `kind` move as much
    between the same ranks: its columns are group, sender, receiver (or nobody), operation, bytes.
    """

    logs: tuple[CallLog, ...]
    rows: npt.NDArray[np.void]
    place: Ints  # of the log in `logs`
    instance: Ints
    kind: Ints
    kinds: Ints

    @classmethod
    def of(cls, logs: Sequence[CallLog]) -> Calls:
        """Match the calls of these logs, one of each rank."""
        rows = np.concatenate([log.calls for log in logs])
        place = np.repeat(np.arange(len(logs)), [len(log.calls) for log in logs])
        sender, receiver = _ends(rows, np.array([log.rank for log in logs])[place])
        _, instance = np.unique(_columns(rows["group"], sender, receiver, rows["number"]), axis=0, return_inverse=True)
        operation = np.where(sender == NOBODY, rows["operation"], Operation.SEND)
        columns = _columns(rows["group"], sender, receiver, operation, rows["size_bytes"])
        kinds, kind = np.unique(columns, axis=0, return_inverse=True)
        return cls(tuple(logs), rows, place, instance.reshape(-1), kind.reshape(-1), kinds)

    @cached_property
    def has_ended(self) -> Flags:
        """Whether the end of the call was seen."""
        ended: Flags = (self.rows["ended_ns"] > 0) & (self.rows["ended_ns"] >= self.rows["began_ns"])
        return ended

    @cached_property
    def lasts_s(self) -> Floats:
        """How long calls took, NaN if not known."""
        lasts: Floats = np.where(self.has_ended, (self.rows["ended_ns"] - self.rows["began_ns"]) / SECOND, np.nan)
        return lasts

    @cached_property
    def transfer_s(self) -> Floats:
        """By instance: the shortest duration, NaN if one is missing that could have been seen."""
        shortest = np.full(self.num_instances, np.inf)
        np.fmin.at(shortest, self.instance, self.lasts_s)
        num_seen = np.bincount(self.instance, self.has_ended, self.num_instances)
        wanted, size = self._expected
        alone = (num_seen < 2) & (size > 1)
        known: Floats = np.where((num_seen < wanted) | alone, np.nan, shortest)
        return known

    @property
    def num_instances(self) -> int:
        """How many different calls there are."""
        return int(self.instance.max(initial=-1)) + 1

    @cached_property
    def instance_kind(self) -> Ints:
        """By instance."""
        kinds = np.zeros(self.num_instances, np.int64)
        kinds[self.instance] = self.kind
        return kinds

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """By kind: the ranks that take part, in the order of their group."""
        groups = {group: ranks for log in self.logs for group, ranks in log.groups.items()}
        return tuple(
            (sender, receiver) if sender != NOBODY else groups[group]
            for group, sender, receiver in self.kinds[:, :3].tolist()
        )

    @property
    def _expected(self) -> tuple[Ints, Ints]:
        """By instance: how many logs should have it, and how many ranks take part."""
        present = {log.rank for log in self.logs}
        seen = np.array([sum(rank in present for rank in ranks) for ranks in self.members], np.int64)
        size = np.array([len(ranks) for ranks in self.members], np.int64)
        return seen[self.instance_kind], size[self.instance_kind]


def _ends(rows: npt.NDArray[np.void], rank: Ints) -> tuple[Ints, Ints]:
    """Who sends and who receives, where it is a message."""
    sends, receives = (rows["operation"] == each for each in (Operation.SEND, Operation.RECEIVE))
    sender = np.where(sends, rank, np.where(receives, rows["peer"], NOBODY))
    receiver = np.where(receives, rank, np.where(sends, rows["peer"], NOBODY))
    return sender, receiver


def _columns(*columns: npt.NDArray[np.int64]) -> Ints:
    return np.stack([column.astype(np.int64) for column in columns], axis=1)


# Iterations -----------------------------------------------------------------------------------------------------------


def tokens_of(rows: npt.NDArray[np.void]) -> Ints:
    """Operation, bytes, group and peer of every call: calls that are the same in this are of one sort."""
    return _columns(rows["operation"], rows["size_bytes"], rows["group"], rows["peer"])


def anchor_of(rows: npt.NDArray[np.void]) -> Anchor | None:
    """The call that marks iterations of a rank; a collective one if there are any, as messages come more often."""
    collective = rows["peer"] == NOBODY
    columns = tokens_of(rows[collective] if collective.any() else rows)
    if not len(columns):
        return None
    sorts, numbers = np.unique(columns, axis=0, return_inverse=True)
    clock = anchored(numbers.reshape(-1))
    return None if clock is None else (*map(int, sorts[clock.token]),)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Account:
    """What an iteration of a rank consists of: medians, in seconds."""

    iteration_s: float
    own_s: float
    wait_s: float
    transfer_s: float
    num_iterations: int


def account_of(calls: Calls, place: int, anchor: Anchor) -> Account | None:
    """The account of one log; none if it holds no whole iteration."""
    chosen = calls.place == place
    rows = calls.rows[chosen]
    cuts = np.sort(rows["began_ns"][(tokens_of(rows) == anchor).all(axis=1)])
    if len(cuts) < 2:
        return None
    parts = _parts(rows, calls.has_ended[chosen], calls.transfer_s[calls.instance[chosen]], cuts)
    return Account(float(np.median(np.diff(cuts))) / SECOND, *np.median(parts, axis=1).tolist(), len(cuts) - 1)


def _parts(rows: npt.NDArray[np.void], has_ended: Flags, transfer_s: Floats, cuts: Ints) -> Floats:
    """Own work, waiting and transfer, by iteration."""
    moments = np.concatenate([rows["ended_ns"][has_ended], rows["began_ns"]])
    is_end = np.repeat([True, False], [int(has_ended.sum()), len(rows)])
    most_s = np.concatenate([np.nan_to_num(transfer_s[has_ended]), np.zeros(len(rows))])
    order = np.argsort(moments, kind="stable")
    gap_s = np.diff(moments[order], prepend=moments[order[0]]) / SECOND
    own_s = np.where(is_end[order], 0.0, gap_s)
    moved_s = np.minimum(gap_s - own_s, most_s[order])
    iteration = np.searchsorted(cuts, moments[order], side="left") - 1
    inside = (iteration >= 0) & (iteration < len(cuts) - 1)
    parts_s = (own_s, gap_s - own_s - moved_s, moved_s)
    return np.array([np.bincount(iteration[inside], part[inside], len(cuts) - 1) for part in parts_s])
