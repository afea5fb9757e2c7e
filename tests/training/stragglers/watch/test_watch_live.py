"""Real ranks that are watched, paused, given other shares and killed; they compute what they would have computed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.watch_lab import JobRecord, SlowPeriod, WatchedJob, run_jobs
from takeup.errors import TakeupError
from takeup.training.stragglers.contract import CallLog, Confirmation, SetShares
from takeup.training.stragglers.detect.detector import StragglerDetector
from takeup.training.stragglers.watch import confirmation as confirming
from takeup.training.stragglers.watch.confirmation import PauseController
from takeup.training.stragglers.watch.ring import FIRST_ROW, ROW_WORDS, HeaderWord
from takeup.training.stragglers.watch.ring_reader import RingCollector
from takeup.training.stragglers.watch.session import WatchSession, publish_shares, ring_passes
from training.stragglers.plain_job import Faults, data_parallel, logs_of
from training.stragglers.watch.deadly_pause import DeadlyPauses

torch = pytest.importorskip("torch", reason="needs the package torch")

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("watch")]

NUM_ITERATIONS, NUM_RANKS = 150, 3
LONE = Path(__file__).parent / "lone_controller.py"
JOB = WatchedJob("ddp", NUM_RANKS, NUM_ITERATIONS, compute_s=0.02)
SHORTLY = (40, 75)  # iterations in which a rank is slow, and then no longer
CLEARLY_SLOWER = 2.5  # it is four times as slow in these
PASSING = replace(JOB, slow=(SlowPeriod((1,), *SHORTLY, factor=4.0, is_stopped=True),))
SHARED = WatchedJob("batches", NUM_RANKS, 80, compute_s=0.02)
COUNTS = ((15, 4, 11), (1, 28, 1), (10, 10, 10))


class Beside:
    """Reads a job, and once its iterations are known does something to it, once."""

    def __init__(
        self, place: Path, act: Callable[[Beside], object], pauses: type[PauseController] = PauseController
    ) -> None:
        self.place, self.gather, self.watcher, self.pauses = (
            place,
            RingCollector(place),
            StragglerDetector(),
            pauses(place),
        )
        self.outcome: Any = None
        self._act = act

    def poll(self, is_over: bool) -> None:
        self.gather.poll()
        if self.gather.is_complete:
            self.watcher.see(self.gather.read())
        if self.outcome is None and len(self.watcher.anchors) == NUM_RANKS and not is_over:
            self.outcome = self._act(self)

    def confirm(self) -> Confirmation:
        """One pause; another if it came to nothing, as on a machine that is busy. Its lease outlasts any hold-up."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(confirming, "LEASE_NS", 20 * 10**9)
            for _ in range(3):
                found = self.pauses.confirm(self.gather.readers, self.watcher.anchors, ring_passes(NUM_RANKS))
                if not found.problem or found.problem.endswith("has ended"):
                    break
        return found

    def process(self, rank: int) -> int:
        return int(self.gather.readers[rank].word(HeaderWord.PID))


def pause(beside: Beside) -> Confirmation:
    return beside.confirm()


