"""The main loop of the watcher process: read records of ranks, detect slowdowns, act, and report."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from takeup.training.stragglers.model import CallLog, SlowdownEvent, Suspect
from takeup.training.stragglers.watch.actions import BatchShares, DivideMicrobatches, ScheduleRequests
from takeup.training.stragglers.watch.confirmation import Confirmation, PauseController
from takeup.training.stragglers.watch.restart import Restarts, RestartWait
from takeup.training.stragglers.watch.ring_reader import RingCollector
from takeup.training.stragglers.watch.run_queue import RunQueueWaits, UsualIterationTime, record_run_queue_waits

Pair = tuple[int, int]
NUM_TO_EVALUATE = 24  # iterations after a restart before a rank swap is evaluated, on the later half of them
NUM_TO_SETTLE = 8  # iterations after a rebalance before the times of ranks reflect it


class Detector(Protocol):
    """Detector: consumes calls and reports what became slow."""

    num_iterations: int
    iterations_s: deque[float]

    @property
    def anchors(self) -> Mapping[int, tuple[int, int, int]]:
        """By rank, the call that marks iterations, as (operation, group, size)."""

    def see(self, logs: Sequence[CallLog]) -> list[SlowdownEvent]:
        """Process calls and return new events."""

    def rebase(self) -> None:
        """Restart the baseline from here."""

    def logs(self) -> list[CallLog]:
        """The latest calls."""


class RankSwap(Protocol):
    """A swap of two ranks, and the predicted iteration time after it."""

    @property
    def ranks(self) -> Pair:
        """The two swapped ranks."""

    @property
    def predicted_s(self) -> float:
        """Predicted iteration time in seconds."""

    def order(self, num_ranks: int) -> tuple[int, ...]:
        """The new rank of every rank."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An event, the result of tests in a pause, and the action taken."""

    number: int
    event: SlowdownEvent
    action: str
    confirmed: Confirmation | None = None

    def sentence(self) -> str:
        """The finding as a sentence."""
        tested = "" if self.confirmed is None else f"; {self.confirmed.sentence()}"
        return f"{self.event.sentence()}{tested}; action: {self.action}"


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """What a session may do: pause to confirm, change shares and schedules, restart.

    It restarts a job that can checkpoint after a loss of `restart_after_s`; or, if `restart_cost_s` estimates the cost
    of a restart, once that is likely to pay.
    """

    confirm: bool = False
    rebalance: bool = True
    restart_after_s: float | None = None
    restart_cost_s: float | None = None


