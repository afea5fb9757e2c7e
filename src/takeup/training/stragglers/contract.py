"""The interface of straggler detection (FALCON): call logs in, slowdown events and remedies out. Open this first.

A `Detector` consumes the calls of all ranks and returns events; a `RemedyPolicy` receives events and the state of the
job, and returns what to report and what to do. Both are pure: they read no clock, file or process, so a recorded run
can be replayed. `watch/` connects them to a job.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol

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
    STEP = 12  # not a call: the optimizer has made a step, which ends an iteration


STEP_GROUP = 0  # steps are of no process group


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
    """A rank that computes slowly or pauses, ranks between which messages are slow, or ranks of a busy machine.

    It takes `factor` times as long as it should. In `share_late` of the calls all others waited for this rank, or the
    messages over this link took too long. A link has two ranks if it is known, otherwise it is one in this group.
    Its total excess per iteration is `excess_s`, where known; `least_s` is the excess if every message were delayed
    by as much as the fastest ones over this link.
    """

    kind: Literal["compute", "pause", "link", "host"]
    ranks: tuple[int, ...]
    factor: float
    share_late: float
    reason: str
    excess_s: float = 0.0
    least_s: float = 0.0
    cause: str = ""  # where it spends its excess, if known: "in its data loader"

    def __str__(self) -> str:
        if self.kind == "host":
            ranks = f"rank {self.ranks[0]} waits" if len(self.ranks) == 1 else f"ranks {_listed(self.ranks)} wait"
            return f"{ranks} for cores that do other work"
        if self.kind == "pause":
            ranks = f"rank {self.ranks[0]} pauses" if len(self.ranks) == 1 else "all ranks pause together"
            return f"{ranks}{self._cause} for {self.reason}"
        what = "the link between ranks" if len(self.ranks) == 2 else "a link among ranks"
        where = f"rank {self.ranks[0]} computes" if self.kind == "compute" else f"{what} {_listed(self.ranks)} is"
        times = f"{self.factor:.2f}x" if self.factor < MAX_FACTOR_SHOWN else f"more than {MAX_FACTOR_SHOWN}x"
        return f"{where} {times} slower{self._cause}"

    @property
    def _cause(self) -> str:
        return f" {self.cause}" if self.cause else ""


@dataclass(frozen=True, slots=True)
class SlowdownEvent:
    """Iterations became slower, or recovered (`is_slow` is false): from `began` on, known since `declared`.

    Both are iteration numbers since the watch began. `factor` compares iteration times after and before; `lost_share`
    is the share of the healthy throughput that is lost from then on. If `is_standing`, nothing has changed: ranks were
    compared with others in their role, and `before_s` is the time without their excess.
    """

    began: int
    declared: int
    is_slow: bool
    factor: float
    lost_share: float
    suspects: tuple[Suspect, ...] = ()
    before_s: float = 0.0
    after_s: float = 0.0
    is_standing: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether all ranks pause together."""
        return any(suspect.kind == "pause" and len(suspect.ranks) > 1 for suspect in self.suspects)

    def sentence(self) -> str:
        if not self.is_slow:
            return f"since iteration {self.began}, iterations have recovered: {self._times()}"
        cost = f"costing {self.lost_share:.0%} of the throughput ({self._times()})"
        what = " and ".join(map(str, self.suspects)) or "all ranks are slower, or something they share"
        return f"since iteration {self.began}, {what}, {cost}"

    def _times(self) -> str:
        if self.is_standing:
            return f"{1e3 * self.after_s:.4g} ms, {1e3 * self.before_s:.4g} ms without, compared with ranks in its role"
        return f"{1e3 * self.before_s:.4g} ms before, {1e3 * self.after_s:.4g} ms now"


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"


class Detector(Protocol):
    """Consumes calls and reports what became slow."""

    num_iterations: int
    iterations_s: deque[float]  # times of the latest iterations

    @property
    def anchors(self) -> Mapping[int, tuple[int, int, int]]:
        """By rank, the call that marks iterations, as (operation, group, size)."""

    def see(self, logs: Sequence[CallLog]) -> list[SlowdownEvent]:
        """Process calls and return new events."""

    def rebase(self) -> None:
        """Restart the baseline from here."""

    def logs(self) -> list[CallLog]:
        """The latest calls."""


