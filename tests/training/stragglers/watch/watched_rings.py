"""What tests of watching share: rings as ranks would write them, without ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from takeup.training.stragglers.contract import CallLog, Operation, SlowdownEvent, Suspect
from takeup.training.stragglers.locate.standing import RankStanding
from takeup.training.stragglers.watch.ring import HeaderWord, RingBuffer

GROUP = 77
ANCHOR = (int(Operation.ALL_REDUCE), GROUP, 64)


def new_ring(folder: Path, rank: int = 0, num_ranks: int = 1, pid: int = 1) -> RingBuffer:
    """The ring of a rank with one group of all ranks."""
    ring = RingBuffer(folder / f"{rank}-{pid}.ring", rank, num_ranks)
    ring.add_group(GROUP, rank, num_ranks)
    return ring


def add(ring: RingBuffer, number: int, *, ended: bool = True, peer: int = -1, skew_ns: int = 0) -> int:
    """One more call."""
    row = ring.begin(Operation.ALL_REDUCE, peer, GROUP, number, 64, 1_000 + 10 * number + skew_ns)
    if ended:
        ring.end(row, 1_005 + 10 * number + skew_ns)
    return row


def sharing(
    rings: Sequence[RingBuffer], num_microbatches: int, paces_ms: Sequence[float], *, can_restart: bool = False
) -> None:
    """Ranks whose scripts use Batches, and follow what they were last asked."""
    for ring, pace_ms in zip(rings, paces_ms, strict=True):
        ring.words[HeaderWord.NUM_MICROBATCHES] = num_microbatches
        ring.words[HeaderWord.MICROBATCH_NS] = round(1e6 * pace_ms)
        ring.words[HeaderWord.PLAN_IN_USE] = ring.words[HeaderWord.PLAN]
        ring.words[HeaderWord.CAN_RESTART] = can_restart


SLOW_RANK = SlowdownEvent(60, 66, True, 1.4, 0.29, (Suspect("compute", (1,), 1.5, 0.98, "it computes"),), 0.02, 0.028)
SLOW_LINK = SlowdownEvent(60, 66, True, 1.4, 0.29, (Suspect("link", (0, 1), 2.0, 0.98, "it carries"),), 0.02, 0.028)
RELIEF = SlowdownEvent(90, 95, False, 0.7, 0.0, (), 0.028, 0.02)


class Scripted:
    """Judges as it was told to."""

    def __init__(self, events: list[list[SlowdownEvent]]) -> None:
        self._events = events
        self.num_iterations = 0
        self.iterations_s: deque[float] = deque()
        self.latest_standings: list[RankStanding] = []
        self.num_rebased = 0
        self.seen: list[CallLog] = []

    @property
    def anchors(self) -> Mapping[int, tuple[int, int, int]]:
        """All ranks are known."""
        return {log.rank: ANCHOR for log in self.seen}

    def see(self, logs: Sequence[CallLog]) -> list[SlowdownEvent]:
        """What was planned for this round; every round is ten iterations of 28 ms."""
        self.seen = list(logs)
        self.num_iterations += 10
        self.iterations_s.extend([0.028] * 10)
        return self._events.pop(0) if self._events else []

    def rebase(self) -> None:
        """Count it."""
        self.num_rebased += 1

    def logs(self) -> list[CallLog]:
        """The latest."""
        return self.seen
