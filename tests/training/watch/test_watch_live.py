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

from takeup.errors import TakeupError
from takeup.training.engines.pytorch.watch.confirm import Confirmed, Pauses
from takeup.training.engines.pytorch.watch.gather import Gather
from takeup.training.engines.pytorch.watch.lab import Job, Recorded, Slow, run_jobs
from takeup.training.engines.pytorch.watch.remedy import Shares
from takeup.training.engines.pytorch.watch.ring import FIRST_ROW, ROW_WORDS, Word
from takeup.training.engines.pytorch.watch.session import Session
from takeup.training.experiment.watch import new_session, ring_passes
from takeup.training.model.calls import CallLog
from takeup.training.policies.stragglers.watcher import Watcher

torch = pytest.importorskip("torch", reason="needs the package torch")

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("watch")]

NUM_ITERATIONS, NUM_RANKS = 150, 3
LONE = Path(__file__).parent / "lone_controller.py"
JOB = Job("ddp", NUM_RANKS, NUM_ITERATIONS, compute_s=0.02)
SHORTLY = (40, 75)  # iterations in which a rank is slow, and then no longer
PASSING = replace(JOB, slow=(Slow((1,), *SHORTLY, factor=4.0, is_stopped=True),))
SHARED = Job("batches", NUM_RANKS, 80, compute_s=0.02)
COUNTS = ((15, 4, 11), (1, 28, 1), (10, 10, 10))


class Beside:
    """Reads a job, and once its iterations are known does something to it, once."""

    def __init__(self, place: Path, act: Callable[[Beside], object]) -> None:
        self.place, self.gather, self.watcher = place, Gather(place), Watcher()
        self.outcome: Any = None
        self._act = act

    def look(self, is_over: bool) -> None:
        self.gather.look()
        if self.gather.is_complete:
            self.watcher.see(self.gather.read())
        if self.outcome is None and len(self.watcher.anchors) == NUM_RANKS and not is_over:
            self.outcome = self._act(self)

    def confirm(self) -> Confirmed:
        return Pauses(self.place).confirm(self.gather.readers, self.watcher.anchors, ring_passes(NUM_RANKS))

    def process(self, rank: int) -> int:
        return int(self.gather.readers[rank].word(Word.PID))


def pause(beside: Beside) -> Confirmed:
    return beside.confirm()


def pause_and_be_killed(beside: Beside) -> int:
    anchor = [str(value) for value in beside.watcher.anchors[0]]
    return subprocess.run([sys.executable, LONE, beside.place, *anchor], check=False).returncode


def pause_while_one_is_held_up(beside: Beside) -> Confirmed:
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


def pause_when_it_is_over(beside: Beside) -> Confirmed | None:
    """Ask for a pause only when the rank that was slow no longer is."""
    return beside.confirm() if beside.watcher.num_iterations > SHORTLY[1] + 5 else None


def write_garbage(beside: Beside) -> int:
    """Into rows of the past and of the future, of a rank that goes on writing."""
    reader = beside.gather.readers[1]
    head = reader.word(Word.HEAD)
    for row in (head - 2, head + 50):
        for column in range(ROW_WORDS):
            reader.ask(FIRST_ROW + ROW_WORDS * row + column, -(2**40) - column)
    reader._next = head - 2  # as if these had not been read yet
    return 1


def change_shares() -> Callable[[Beside], object]:
    """Three times, each as soon as all ranks follow the one before."""
    plans, shares = list(COUNTS), Shares(lambda paces_s, number: COUNTS[0])

    def act(beside: Beside) -> object:
        readers = beside.gather.readers
        if plans and shares.can_change(readers):
            shares._publish(readers, plans.pop(0))
        return None if plans else shares

    return act