# Remedies: what is known of the job, what is done, and what is reported -----------------------------------------------

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Result of the tests in a pause: slowdown factors relative to the median, of slow ranks and links.

    `problem` says why there was no test. `seconds` is the length of the pause.
    """

    slow_ranks: Mapping[int, float]
    slow_links: Mapping[Pair, float]
    seconds: float = 0.0
    problem: str = ""

    @property
    def has_vanished(self) -> bool:
        """Whether tests ran and found nothing slow."""
        return not (self.problem or self.slow_ranks or self.slow_links)

    def sentence(self) -> str:
        if self.problem:
            return f"no pause: {self.problem}"
        found = [f"rank {rank} computes {factor:.2f}x slower" for rank, factor in self.slow_ranks.items()]
        found += [f"the link {one}-{other} is {factor:.2f}x slower" for (one, other), factor in self.slow_links.items()]
        what = " and ".join(found) or "it has vanished, all ranks and links are alike"
        return f"tested in a pause of {self.seconds:.2f} s: {what}"


@dataclass(frozen=True, slots=True)
class JobState:
    """What a job reports at `now_s`: its iterations, its batch shares, and what it can do."""

    now_s: float
    num_ranks: int
    num_iterations: int
    latest_s: tuple[float, ...] = ()  # times of the latest iterations
    num_microbatches: int = 0  # of a batch whose shares can be changed; 0 if they cannot
    microbatch_s: tuple[float, ...] = ()  # time of a micro-batch on every rank
    shares_in_use: frozenset[int] = frozenset()  # versions of the shares that ranks use
    can_restart: bool = False  # every rank can save, and its launcher would restart it
    can_adapt: bool = False  # an adaptive pipeline
    adapted: frozenset[int] = frozenset()  # numbers of the requests to adapt that its ranks have handled
    num_schedule_changes: int = 0
    traffic: Mapping[Pair, int] | None = None  # bytes between ranks; None if ranks cannot be swapped


@dataclass(frozen=True, slots=True)
class SetShares:
    """Give every rank this many micro-batches of a batch; with `restart`, save and exit before the next one."""

    version: int
    counts: tuple[int, ...]
    restart: bool = False


@dataclass(frozen=True, slots=True)
class AdaptSchedule:
    """Ask the pipeline to measure its links and replan."""

    number: int


@dataclass(frozen=True, slots=True)
class SetRankOrder:
    """After the restart, the process to which the launcher gives rank n takes rank `order[n]`."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResetBaseline:
    """Compare later iterations with those from now on."""


RemedyAction = SetShares | AdaptSchedule | SetRankOrder | ResetBaseline


@dataclass(frozen=True, slots=True)
class Finding:
    """An event, the result of tests in a pause, and the action taken, in words and as commands."""

    number: int
    event: SlowdownEvent
    action: str
    confirmed: Confirmation | None = None
    actions: tuple[RemedyAction, ...] = ()

    def sentence(self) -> str:
        tested = "" if self.confirmed is None else f"; {self.confirmed.sentence()}"
        return f"{self.event.sentence()}{tested}; action: {self.action}"


class RemedyPolicy(Protocol):
    """Decides what to do about slowdowns; what it returns must be carried out."""

    @property
    def slow(self) -> tuple[Suspect, ...]:
        """What is slow now."""

    @property
    def lost_s(self) -> float:
        """Time lost to slowdowns so far, in seconds."""

    def on_event(self, event: SlowdownEvent, confirmed: Confirmation | None, job: JobState) -> Finding:
        """The remedy for a new event."""

    def on_progress(self, job: JobState) -> list[Finding]:
        """Remedies that have become due, and the outcome of earlier ones; call it after the events of every round."""

    def on_restart(self, now_s: float) -> list[Finding]:
        """Ranks have restarted; all that was known of them is void."""
