"""The main loop of the watcher process: read records of ranks, detect slowdowns, carry out remedies, and report."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from takeup.training.stragglers import contract
from takeup.training.stragglers.detect.detector import StragglerDetector
from takeup.training.stragglers.locate.suspects import blame_cpu_contention
from takeup.training.stragglers.remedy.remediation import Remediation, WatchSettings
from takeup.training.stragglers.remedy.restart import traffic_of
from takeup.training.stragglers.watch.causes import CauseTimes, has_slowed_clock
from takeup.training.stragglers.watch.confirmation import PauseController
from takeup.training.stragglers.watch.launch import write_rank_order
from takeup.training.stragglers.watch.ring import HeaderWord
from takeup.training.stragglers.watch.ring_reader import RingCollector
from takeup.training.stragglers.watch.run_queue import RunQueueWaits, UsualIterationTime, record_run_queue_waits

Readers = Mapping[int, Any]


@dataclass(slots=True)
class WatchSession:
    """A watched job; each call of `poll` is one polling round."""

    folder: Path
    settings: WatchSettings = field(default_factory=WatchSettings)
    far: Mapping[int, Any] = field(default_factory=dict)
    new_detector: Callable[[], contract.Detector] = StragglerDetector
    findings: list[contract.Finding] = field(default_factory=list)
    remedies: contract.RemedyPolicy = field(init=False)
    watcher: Any = field(init=False)  # the current detector
    gather: RingCollector = field(init=False)
    _pauses: PauseController = field(init=False)
    _cores: RunQueueWaits = field(init=False)
    _usual: UsualIterationTime = field(init=False)
    _causes: CauseTimes = field(init=False)
    _is_quiet: bool = False  # the current slowdown is not reported
    _told: tuple[Any, int] = (None, 0)  # the last that was written into the rings
    _waiting: list[contract.SlowdownEvent] = field(init=False)  # deferred to the next round

    def __post_init__(self) -> None:
        self.gather = RingCollector(self.folder, self.far)
        self._pauses = PauseController(self.folder)
        self.remedies = Remediation(self.settings)
        self._reset()

    def _reset(self) -> None:
        self.watcher = self.new_detector()
        self._cores, self._usual = RunQueueWaits(), UsualIterationTime()
        self._causes = CauseTimes()
        self._is_quiet = False
        self._waiting = []

    def poll(self) -> list[contract.Finding]:
        found = []
        if self.gather.poll():
            self._reset()
            found += self.remedies.on_restart(time.monotonic())
        if self.gather.is_complete:
            found += [self._on_event(event) for event in self._events()]
            found += self._carried_out(self.remedies.on_progress(self._state()))
        self.findings += found
        self._tell_ranks()
        return found

    def _tell_ranks(self) -> None:
        """Write what the latest comparison says into the rings, for the metrics of the job."""
        rows, number = self.watcher.latest_standings, len(self.findings)
        if rows and self._told != (rows[0], number):
            self._told = rows[0], number
            ask_all(self.gather.readers, HeaderWord.COST_PPM, round(1e6 * rows[0].lost_share))
            ask_all(self.gather.readers, HeaderWord.NUM_EVENTS, number)
            ask_all(self.gather.readers, HeaderWord.COSTLY_RANK, rows[0].rank + 1)

    # Events -----------------------------------------------------------------------------------------------------------

    def _events(self) -> list[contract.SlowdownEvent]:
        """New events; deferred to the next round if there are too few samples of the run-queue waits since then."""
        events, self._waiting = self._waiting, []
        logs = self.gather.read()
        record_run_queue_waits(self.gather.readers)  # before the detector runs, which takes time while ranks continue
        new = self.watcher.see(logs)
        self._cores.poll(self.watcher.num_iterations, self.gather.readers)
        self._causes.poll(self.watcher.num_iterations, self.gather.readers)
        self._usual.poll(self.watcher.num_iterations, self.watcher.iterations_s)
        for event in new:
            is_early = bool(event.suspects) and not event.is_standing and self._cores.is_too_soon(event.began)
            (self._waiting if is_early or self._waiting else events).append(event)
        explained = [blame_cpu_contention(event, self._waiting_s(event)) for event in events]
        return [self._causes.explained(event, self._is_throttled) for event in explained if self._is_news(event)]

    def _is_throttled(self, rank: int) -> bool:
        """Whether the card of a rank of this machine has a slowed clock."""
        reader = self.gather.readers[rank]
        number = reader.word(HeaderWord.LOCAL_RANK) - 1
        return reader.path is not None and number >= 0 and has_slowed_clock(number)

    def _waiting_s(self, event: contract.SlowdownEvent) -> dict[int, float]:
        """By rank, the run-queue wait per iteration that may explain the event."""
        return self._cores.more_than_others_s() if event.is_standing else self._cores.more_waiting_s(event.began)

    def _is_news(self, event: contract.SlowdownEvent) -> bool:
        """False if ranks wait for cores but are no slower than usual, and for the end of such an event."""
        was_quiet = self._is_quiet
        is_host = any(suspect.kind == "host" for suspect in event.suspects)
        self._is_quiet = event.is_slow and is_host and not self._usual.is_exceeded_by(event.after_s)
        return not (self._is_quiet or (was_quiet and not event.is_slow))

    def _on_event(self, event: contract.SlowdownEvent) -> contract.Finding:
        readers, confirmed = self.gather.readers, None
        if event.is_slow and self.settings.confirm:
            confirmed = self._pauses.confirm(readers, self.watcher.anchors, ring_passes(len(readers)))
        return self._carried_out([self.remedies.on_event(event, confirmed, self._state())])[0]

    # The state of the job, and the actions on it ----------------------------------------------------------------------

    def _state(self) -> contract.JobState:
        readers = self.gather.readers
        is_link_slow = any(suspect.kind == "link" for suspect in self.remedies.slow)
        needs_traffic = self.settings.may_restart and is_link_slow and are_all_here(readers)
        traffic = traffic_of(self.watcher.logs()) if needs_traffic else None
        return job_state(readers, self.watcher, traffic, time.monotonic())

    def _carried_out(self, findings: list[contract.Finding]) -> list[contract.Finding]:
        for finding in findings:
            for action in finding.actions:
                self._carry_out(action)
        return findings

    def _carry_out(self, action: contract.RemedyAction) -> None:
        readers = self.gather.readers
        match action:
            case contract.SetShares():
                publish_shares(readers, action)
            case contract.AdaptSchedule(number):
                ask_all(readers, HeaderWord.ADAPT, number)
            case contract.SetRankOrder(order):
                write_rank_order(self.folder, order)
            case contract.ResetBaseline():
                self.watcher.rebase()


def ring_passes(num_ranks: int) -> list[list[tuple[int, int]]]:
    """The links of the ring of all ranks in the fewest passes in which each rank occurs at most once."""
    even, odd = ([(rank, rank + 1) for rank in range(first, num_ranks - 1, 2)] for first in (0, 1))
    closing = [(0, num_ranks - 1)] if num_ranks > 2 else []
    passes = [even, odd, closing] if num_ranks % 2 else [even, odd + closing]
    return [links for links in passes if links]


def are_all_here(readers: Readers) -> bool:
    """Whether all ranks are on this machine, so that all can read the file with their order."""
    return all(reader.path is not None for reader in readers.values())


def job_state(
    readers: Readers, detector: contract.Detector, traffic: Mapping[Any, int] | None, now_s: float
) -> contract.JobState:
    """What the ranks have written in the headers of their rings, and the detector knows of iterations."""
    numbers, changes = (_words(readers.values(), word) for word in (HeaderWord.NUM_MICROBATCHES, HeaderWord.SCHEDULE))
    adaptive = [reader for reader in readers.values() if reader.word(HeaderWord.IS_ADAPTIVE)]
    return contract.JobState(
        now_s,
        len(readers),
        detector.num_iterations,
        tuple(detector.iterations_s),
        num_microbatches=min(numbers) if len(numbers) == 1 else 0,
        microbatch_s=tuple(1e-9 * readers[rank].word(HeaderWord.MICROBATCH_NS) for rank in sorted(readers)),
        shares_in_use=_words(readers.values(), HeaderWord.PLAN_IN_USE),
        can_restart=all(_words(readers.values(), HeaderWord.CAN_RESTART)),
        can_adapt=bool(adaptive),
        adapted=_words(adaptive, HeaderWord.ADAPTED),
        num_schedule_changes=max(changes, default=0),
        traffic=traffic,
    )


def _words(readers: Iterable[Any], word: int) -> frozenset[int]:
    return frozenset(reader.word(word) for reader in readers)


def ask_all(readers: Readers, word: int, value: int) -> None:
    """Write a word into the header of every rank."""
    for reader in readers.values():
        reader.ask(word, value)


def publish_shares(readers: Readers, shares: contract.SetShares) -> None:
    """Write the share of every rank, and the version last."""
    firsts = accumulate(shares.counts, initial=0)
    for rank, count, first in zip(sorted(readers), shares.counts, firsts, strict=False):
        readers[rank].ask(HeaderWord.PLAN_FIRST, first)
        readers[rank].ask(HeaderWord.PLAN_COUNT, count)
        readers[rank].ask(HeaderWord.PLAN_RESTART, int(shares.restart))
        readers[rank].ask(HeaderWord.PLAN, shares.version)