class Together:
    """One session beside two jobs, one after the other, as beside ranks that begin anew and are fewer."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="takeup-watch-together-")
        self.session = new_session(Path(self._folder.name))
        self.counted: dict[int, int] = {}  # by the number of ranks: iterations

    def look(self, place: Path) -> None:
        for ring in place.glob("*.ring"):
            link = Path(self._folder.name, ring.name)
            if not link.exists():
                link.hardlink_to(ring)
        self.session.look()
        self.counted[self.session.gather.num_ranks] = self.session.watcher.num_iterations


ACTS: dict[str, tuple[Job, Callable[[Beside], object]]] = {
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
    besides: list[Beside] = []
    together = Together()

    def look(place: Path, is_over: bool) -> None:
        if int(place.name) == len(besides):
            besides.append(Beside(place, acts[len(besides)]))
        besides[-1].look(is_over)
        if list(ACTS)[int(place.name)] in ("alone", "fewer"):
            together.look(place)

    jobs, acts = zip(*ACTS.values(), strict=True)
    recorded = run_jobs(jobs, look)
    return {
        name: SimpleNamespace(recorded=each, beside=beside, together=together)
        for name, each, beside in zip(ACTS, recorded, besides, strict=True)
    }


def results(name: str) -> list[str]:
    recorded: Recorded = lived()[name].recorded
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
    assert confirmed.slow_ranks.get(1, 1.0) < 2.5  # it was four times as slow


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
    logs, told = lived()["passing"].recorded.logs, []
    for hours in ((0, 0, 0), (0, -3, 40)):
        skewed = [CallLog(log.rank, log.calls.copy(), log.groups) for log in logs]
        for log, skew in zip(skewed, hours, strict=True):
            log.calls["began_ns"] += skew * 3_600 * 10**9
            log.calls["ended_ns"][log.calls["ended_ns"] > 0] += skew * 3_600 * 10**9
        told.append(Watcher().see(skewed))

    assert told[0] == told[1]
    assert (1,) in [suspect.ranks for event in told[1] for suspect in event.suspects]


# Shares ---------------------------------------------------------------------------------------------------------------


def alone_by_one_process(job: Job) -> list[float]:
    """The weights after the same training by a single process, on whole batches."""
    from takeup.training.engines.pytorch.watch.lab import loops

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

    assert lived_through.beside.outcome.counts == COUNTS[-1]  # all plans were followed, one after the other
    assert np.abs(np.array(lived_through.recorded.weights) - alone_by_one_process(SHARED)).max() < 1e-6


# Acted on -------------------------------------------------------------------------------------------------------------

LASTING = 100_000
TWO_SLOW = (Slow((1,), 40, LASTING, factor=2.0), Slow((3,), 40, LASTING, factor=2.0))
TWO = Job("batches", 4, 110, compute_s=0.04, slow=TWO_SLOW)
ADAPTIVE = Job("adaptive", 3, 50, compute_s=0.18, slow=(Slow((0, 1), 20, LASTING, rate_bps=30e6),), num_rows=512)
needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("tc") is None, reason="needs Linux, root, ip and tc"
)


def watched(jobs: Sequence[Job]) -> tuple[list[Recorded], list[Session]]:
    """Jobs with a session beside each, which may do what it likes."""
    sessions: dict[str, Session] = {}

    def look(place: Path, is_over: bool) -> None:
        if place.exists():
            sessions.setdefault(place.name, new_session(place)).look()

    recorded = run_jobs(jobs, look)
    return recorded, [sessions[str(number)] for number in range(len(jobs))]


def test_two_ranks_that_become_slow_together_are_both_named_and_both_get_less() -> None:
    (recorded,), (session,) = watched([TWO])

    slow = [finding.event for finding in session.findings if finding.event.is_slow]
    named = {
        rank for event in slow for suspect in event.suspects if suspect.kind == "compute" for rank in suspect.ranks
    }
    assert named == {1, 3}
    counts = [reader.word(Word.PLAN_COUNT) for _, reader in sorted(session.gather.readers.items())]
    assert sum(counts) == 40
    assert max(counts[1], counts[3]) < 10 < min(counts[0], counts[2])
    assert np.abs(np.array(recorded.weights) - alone_by_one_process(TWO)).max() < 1e-6


@needs_root
def test_a_pipeline_with_a_thin_cable_is_asked_and_changes_its_schedule_and_nothing_else() -> None:
    (recorded, alone), (session, _) = watched([ADAPTIVE, replace(ADAPTIVE, slow=(), is_watched=False)])

    found = [finding for finding in session.findings if finding.event.suspects[:1] and finding.event.is_slow]
    links = [finding for finding in found if finding.event.suspects[0].ranks == (0, 1)]
    assert links, session.findings
    assert links[0].action == "the pipeline measures the link and plans its schedule anew"
    assert "the pipeline has changed its schedule" in [finding.action for finding in links]
    assert np.allclose(recorded.weights, alone.weights, rtol=0, atol=1e-9)


# A rank dies ----------------------------------------------------------------------------------------------------------


def test_a_rank_that_dies_in_a_pause_sets_the_others_free(tmp_path: Path) -> None:
    found: list[Beside] = []

    def die(beside: Beside) -> Confirmed:
        timer = threading.Thread(target=kill_when_stopped, args=(beside,))
        timer.start()
        confirmed = beside.confirm()
        timer.join()
        return confirmed

    def kill_when_stopped(beside: Beside) -> None:
        while beside.gather.readers[1].word(Word.STOPPED) <= 0:
            time.sleep(0.001)
        os.kill(beside.process(1), signal.SIGKILL)

    def look(place: Path, is_over: bool) -> None:
        if not found:
            found.append(Beside(place, die))
        found[0].look(is_over)

    with pytest.raises(TakeupError, match="the ddp job failed"):
        run_jobs([JOB], look)

    assert found[0].outcome.problem == "rank 1 has ended"
    assert all(found[0].gather.readers[rank].word(Word.STOPPED) < 0 for rank in (0, 2))