@cache
def lone_controller() -> subprocess.Popen[str]:
    """It is there before any job begins, as jobs are over soon."""
    process = subprocess.Popen([sys.executable, LONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def pause_and_be_killed(beside: Beside) -> int:
    process = lone_controller()
    process.communicate(" ".join(str(each) for each in (beside.place, *beside.watcher.anchors[0])))
    return process.returncode


def pause_while_one_is_held_up(beside: Beside) -> Confirmation:
    """The last rank runs only a fifth of the time, while the others are tested as they are."""
    over = threading.Event()

    def hold_up() -> None:
        while not over.is_set():
            os.kill(beside.process(NUM_RANKS - 1), signal.SIGSTOP)
            time.sleep(0.04)
            os.kill(beside.process(NUM_RANKS - 1), signal.SIGCONT)
            time.sleep(0.01)

    thread = threading.Thread(target=hold_up)
    thread.start()
    try:
        return beside.confirm()
    finally:
        over.set()
        thread.join()


def pause_when_it_is_over(beside: Beside) -> Confirmation | None:
    """Ask for a pause only when the rank that was slow no longer is; again if something else held it up meanwhile."""
    if beside.watcher.num_iterations <= SHORTLY[1] + 5:
        return None
    confirmed = beside.confirm()
    for _ in range(2):
        if confirmed.slow_ranks.get(1, 1.0) > CLEARLY_SLOWER:
            confirmed = beside.confirm()
    return confirmed


def write_garbage(beside: Beside) -> int:
    """Into rows of the past and of the future, of a rank that goes on writing."""
    reader = beside.gather.readers[1]
    head = reader.word(HeaderWord.HEAD)
    for row in (head - 2, head + 50):
        for column in range(ROW_WORDS):
            reader.ask(FIRST_ROW + ROW_WORDS * row + column, -(2**40) - column)
    reader._next = head - 2  # as if these had not been read yet
    return 1


def change_shares() -> Callable[[Beside], object]:
    """Three times, each as soon as all ranks follow the one before."""
    plans = dict(enumerate(COUNTS, start=1))

    def act(beside: Beside) -> object:
        readers = beside.gather.readers
        last = len(COUNTS) - len(plans)
        if plans and all(reader.word(HeaderWord.PLAN_IN_USE) == last for reader in readers.values()):
            publish_shares(readers, SetShares(last + 1, tuple(plans.pop(last + 1))))
        return None if plans else True

    return act


class Together:
    """One session beside two jobs, one after the other, as beside ranks that begin anew and are fewer."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="takeup-watch-together-")
        self.session = WatchSession(Path(self._folder.name))
        self.counted: dict[int, int] = {}  # by the number of ranks: iterations

    def poll(self, place: Path) -> None:
        for ring in place.glob("*.ring"):
            link = Path(self._folder.name, ring.name)
            if not link.exists():
                link.hardlink_to(ring)
        self.session.poll()
        self.counted[self.session.gather.num_ranks] = self.session.watcher.num_iterations


ACTS: dict[str, tuple[WatchedJob, Callable[[Beside], object]]] = {
    "alone": (JOB, lambda beside: True),
    "paused": (JOB, pause),
    "killed": (JOB, pause_and_be_killed),
    "garbage": (JOB, write_garbage),
    "held up": (JOB, pause_while_one_is_held_up),
    "passing": (PASSING, pause_when_it_is_over),
    "shares": (SHARED, change_shares()),
    "fewer": (replace(JOB, num_ranks=NUM_RANKS - 1, num_iterations=60), lambda beside: None),
}


@cache
def lived() -> dict[str, SimpleNamespace]:
    """What came of all of these, each with who stood beside it."""
    lone_controller()
    besides: list[Beside] = []
    together = Together()

    def look(place: Path, is_over: bool) -> None:
        if int(place.name) == len(besides):
            besides.append(Beside(place, acts[len(besides)]))
        besides[-1].poll(is_over)
        if list(ACTS)[int(place.name)] in ("alone", "fewer"):
            together.poll(place)

    jobs, acts = zip(*ACTS.values(), strict=True)
    recorded = run_jobs(jobs, look)
    return {
        name: SimpleNamespace(recorded=each, beside=beside, together=together)
        for name, each, beside in zip(ACTS, recorded, besides, strict=True)
    }


def results(name: str) -> list[str]:
    recorded: JobRecord = lived()[name].recorded
    return recorded.results


@pytest.mark.parametrize("name", ["paused", "killed", "garbage", "held up", "passing"])
def test_the_job_computes_the_same_bit_for_bit(name: str) -> None:
    assert lived()[name].beside.outcome is not None
    assert results(name) == results("alone")


def test_all_ranks_stand_at_the_same_call_and_are_tested() -> None:
    confirmed = lived()["paused"].beside.outcome

    assert confirmed.problem == ""
    assert confirmed.seconds > 0
    assert all(
        log.calls["number"][-1] == lived()["paused"].recorded.logs[0].calls["number"][-1]
        for log in lived()["paused"].recorded.logs
    )


def test_ranks_go_on_by_themselves_when_the_controller_is_killed_in_a_pause() -> None:
    beside = lived()["killed"].beside

    assert beside.outcome == -signal.SIGKILL
    assert (lived()["killed"].recorded.iterations_s > 1.0).any()  # they had stood until the lease was over
    assert lived()["killed"].recorded.num_bad == 0


def test_a_rank_that_is_held_up_is_named_in_the_pause() -> None:
    confirmed = lived()["held up"].beside.outcome

    assert NUM_RANKS - 1 in confirmed.slow_ranks, confirmed


def test_a_rank_that_is_no_longer_slow_when_it_is_tested_is_not_named() -> None:
    confirmed = lived()["passing"].beside.outcome

    assert confirmed.problem == ""
    assert confirmed.slow_ranks.get(1, 1.0) < CLEARLY_SLOWER


def test_garbage_in_a_ring_is_counted_and_the_rest_is_read() -> None:
    gather = lived()["garbage"].beside.gather

    assert gather.num_bad >= 1
    assert lived()["garbage"].beside.watcher.num_iterations >= NUM_ITERATIONS - 5


def test_ranks_that_come_back_and_are_fewer_are_watched_as_another_job() -> None:
    together = lived()["fewer"].together

    assert together.counted[NUM_RANKS] >= NUM_ITERATIONS - 5
    assert 50 <= together.counted[NUM_RANKS - 1] < 60
    assert sorted(together.session.gather.readers) == [0, 1]
    assert len(set(results("fewer"))) == 1


def test_clocks_of_ranks_that_differ_by_hours_change_nothing() -> None:
    by_hand = logs_of(data_parallel(NUM_RANKS), 100, Faults(60, ranks={1: 2.0}), 0)
    for logs in (lived()["passing"].recorded.logs, by_hand):  # of a machine that may be busy, and of an ideal one
        told = [StragglerDetector().see(skewed(logs, hours)) for hours in ((0, 0, 0), (0, 3, 40))]

        assert told[0] == told[1]
    assert [suspect.ranks for event in told[1] for suspect in event.suspects] == [(1,)]


def skewed(logs: Sequence[CallLog], hours: Sequence[int]) -> list[CallLog]:
    """The same by other clocks."""
    found = [CallLog(log.rank, log.calls.copy(), log.groups) for log in logs]
    for log, skew in zip(found, hours, strict=True):
        log.calls["began_ns"] += skew * 3_600 * 10**9
        log.calls["ended_ns"][log.calls["ended_ns"] > 0] += skew * 3_600 * 10**9
    return found


# Shares ---------------------------------------------------------------------------------------------------------------


def alone_by_one_process(job: WatchedJob) -> list[float]:
    """The weights after the same training by a single process, on whole batches."""
    from support import watch_lab_program as loops

    torch.manual_seed(job.seed)
    model = loops._model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    num_rows = loops.MICROBATCHES_OF_RANK * job.num_ranks * loops.ROWS
    for iteration in range(job.num_iterations):
        generator = torch.Generator().manual_seed(job.seed + iteration)
        optimizer.zero_grad()
        model(torch.randn(num_rows, loops.WIDTH, generator=generator)).square().mean().backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return list(weights[: loops.MOST_WEIGHTS].tolist())


def test_gradients_stay_those_of_the_whole_batch_however_it_is_shared() -> None:
    lived_through = lived()["shares"]

    assert lived_through.beside.outcome is True  # all plans were published, each once all ranks followed the last
    assert np.abs(np.array(lived_through.recorded.weights) - alone_by_one_process(SHARED)).max() < 1e-6


# Acted on -------------------------------------------------------------------------------------------------------------

Watched = tuple[list[JobRecord], list[WatchSession]]
LASTING = 100_000
TWO_SLOW = (SlowPeriod((1,), 40, LASTING, factor=2.0), SlowPeriod((3,), 40, LASTING, factor=2.0))
TWO = WatchedJob("batches", 4, 110, compute_s=0.04, slow=TWO_SLOW)
# Its messages are of 16 KiB, as ranks share few cores; over the thin cable they take several times as long as an
# operation, so that it costs more than whatever else runs on this machine.
ADAPTIVE = WatchedJob(
    "adaptive", 3, 50, compute_s=0.18, slow=(SlowPeriod((0, 1), 20, LASTING, rate_bps=5e6),), num_rows=128
)
needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("tc") is None, reason="needs Linux, root, ip and tc"
)


def watched(jobs: Sequence[WatchedJob]) -> Watched:
    """Jobs with a session beside each, which may do what it likes."""
    sessions: dict[str, WatchSession] = {}

    def look(place: Path, is_over: bool) -> None:
        if place.exists():
            sessions.setdefault(place.name, WatchSession(place)).poll()

    recorded = run_jobs(jobs, look)
    return recorded, [sessions[str(number)] for number in range(len(jobs))]


def watched_until(jobs: Sequence[WatchedJob], is_so: Callable[[WatchSession], object]) -> Watched:
    """Again, at most three times in all: what else takes the cores in the same moment may be blamed instead."""
    for _ in range(3):
        found = watched(jobs)
        if is_so(found[1][0]):
            break
    return found


def slow_ranks(session: WatchSession) -> set[int]:
    suspects = [suspect for finding in session.findings if finding.event.is_slow for suspect in finding.event.suspects]
    return {rank for suspect in suspects if suspect.kind == "compute" for rank in suspect.ranks}


def shares_of(session: WatchSession) -> list[int]:
    return [reader.word(HeaderWord.PLAN_COUNT) for _, reader in sorted(session.gather.readers.items())]


def do_slow_ranks_get_less(session: WatchSession) -> bool:
    first, second, third, fourth = shares_of(session)
    return max(second, fourth) < 10 < min(first, third)


@pytest.mark.timeout(900)
def test_two_ranks_that_become_slow_together_are_both_named_and_both_get_less() -> None:
    (recorded,), (session,) = watched_until(
        [TWO], lambda session: slow_ranks(session) == {1, 3} and do_slow_ranks_get_less(session)
    )

    assert slow_ranks(session) == {1, 3}
    assert sum(shares_of(session)) == 40
    assert do_slow_ranks_get_less(session)
    assert np.abs(np.array(recorded.weights) - alone_by_one_process(TWO)).max() < 1e-6


def actions_for_the_cable(session: WatchSession) -> list[str]:
    """What was done about the link that is slow."""
    found = [finding for finding in session.findings if finding.event.is_slow and finding.event.suspects]
    return [finding.action for finding in found if finding.event.suspects[0].ranks == (0, 1)]


@needs_root
@pytest.mark.timeout(900)
def test_a_pipeline_with_a_thin_cable_is_asked_and_changes_its_schedule_and_nothing_else() -> None:
    changed = "the pipeline has changed its schedule"
    (recorded, alone), (session, _) = watched_until(
        [ADAPTIVE, replace(ADAPTIVE, slow=(), is_watched=False, compute_s=0.01)],  # of which only weights count
        lambda session: changed in actions_for_the_cable(session),
    )

    actions = actions_for_the_cable(session)
    assert actions[:1] == ["the pipeline measures the link and plans its schedule again"], session.findings
    assert changed in actions
    assert np.allclose(recorded.weights, alone.weights, rtol=0, atol=1e-9)


# A rank dies ----------------------------------------------------------------------------------------------------------


def test_a_rank_that_dies_in_a_pause_sets_the_others_free() -> None:
    found: list[Beside] = []

    def look(place: Path, is_over: bool) -> None:
        if not found:
            found.append(Beside(place, pause, DeadlyPauses))
        found[0].poll(is_over)

    with pytest.raises(TakeupError, match="the ddp job failed"):
        run_jobs([JOB], look)

    assert found[0].outcome.problem == "rank 2 has ended"
    assert all(found[0].gather.readers[rank].word(HeaderWord.STOPPED) < 0 for rank in (0, 1))