@dataclass(slots=True)
class WatchSession:
    """A watched job; each call of `poll` is one polling round."""

    folder: Path
    new_detector: Callable[[], Detector]
    divide: DivideMicrobatches
    passes: Callable[[int], Sequence[Sequence[Pair]]]
    settings: WatchSettings = WatchSettings()
    far: Mapping[int, Any] = field(default_factory=dict)
    explain: Callable[[SlowdownEvent, Mapping[int, float]], SlowdownEvent] = lambda event, more_waiting_s: event
    wait: RestartWait = lambda loss_share, cost_s, durations_s: math.inf
    exchange: Callable[[SlowdownEvent, Sequence[CallLog], int], RankSwap | None] = lambda event, logs, num_ranks: None
    findings: list[Finding] = field(default_factory=list)
    lost_s: float = 0.0
    slow: tuple[Suspect, ...] = ()
    _gather: RingCollector = field(init=False)
    _watcher: Detector = field(init=False)
    _shares: BatchShares = field(init=False)
    _schedules: ScheduleRequests = field(init=False)
    _cores: RunQueueWaits = field(init=False)
    _usual: UsualIterationTime = field(init=False)
    _is_quiet: bool = False  # the current slowdown is not reported
    _pauses: PauseController = field(init=False)
    _restarts: Restarts = field(init=False)
    _swap: tuple[RankSwap, SlowdownEvent] | None = None
    _left: SlowdownEvent | None = None  # for which a restart was requested
    _refused: SlowdownEvent | None = None  # for which no restart was possible
    _slow: SlowdownEvent | None = None
    _waiting: list[SlowdownEvent] = field(init=False)  # deferred to the next look
    _lasted_s: float = 0.0
    _cost_s: float = 0.0
    _seen: int = 0
    _settled_from: int = 0
    _num_told: int = 0

    def __post_init__(self) -> None:
        self._gather = RingCollector(self.folder, self.far)
        self._pauses = PauseController(self.folder)
        asked = self.settings
        self._restarts = Restarts(self.folder, self.wait, asked.restart_after_s, asked.restart_cost_s)
        self._reset()

    def _reset(self) -> None:
        self._watcher = self.new_detector()
        self._shares = BatchShares(self.divide)
        self._schedules = ScheduleRequests()
        self._cores, self._usual = RunQueueWaits(), UsualIterationTime()
        self._is_quiet = False
        self._slow = None
        self._waiting = []
        self._seen = self._settled_from = 0
        self.slow = ()

    @property
    def watcher(self) -> Any:
        """The current detector."""
        return self._watcher

    @property
    def gather(self) -> RingCollector:
        """The reader of all ranks."""
        return self._gather

    def poll(self) -> list[Finding]:
        """Poll once and return the new findings."""
        found = self._on_restart() if self._gather.poll() else []
        if self._gather.is_complete:
            found += [self._found(event) for event in self._events()]
            found += self._escalate() + self._rebalance_again() + self._adapted() + self._evaluate_swap()
        self.findings += found
        return found

    def _events(self) -> list[SlowdownEvent]:
        """New events; deferred to the next look if there are too few samples of the run-queue waits since then."""
        events, self._waiting = self._waiting, []
        logs = self._gather.read()
        record_run_queue_waits(self._gather.readers)  # before the detector runs, which takes time while ranks continue
        new = self._watcher.see(logs)
        self._cores.poll(self._watcher.num_iterations, self._gather.readers)
        self._usual.poll(self._watcher.num_iterations, self._watcher.iterations_s)
        for event in new:
            is_early = bool(event.suspects) and self._cores.is_too_soon(event.began)
            (self._waiting if is_early or self._waiting else events).append(event)
        explained = [self.explain(event, self._cores.more_waiting_s(event.began)) for event in events]
        return [event for event in explained if self._is_news(event)]

    def _is_news(self, event: SlowdownEvent) -> bool:
        """False if ranks wait for cores but are no slower than usual, and for the end of such an event."""
        was_quiet = self._is_quiet
        is_host = any(suspect.kind == "host" for suspect in event.suspects)
        self._is_quiet = event.is_slow and is_host and not self._usual.is_exceeded_by(event.after_s)
        return not (self._is_quiet or (was_quiet and not event.is_slow))

    def _on_restart(self) -> list[Finding]:
        """Reset after ranks have restarted; if that was requested, report how long it took."""
        took_s, event = self._restarts.completed(), self._left
        self._reset()
        self._left = None
        if took_s is None or event is None:
            return []
        return [self._finding(event, f"ranks came back after {took_s:.3g} s")]

    # Events -----------------------------------------------------------------------------------------------------------

    def _found(self, event: SlowdownEvent) -> Finding:
        confirmed = self._confirm() if event.is_slow and self.settings.confirm else None
        if self._slow is not None:
            self._restarts.durations_s.append(self._lasted_s)
        is_slow = event.is_slow and not (confirmed is not None and confirmed.has_vanished)
        ours_s = 0.0 if confirmed is None else confirmed.seconds  # of an iteration that is not counted yet
        self._slow, self._lasted_s, self._cost_s = _refined(event, confirmed) if is_slow else None, -ours_s, -ours_s
        self.slow = event.suspects if is_slow else ()
        return self._finding(event, self._act(event, confirmed), confirmed)

    def _finding(self, event: SlowdownEvent, action: str, confirmed: Confirmation | None = None) -> Finding:
        self._num_told += 1
        return Finding(self._num_told, event, action, confirmed)

    def _confirm(self) -> Confirmation:
        readers = self._gather.readers
        return self._pauses.confirm(readers, self._watcher.anchors, self.passes(len(readers)))

    def _act(self, event: SlowdownEvent, confirmed: Confirmation | None) -> str:
        if not event.is_slow:
            return "none is needed"
        if confirmed is not None and confirmed.has_vanished:
            return "none, it is over"
        kinds = {suspect.kind for suspect in event.suspects}
        if "host" in kinds:
            return "none; end what else runs on this machine, or start fewer ranks"
        if "compute" in kinds:
            return self._rebalance() if self.settings.rebalance else "none, as you asked"
        if "link" in kinds and self._schedules.can_adapt(self._gather.readers):
            return self._adapt() if self.settings.rebalance else "none, as you asked"
        return "none; " + ("look at this link, or restart without its machines" if kinds else "look at what they share")

    def _rebalance(self) -> str:
        """Give slow ranks less work; return the action as text."""
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
        """Request a new schedule because of a slow link."""
        self._schedules.ask(self._gather.readers)
        return "the pipeline measures the link and plans its schedule anew"

    # Between events ---------------------------------------------------------------------------------------------------

    def _escalate(self) -> list[Finding]:
        """Accumulate the cost of the current event, and restart once that pays."""
        new, self._seen = self._watcher.num_iterations - self._seen, self._watcher.num_iterations
        if self._slow is None or new <= 0:
            return []
        latest_s = list(self._watcher.iterations_s)[-new:]
        cost_s = sum(max(0.0, time_s - self._slow.before_s) for time_s in latest_s)
        self.lost_s, self._cost_s, self._lasted_s = (
            self.lost_s + cost_s,
            self._cost_s + cost_s,
            self._lasted_s + sum(latest_s),
        )
        is_busy = any(suspect.kind == "host" for suspect in self._slow.suspects)  # and would still be after a restart
        if is_busy or not self._restarts.is_due(self._lasted_s, self._cost_s):
            return []
        return self._restart(self._slow)

    def _restart(self, event: SlowdownEvent) -> list[Finding]:
        """Checkpoint and restart, swapping two ranks if that keeps traffic off a slow link."""
        readers = self._gather.readers
        if not self._shares.could_restart(readers):
            return self._refuse_to_restart(event)
        if not self._shares.can_restart(readers):
            return []
        moved = self.exchange(event, self._watcher.logs(), len(readers)) if self._are_here() else None
        how = ""
        if moved is not None:
            self._restarts.use(moved.order(len(readers)))
            one, other = moved.ranks
            how = f" with ranks {one} and {other} exchanged, {1e3 * moved.predicted_s:.4g} ms foretold"
        self._ask_to_restart(event)
        self._swap = None if moved is None else (moved, event)
        return [self._finding(event, f"saved and restarted after a loss of {self._cost_s:.4g} s{how}")]

    def _refuse_to_restart(self, event: SlowdownEvent) -> list[Finding]:
        """Report once per event that there is no restart, as the job could not be restarted."""
        if self._refused is event:
            return []
        self._refused = event
        return [self._finding(event, "no restart; Batches needs a save function, and torchrun --max-restarts")]

    def _ask_to_restart(self, event: SlowdownEvent) -> None:
        self._shares.restart(self._gather.readers)
        self._restarts.asked()
        self._slow, self._left = None, event

    def _are_here(self) -> bool:
        """Whether all ranks are on this machine, so that all can read the permutation file."""
        return all(reader.path is not None for reader in self._gather.readers.values())

    def _evaluate_swap(self) -> list[Finding]:
        """Undo a rank swap that misses its predicted iteration time, after enough iterations."""
        times_s = list(self._watcher.iterations_s)
        if self._swap is None or len(times_s) < NUM_TO_EVALUATE or self._restarts.is_under_way:
            return []
        (moved, event), taken_s = self._swap, median(times_s[-NUM_TO_EVALUATE // 2 :])
        if taken_s <= (moved.predicted_s + event.after_s) / 2:
            self._swap = None
            return [self._finding(event, f"ranks exchanged, {1e3 * taken_s:.4g} ms as foretold")]
        if not self._shares.can_restart(self._gather.readers):
            return []
        self._swap = None
        self._restarts.use(moved.order(len(self._gather.readers)))
        self._ask_to_restart(event)
        return [self._finding(event, f"saved and restarted as before: {1e3 * taken_s:.4g} ms is not what was foretold")]

    def _rebalance_again(self) -> list[Finding]:
        """Restore even shares once micro-batch times of ranks are alike (iteration times hide it), or improve them.

        The first shares were chosen when a rank had just become slow, and little was known of it.
        """
        readers, now = self._gather.readers, self._watcher.num_iterations
        if not self._shares.are_uneven() or not self._shares.can_change(readers) or now < self._settled_from:
            return []
        is_over = self._shares.are_alike(readers)
        if not is_over and not self._shares.could_be_better(readers):
            return []
        action = self._rebalance()
        event = SlowdownEvent(now, now, False, 1.0, 0.0) if is_over or self._slow is None else self._slow
        self._slow, self.slow = (None, ()) if is_over else (self._slow, self.slow)
        return [self._finding(event, action)]

    def _adapted(self) -> list[Finding]:
        """Report the outcome of a request to the pipeline."""
        changed = self._schedules.outcome(self._gather.readers)
        if changed is None or self._slow is None:
            return []
        if changed:
            self._watcher.rebase()
        action = "the pipeline has changed its schedule" if changed else "none; no other schedule would be faster"
        return [self._finding(self._slow, action)]


def _refined(event: SlowdownEvent, confirmed: Confirmation | None) -> SlowdownEvent:
    """The event with its suspects replaced by the slow links that tests found, if any."""
    if confirmed is None or not confirmed.slow_links:
        return event
    found = tuple(Suspect("link", pair, factor, 1.0, "tested") for pair, factor in confirmed.slow_links.items())
    return replace(event, suspects=found)


def _listed(counts: Sequence[int]) -> str:
    return " ".join(map(str, counts))
