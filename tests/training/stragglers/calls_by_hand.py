"""Logs of calls written by hand, for tests: times in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from takeup.training.stragglers.contract import CALL, CallLog, Operation

MS = 10**6
GROUP = 7


class Call(NamedTuple):
    """One row; `ended` zero is unknown."""

    began: float
    ended: float
    number: int
    size: int = 1000
    operation: int = Operation.ALL_REDUCE
    peer: int = -1
    group: int = GROUP


def log_of(rank: int, calls: Sequence[Call], groups: Mapping[int, tuple[int, ...]], clock_ms: float = 1e6) -> CallLog:
    """The log of a rank whose clock shows this at zero."""
    rows = [(*_what(call), *(_ns(moment, clock_ms) for moment in (call.began, call.ended or None))) for call in calls]
    return CallLog(rank, np.array(rows, CALL), groups)


def _what(call: Call) -> tuple[int, int, int, int, int]:
    return call.operation, call.peer, call.group, call.number, call.size


def _ns(moment_ms: float | None, clock_ms: float) -> int:
    return 0 if moment_ms is None else int((moment_ms + clock_ms) * MS)


def blocking(works_ms: Sequence[float], others_ms: float, transfer_ms: float, num: int) -> list[Call]:
    """Iterations of a rank that works, calls and waits for others who work for so long."""
    calls, now = list[Call](), 0.0
    for iteration in range(num):
        began = now + works_ms[iteration % len(works_ms)]
        ended = max(began, now + others_ms) + transfer_ms
        calls.append(Call(began, ended, iteration))
        now = ended
    return calls
