"""Communication log of one rank: its collective calls and point-to-point messages.

Clocks of ranks are never compared. Calls of different ranks are matched by process group and sequence number within
it, which every rank counts independently; only durations are comparable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from takeup.errors import BadInput

CALL = np.dtype(
    [
        ("operation", np.int16),
        ("peer", np.int32),  # the other rank of a message, -1 for a collective call
        ("group", np.int64),
        ("number", np.int64),  # sequence number per rank and group and, for messages, per peer
        ("size_bytes", np.int64),
        ("began_ns", np.int64),
        ("ended_ns", np.int64),  # 0 while in flight, or where the end cannot be observed
    ]
)


class Operation(IntEnum):
    """Kind of communication."""

    ALL_REDUCE = 1
    BROADCAST = 2
    ALL_GATHER = 3
    REDUCE_SCATTER = 4
    ALL_TO_ALL = 5
    REDUCE = 6
    GATHER = 7
    SCATTER = 8
    BARRIER = 9
    SEND = 10
    RECEIVE = 11


@dataclass(frozen=True, slots=True)
class CallLog:
    """The calls of one rank in the order in which they began, and the ranks of each group."""

    rank: int
    calls: npt.NDArray[np.void]
    groups: Mapping[int, tuple[int, ...]]

    def __post_init__(self) -> None:
        if self.calls.dtype != CALL:
            raise BadInput(f"the log of rank {self.rank} holds {self.calls.dtype}, expected {CALL}")
        unknown = set(np.unique(self.calls["group"]).tolist()) - set(self.groups)
        if unknown:
            raise BadInput(f"the log of rank {self.rank} names group {min(unknown)}, whose ranks are not given")
