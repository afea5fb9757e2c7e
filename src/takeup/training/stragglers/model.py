"""Data types of straggler detection: the communication log of a rank, slowdown events and their suspects."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

from takeup.errors import BadInput

# Communication log of one rank: its collective calls and point-to-point messages --------------------------------------
#
# Clocks of ranks are never compared. Calls of different ranks are matched by process group and sequence number within
# it, which every rank counts independently; only durations are comparable.

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


# A detected slowdown of a job: since when, by how much, and which rank or link causes it ------------------------------

MAX_FACTOR_SHOWN = 100  # larger factors come from a baseline near zero


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank that computes slowly, ranks between which messages are slow, or ranks whose machine does other work.

    It takes `factor` times as long as it should. In `share_late` of the calls all others waited for this rank, or the
    messages over this link took too long. A link has two ranks if it is known, otherwise it is one in this group.
    Its total excess per iteration is `excess_s`, where known; `least_s` is the excess if every message were delayed
    by as much as the fastest ones over this link.
    """

    kind: Literal["compute", "link", "host"]
    ranks: tuple[int, ...]
    factor: float
    share_late: float
    reason: str
    excess_s: float = 0.0
    least_s: float = 0.0

    def __str__(self) -> str:
        if self.kind == "host":
            who = f"rank {self.ranks[0]} waits" if len(self.ranks) == 1 else f"ranks {_listed(self.ranks)} wait"
            return f"{who} for cores that do other work"
        what = "the link between ranks" if len(self.ranks) == 2 else "a link among ranks"
        where = f"rank {self.ranks[0]} computes" if self.kind == "compute" else f"{what} {_listed(self.ranks)} is"
        times = f"{self.factor:.2f}x" if self.factor < MAX_FACTOR_SHOWN else f"more than {MAX_FACTOR_SHOWN}x"
        return f"{where} {times} slower"


@dataclass(frozen=True, slots=True)
class SlowdownEvent:
    """Iterations became slower, or recovered (`is_slow` is false): from `began` on, known since `declared`.

    Both are iteration numbers since the watch began. `factor` compares iteration times after and before; `lost_share`
    is the share of the healthy throughput that is lost from then on.
    """

    began: int
    declared: int
    is_slow: bool
    factor: float
    lost_share: float
    suspects: tuple[Suspect, ...] = ()
    before_s: float = 0.0
    after_s: float = 0.0

    def sentence(self) -> str:
        """The event as a sentence."""
        if not self.is_slow:
            return f"since iteration {self.began}, iterations have recovered: {self._times()}"
        cost = f"costing {self.lost_share:.0%} of the throughput ({self._times()})"
        return f"since iteration {self.began}, {self._who()}, {cost}"

    def _who(self) -> str:
        return " and ".join(map(str, self.suspects)) or "all ranks are slower, or something they share"

    def _times(self) -> str:
        return f"{1e3 * self.before_s:.4g} ms before, {1e3 * self.after_s:.4g} ms now"


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"
