"""Calls of all ranks, matched with each other, and the call that marks iterations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Bools, Floats, Ints
from takeup.training.stragglers.contract import STEP_GROUP, CallLog, Operation

# Where iterations begin in a log of calls that does not mark them -----------------------------------------------------
#
# A rank calls the same collectives in every iteration, and occasionally others: to log, to evaluate, to save.
# `find_marker` looks for the calls that occur once per iteration and takes the most regular as the clock; calls in
# between cannot shift it.

LEAST_ITERATIONS = 5
TOLERANCE_CALLS, TOLERANCE_SHARE = 2, 0.05  # tolerance for a count to be a multiple
LEAST_SHARE = 0.6  # minimum share of the calls that must be explained
WORSE, WORSE_IF_STEADY = 0.1, 0.2  # tolerance below the best share: occasional calls have a (longer) period, too
STEADY = 0.6


@dataclass(frozen=True, slots=True)
class IterationMarker:
    """The call that marks iterations, and how many were seen."""

    token: int
    num_iterations: int


def find_marker(tokens: Ints) -> IterationMarker | None:
    """The clock of a log in which each sort of call (operation, size, group, peer) is a number; None if none fits.

    The number of iterations is the largest of which the counts of calls are multiples, for most calls. So leave
    out calls made per micro-batch or layer (messages of a pipeline, calls of tensor parallelism): by counts alone
    a micro-batch cannot be told from an iteration.
    """
    kinds, counts = np.unique(tokens, return_counts=True)
    numbers = [number for number in sorted(set(counts.tolist()), reverse=True) if number >= LEAST_ITERATIONS]
    shares = {number: float(counts[_near_multiples(counts, number)].sum() / len(tokens)) for number in numbers}
    best = max(shares.values(), default=0.0)
    for number in numbers:
        once = kinds[np.abs(counts - number) <= _tolerance(number)].tolist()
        token = max(once, key=lambda token: _steadiness(tokens, token))
        worse = WORSE_IF_STEADY if _steadiness(tokens, token) >= STEADY else WORSE
        if shares[number] >= max(LEAST_SHARE, best - worse):
            return IterationMarker(token, number)
    return None


def _near_multiples(counts: Ints, num_iterations: int) -> npt.NDArray[np.bool_]:
    times = np.maximum(1, np.rint(counts / num_iterations))
    near: npt.NDArray[np.bool_] = np.abs(counts - times * num_iterations) <= times * _tolerance(num_iterations)
    return near


def _tolerance(num_iterations: int) -> float:
    """Logs begin and end in the middle of an iteration; but a tolerance of two in five would match anything."""
    return min(max(TOLERANCE_CALLS, TOLERANCE_SHARE * num_iterations), num_iterations / 4)


def _steadiness(tokens: Ints, token: int) -> float:
    """Share of intervals between consecutive occurrences that contain the most common number of calls."""
    gaps = np.diff(np.flatnonzero(tokens == token))
    return float(np.bincount(gaps).max() / len(gaps)) if len(gaps) else 0.0


# Calls of all ranks, matched: participants of each call, its transfer time, and the waiting time of each rank ---------
#
# Among the participants of a call, the last to arrive does not wait, so the shortest duration is the transfer and the
# excess of the others is waiting. Calls are matched by group and sequence number; clocks are never compared.

Anchor = tuple[int, int, int, int]
STEP: Anchor = (int(Operation.STEP), 0, STEP_GROUP, -1)
FEW_STEPS = 3  # more of them mark iterations
CallKind = tuple[int, ...]
NO_PEER = -1
MANY_ROWS = 5000  # after this many calls a message may mark iterations, though it may occur more often


@dataclass(frozen=True)
class MatchedCalls:
    """The calls of all ranks as columns, in the order of the logs.

    Rows with the same `instance` are the same call on different ranks. Those with the same `kind` move as much
    between the same ranks: its columns are group, sender, receiver (-1 if none), operation, bytes.
    """

    logs: tuple[CallLog, ...]
    rows: npt.NDArray[np.void]
    place: Ints  # index of the log in `logs`
    instance: Ints
    kind: Ints
    kinds: Ints

    @classmethod
    def of(cls, logs: Sequence[CallLog]) -> MatchedCalls:
        """Match the calls of these logs, one log per rank."""
        calls = [log.calls[log.calls["operation"] != Operation.STEP] for log in logs]
        rows, place = np.concatenate(calls), np.repeat(np.arange(len(logs)), [len(each) for each in calls])
        sender, receiver = _ends(rows, np.array([log.rank for log in logs])[place])
        _, instance = np.unique(_columns(rows["group"], sender, receiver, rows["number"]), axis=0, return_inverse=True)
        operation = np.where(sender == NO_PEER, rows["operation"], Operation.SEND)
        columns = _columns(rows["group"], sender, receiver, operation, rows["size_bytes"])
        kinds, kind = np.unique(columns, axis=0, return_inverse=True)
        return cls(tuple(logs), rows, place, instance.reshape(-1), kind.reshape(-1), kinds)

    @cached_property
    def has_ended(self) -> Bools:
        """Whether the end of the call was seen."""
        ended: Bools = (self.rows["ended_ns"] > 0) & (self.rows["ended_ns"] >= self.rows["began_ns"])
        return ended

    @cached_property
    def lasts_s(self) -> Floats:
        """Duration of calls, NaN if unknown."""
        lasts: Floats = np.where(self.has_ended, (self.rows["ended_ns"] - self.rows["began_ns"]) / 1e9, np.nan)
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
        return int(self.instance.max(initial=-1)) + 1

    @cached_property
    def instance_kind(self) -> Ints:
        kinds = np.zeros(self.num_instances, np.int64)
        kinds[self.instance] = self.kind
        return kinds

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """By kind: the participating ranks, in group order."""
        groups = {group: ranks for log in self.logs for group, ranks in log.groups.items()}
        return tuple(
            (sender, receiver) if sender != NO_PEER else groups[group]
            for group, sender, receiver in self.kinds[:, :3].tolist()
        )

    def key(self, number: int) -> CallKind:
        """Identifier of a kind that is stable across windows."""
        return tuple(self.kinds[number].tolist())

    @property
    def _expected(self) -> tuple[Ints, Ints]:
        """By instance: the number of logs that should contain it, and the number of participating ranks."""
        present = {log.rank for log in self.logs}
        seen = np.array([sum(rank in present for rank in ranks) for ranks in self.members], np.int64)
        size = np.array([len(ranks) for ranks in self.members], np.int64)
        return seen[self.instance_kind], size[self.instance_kind]


def _ends(rows: npt.NDArray[np.void], rank: Ints) -> tuple[Ints, Ints]:
    """Sender and receiver of each message; -1 for other calls."""
    sends, receives = (rows["operation"] == each for each in (Operation.SEND, Operation.RECEIVE))
    sender = np.where(sends, rank, np.where(receives, rows["peer"], NO_PEER))
    receiver = np.where(receives, rank, np.where(sends, rows["peer"], NO_PEER))
    return sender, receiver


def _columns(*columns: npt.NDArray[np.int64]) -> Ints:
    return np.stack([column.astype(np.int64) for column in columns], axis=1)


# Iterations -----------------------------------------------------------------------------------------------------------


def tokens_of(rows: npt.NDArray[np.void]) -> Ints:
    """Operation, bytes, group and peer of every call: calls equal in these are of one sort."""
    return _columns(rows["operation"], rows["size_bytes"], rows["group"], rows["peer"])


def anchor_of(rows: npt.NDArray[np.void]) -> Anchor | None:
    """What marks iterations of a rank: optimizer steps, else a collective, else a message after many calls."""
    is_step, is_message = rows["operation"] == Operation.STEP, rows["peer"] != NO_PEER
    if np.count_nonzero(is_step) > FEW_STEPS:
        return STEP
    found = _anchor(rows[~is_message & ~is_step])
    return _anchor(rows[is_message]) if found is None and len(rows) >= MANY_ROWS else found


def _anchor(rows: npt.NDArray[np.void]) -> Anchor | None:
    if not len(rows):
        return None
    sorts, numbers = np.unique(tokens_of(rows), axis=0, return_inverse=True)
    clock = find_marker(numbers.reshape(-1))
    return None if clock is None else (*map(int, sorts[clock.token]),)  # type: ignore[return-value]


def agreed_anchors(rows: Mapping[int, npt.NDArray[np.void]]) -> dict[int, Anchor]:
    """By rank, the call that marks its iterations; the same for as many ranks as have it."""
    found = {rank: anchor_of(calls) for rank, calls in rows.items()}
    votes = [anchor for anchor, _ in Counter(anchor for anchor in found.values() if anchor is not None).most_common()]
    return {
        rank: next(each for each in [*votes, anchor] if _is_as_common(rows[rank], each, anchor))
        for rank, anchor in found.items()
        if anchor is not None
    }


def _is_as_common(rows: npt.NDArray[np.void], one: Anchor, other: Anchor) -> bool:
    """Whether one occurs about as often as the other."""
    tokens = tokens_of(rows)
    first, second = (int((tokens == each).all(axis=1).sum()) for each in (one, other))
    return abs(first - second) <= max(2, 0.05 * second)
