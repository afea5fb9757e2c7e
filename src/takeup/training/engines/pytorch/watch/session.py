"""The loop beside a job: read what ranks wrote, ask who watches, act, and tell."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from takeup.training.engines.pytorch.watch.confirm import Confirmed, Pauses
from takeup.training.engines.pytorch.watch.gather import Gather
from takeup.training.engines.pytorch.watch.remedy import Divide, Schedules, Shares
from takeup.training.model.calls import CallLog
from takeup.training.model.slowdowns import Event, Suspect

__all__ = ["Finding", "Judge", "Session", "Settings"]

Pair = tuple[int, int]
NUM_TO_SETTLE = 8  # iterations after a change of shares, before the times of ranks tell of it


class Judge(Protocol):
    """Who sees calls, and says what became slow."""

    num_iterations: int
    iterations_s: deque[float]

    @property
    def anchors(self) -> Mapping[int, tuple[int, int, int]]:
        """By rank, the call that marks iterations."""

    def see(self, logs: Sequence[CallLog]) -> list[Event]:
        """Events that became known."""

    def rebase(self) -> None:
        """What follows is the new normal."""

    def logs(self) -> list[CallLog]:
        """The latest calls."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An event, what a pause has shown of it, and what was done."""

    number: int
    event: Event
    action: str
    confirmed: Confirmed | None = None

    def sentence(self) -> str:
        """All of it in words."""
        tested = "" if self.confirmed is None else f"; {self.confirmed.sentence()}"
        return f"{self.event.sentence()}{tested}; action: {self.action}"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a session may do: pause to confirm, change shares of batches, restart after so much loss."""

    confirm: bool = False
    rebalance: bool = True
    restart_after_s: float | None = None


@dataclass(slots=True)
class Session:
    """A job that is watched; `look` does one round."""

    folder: Path
    judge: Callable[[], Judge]
    divide: Divide
    passes: Callable[[int], Sequence[Sequence[Pair]]]
    settings: Settings = Settings()
    far: Mapping[int, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    lost_s: float = 0.0
    slow: tuple[Suspect, ...] = ()
    _gather: Gather = field(init=False)
    _watcher: Judge = field(init=False)
    _shares: Shares = field(init=False)
    _schedules: Schedules = field(init=False)
    _pauses: Pauses = field(init=False)
    _slow: Event | None = None
    _seen: int = 0
    _settled_from: int = 0

    def __post_init__(self) -> None:
        self._gather = Gather(self.folder, self.far)
        self._pauses = Pauses(self.folder)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._watcher = self.judge()
        self._shares = Shares(self.divide)
        self._schedules = Schedules()
        self._slow = None
        self._seen = self._settled_from = 0
        self.slow = ()

    @property
    def watcher(self) -> Any:
        """Who watches at present."""
        return self._watcher

    @property
    def gather(self) -> Gather:
        """What is read."""
        return self._gather

    def look(self) -> list[Finding]:
        """What became known since last time."""
        if self._gather.look():
            self._begin_anew()
        if not self._gather.is_complete:
            return []
        logs = self._gather.read()
        found = [self._found(event) for event in self._watcher.see(logs)]
        found += self._count_loss() + self._share_anew() + self._adapted()
        self.findings += found
        return found

    # Events -----------------------------------------------------------------------------------------------------------

    def _found(self, event: Event) -> Finding:
        confirmed = self._confirm() if event.is_slow and self.settings.confirm else None
        self._slow = event if event.is_slow else None
        self.slow = event.suspects if event.is_slow else ()
        return self._finding(event, self._act(event, confirmed), confirmed)

    def _finding(self, event: Event, action: str, confirmed: Confirmed | None = None) -> Finding:
        return Finding(len(self.findings) + 1, event, action, confirmed)

    def _confirm(self) -> Confirmed:
        readers = self._gather.readers
        return self._pauses.confirm(readers, self._watcher.anchors, self.passes(len(readers)))

    def _act(self, event: Event, confirmed: Confirmed | None) -> str:
        if not event.is_slow:
            return "none is needed"
        if confirmed is not None and not confirmed.problem and not (confirmed.slow_ranks or confirmed.slow_links):
            return "none, it is over"
        kinds = {suspect.kind for suspect in event.suspects}
        if "compute" in kinds:
            return self._rebalance() if self.settings.rebalance else "none, as you asked"
        if "link" in kinds and self._schedules.can_adapt(self._gather.readers):
            return self._adapt() if self.settings.rebalance else "none, as you asked"
        return "none; " + ("look at this link, or restart without its machines" if kinds else "look at what they share")

    def _rebalance(self) -> str:
        """Less work for slow ranks."""
        readers = self._gather.readers
        if not self._shares.num_microbatches(readers):
            return "none; with Batches in the script a slow rank would get less work"
        changed = self._shares.rebalance(readers) if self._shares.can_change(readers) else None
        if changed is None:
            return "none; no other share of the micro-batches would be better"
        self._watcher.rebase()
        self._settled_from = self._watcher.num_iterations + NUM_TO_SETTLE
        return f"micro-batches of ranks {_listed(changed[0])} -> {_listed(changed[1])}"

    def _adapt(self) -> str:
        """Another schedule for a slow link."""
        self._schedules.ask(self._gather.readers)
        return "the pipeline measures the link and plans its schedule anew"

    # Between events ---------------------------------------------------------------------------------------------------

    def _count_loss(self) -> list[Finding]:
        """Add up what the present event costs, and restart once it costs more than that."""
        new, self._seen = self._watcher.num_iterations - self._seen, self._watcher.num_iterations
        if self._slow is None:
            return []
        latest_s = list(self._watcher.iterations_s)[-new:] if new > 0 else []
        self.lost_s += sum(max(0.0, time_s - self._slow.before_s) for time_s in latest_s)
        limit_s = self.settings.restart_after_s
        if limit_s is None or self.lost_s < limit_s or not self._shares.restart(self._gather.readers):
            return []
        event, self._slow = self._slow, None
        return [self._finding(event, f"saved and restarted after a loss of {self.lost_s:.0f} s")]

    def _share_anew(self) -> list[Finding]:
        """Even shares again once all ranks are alike, by their times, as iterations no longer show it; or better ones.

        The first shares were chosen when a rank had just become slow, and little was known of it.
        """
        readers, now = self._gather.readers, self._watcher.num_iterations
        if not self._shares.are_uneven() or not self._shares.can_change(readers) or now < self._settled_from:
            return []
        is_over = self._shares.are_alike(readers)
        if not is_over and not self._shares.could_be_better(readers):
            return []
        action = self._rebalance()
        event = Event(now, now, False, 1.0, 0.0) if is_over or self._slow is None else self._slow
        self._slow, self.slow = (None, ()) if is_over else (self._slow, self.slow)
        return [self._finding(event, action)]

    def _adapted(self) -> list[Finding]:
        """What a pipeline has made of a request."""
        changed = self._schedules.outcome(self._gather.readers)
        if changed is None or self._slow is None:
            return []
        if changed:
            self._watcher.rebase()
        action = "the pipeline has changed its schedule" if changed else "none; no other schedule would be faster"
        return [self._finding(self._slow, action)]


def _listed(counts: Sequence[int]) -> str:
    return " ".join(map(str, counts))
