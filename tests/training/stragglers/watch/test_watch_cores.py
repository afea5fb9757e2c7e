"""How long ranks wait for cores: what the kernel says, and what is made of it by iteration."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from takeup.training.stragglers.contract import CallLog, SlowdownEvent
from takeup.training.stragglers.watch import run_queue as cores_module
from takeup.training.stragglers.watch import session as session_module
from takeup.training.stragglers.watch.ring import HeaderWord, RingBuffer
from takeup.training.stragglers.watch.ring_reader import RingReader
from takeup.training.stragglers.watch.run_queue import (
    RunQueueWaits,
    UsualIterationTime,
    record_run_queue_waits,
    run_queue_wait_ns,
)
from takeup.training.stragglers.watch.session import WatchSession
from training.stragglers.watch.watched_rings import RELIEF, SLOW_LINK, Scripted, new_ring

SLOWER = replace(SLOW_LINK, before_s=0.028, after_s=0.0392)  # than the iterations of a script
needs_schedstat = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs a kernel that counts it")


def readers_of(folder: Path, num_ranks: int) -> tuple[list[RingBuffer], dict[int, RingReader]]:
    rings = [new_ring(folder, rank, num_ranks) for rank in range(num_ranks)]
    return rings, {rank: RingReader(folder / f"{rank}-1.ring") for rank in range(num_ranks)}


@needs_schedstat
def test_threads_that_compete_for_one_core_wait_for_it() -> None:
    only = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(only)})
    program = [sys.executable, "-uc", "print()\nwhile True: pass"]
    others = [subprocess.Popen(program, stdout=subprocess.PIPE) for _ in range(2)]
    for other in others:
        assert other.stdout is not None
        other.stdout.readline()  # it computes
    before_ns, until_s = run_queue_wait_ns(os.getpid()), time.process_time() + 0.2
    while time.process_time() < until_s:
        pass
    waited_ns = run_queue_wait_ns(os.getpid()) - before_ns
    os.sched_setaffinity(0, only)
    for other in others:
        other.kill()
        other.communicate()

    assert waited_ns > 50_000_000


def test_a_process_that_is_gone_has_not_waited() -> None:
    assert run_queue_wait_ns(2**22 + 1) == 0


@needs_schedstat
def test_what_ranks_of_this_machine_waited_is_written_into_their_rings(tmp_path: Path) -> None:
    rings, readers = readers_of(tmp_path, 2)
    rings[0].words[HeaderWord.PID] = os.getpid()
    rings[1].words[HeaderWord.PID] = 2**22 + 1
    rings[1].words[HeaderWord.WAITED_NS] = 77
    thread = threading.Thread(target=time.sleep, args=(0.01,))
    thread.start()

    record_run_queue_waits(readers)
    thread.join()

    assert rings[0].words[HeaderWord.WAITED_NS] > 0
    assert rings[1].words[HeaderWord.WAITED_NS] == 77  # it never becomes less


def test_waiting_is_compared_by_iteration(tmp_path: Path) -> None:
    rings, readers = readers_of(tmp_path, 2)
    cores = RunQueueWaits()
    for iteration in range(0, 61, 5):
        rings[0].words[HeaderWord.WAITED_NS] = 1_000_000 * iteration
        rings[1].words[HeaderWord.WAITED_NS] = 1_000_000 * iteration + 9_000_000 * max(0, iteration - 40)
        cores.poll(iteration, readers)

    more_s = cores.more_waiting_s(40)

    assert more_s[0] == pytest.approx(0.0, abs=1e-9)
    assert more_s[1] == pytest.approx(0.009)


def test_a_burst_of_waiting_is_not_what_ranks_usually_wait(tmp_path: Path) -> None:
    (ring,), readers = readers_of(tmp_path, 1)
    cores = RunQueueWaits()
    for iteration in range(0, 61, 5):
        ring.words[HeaderWord.WAITED_NS] += (
            25_000_000 if iteration > 40 else 500_000_000 if iteration == 30 else 5_000_000
        )
        cores.poll(iteration, readers)

    assert cores.more_waiting_s(40) == {0: pytest.approx(0.004)}


def test_looks_that_lie_across_the_beginning_count_by_what_is_beyond_it(tmp_path: Path) -> None:
    (ring,), readers = readers_of(tmp_path, 1)
    cores = RunQueueWaits()
    for iteration, waited_ms in ((0, 0), (30, 30), (44, 170), (60, 330)):
        ring.words[HeaderWord.WAITED_NS] = 1_000_000 * waited_ms
        cores.poll(iteration, readers)

    assert cores.more_waiting_s(40) == {0: pytest.approx(0.009)}


def test_what_a_look_far_across_the_beginning_saw_beyond_the_usual_was_since_then(tmp_path: Path) -> None:
    (ring,), readers = readers_of(tmp_path, 1)
    cores = RunQueueWaits()
    for iteration, waited_ms in ((0, 0), (100, 100), (260, 260 + 9 * 60), (264, 264 + 9 * 64)):
        ring.words[HeaderWord.WAITED_NS] = 1_000_000 * waited_ms
        cores.poll(iteration, readers)

    assert cores.more_waiting_s(200) == {0: pytest.approx(0.009)}


def test_if_nothing_was_seen_before_all_waiting_was_since_then(tmp_path: Path) -> None:
    (ring,), readers = readers_of(tmp_path, 1)
    cores = RunQueueWaits()
    for iteration, waited_ms in ((0, 0), (60, 200), (70, 300)):
        ring.words[HeaderWord.WAITED_NS] = 1_000_000 * waited_ms
        cores.poll(iteration, readers)

    assert cores.more_waiting_s(40) == {0: pytest.approx(0.010)}


def test_what_ranks_waited_while_they_started_is_not_what_they_waited_before(tmp_path: Path) -> None:
    (ring,), readers = readers_of(tmp_path, 1)
    cores = RunQueueWaits()
    for iteration, waited_ms in ((0, 0), (0, 5_000), (30, 5_030), (40, 5_040), (50, 5_140), (60, 5_240)):
        ring.words[HeaderWord.WAITED_NS] = 1_000_000 * waited_ms
        cores.poll(iteration, readers)

    assert cores.more_waiting_s(40) == {0: pytest.approx(0.009)}


def test_a_rank_that_spent_its_own_quota_does_not_wait_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings, readers = readers_of(tmp_path, 3)
    for rank, ring in enumerate(rings):
        ring.words[HeaderWord.PID] = rank
    delayed_ns, spent_ns = 0, 0
    monkeypatch.setattr(cores_module, "run_queue_wait_ns", lambda process: delayed_ns)
    monkeypatch.setattr(cores_module, "control_group", lambda process: Path("own" if process == 0 else "shared"))
    monkeypatch.setattr(cores_module, "throttled_ns", lambda group: spent_ns)
    for delayed_ns, spent_ns in ((5, 0), (105, 60), (112, 60)):  # noqa: B007  read by what is in place of the kernel
        record_run_queue_waits(readers)

    assert [ring.words[HeaderWord.WAITED_NS] for ring in rings] == [12, 112, 112]


def test_waiting_goes_on_to_be_counted_when_threads_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (ring,), readers = readers_of(tmp_path, 1)
    for delayed_ns in (50, 10, 15):
        monkeypatch.setattr(cores_module, "run_queue_wait_ns", lambda process, now_ns=delayed_ns: now_ns)
        record_run_queue_waits(readers)

    assert ring.words[HeaderWord.WAITED_NS] == 55


def test_one_look_since_is_too_soon_unless_it_is_the_first(tmp_path: Path) -> None:
    _, readers = readers_of(tmp_path, 1)
    cores = RunQueueWaits()
    said = []
    for iteration in (40, 60, 70):
        cores.poll(iteration, readers)
        said.append(cores.is_too_soon(55))

    assert said == [False, True, False]


def test_a_link_is_blamed_once_it_is_known_for_how_long_ranks_waited(tmp_path: Path) -> None:
    for rank in range(4):
        new_ring(tmp_path, rank, 4)
    rounds: list[list[SlowdownEvent]] = [[] for _ in range(5)]
    session = WatchSession(tmp_path, new_detector=lambda: Scripted([*rounds, [SLOW_LINK], [RELIEF]]))

    found = [[each.event for each in session.poll()] for _ in range(8)]

    assert found == [[], [], [], [], [], [], [SLOW_LINK, RELIEF], []]


def test_waiting_is_read_with_the_calls_and_not_after_they_were_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_ring(tmp_path, 0, 1)
    done = []

    class Thoughtful(Scripted):
        def see(self, logs: Sequence[CallLog]) -> list[SlowdownEvent]:
            done.append("judged")
            return super().see(logs)

    monkeypatch.setattr(session_module, "record_run_queue_waits", lambda readers: done.append("read"))
    WatchSession(tmp_path, new_detector=lambda: Thoughtful([[]])).poll()

    assert done == ["read", "judged"]


def test_nothing_is_said_of_what_was_not_seen(tmp_path: Path) -> None:
    _, readers = readers_of(tmp_path, 1)
    cores = RunQueueWaits()

    assert cores.more_waiting_s(3) == {}
    for iteration in (10, 20):
        cores.poll(iteration, readers)
    assert cores.more_waiting_s(10) == {}
    assert cores.more_waiting_s(20) == {}


def test_a_busy_machine_is_told_instead_of_blaming_a_link(tmp_path: Path) -> None:
    rings = [new_ring(tmp_path, rank, 4) for rank in range(4)]
    for ring in rings:
        ring.words[HeaderWord.PID] = 2**22 + 1  # which the kernel knows nothing of
    rounds: list[list[SlowdownEvent]] = [[] for _ in range(8)]
    session = WatchSession(tmp_path, new_detector=lambda: Scripted([*rounds, [SLOWER]]))

    for number in range(9):
        for ring in rings:
            ring.words[HeaderWord.WAITED_NS] = 80_000_000 * max(0, number - 5)
        found = session.poll()

    (finding,) = found
    assert finding.event.suspects[0].kind == "host"
    assert finding.event.suspects[0].ranks == (0, 1, 2, 3)
    assert finding.action == "none; end what else runs on this machine, or start fewer ranks"


def busy_session(folder: Path, *events: SlowdownEvent) -> tuple[WatchSession, list[RingBuffer]]:
    """Eight quiet rounds of ten iterations, then these events, in rounds of their own."""
    rings = [new_ring(folder, rank, 4) for rank in range(4)]
    for ring in rings:
        ring.words[HeaderWord.PID] = 2**22 + 1
    rounds: list[list[SlowdownEvent]] = [[] for _ in range(8)]
    script = [*rounds, *([event] for event in events)]
    return WatchSession(folder, new_detector=lambda: Scripted(script)), rings


def events_told(session: WatchSession, rings: list[RingBuffer], num_rounds: int) -> list[SlowdownEvent]:
    """While ranks wait for cores from the sixth round on."""
    for number in range(num_rounds):
        for ring in rings:
            ring.words[HeaderWord.WAITED_NS] = 80_000_000 * max(0, number - 5)
        session.poll()
    return [finding.event for finding in session.findings]


def test_short_cores_are_no_news_while_iterations_take_as_long_as_usual(tmp_path: Path) -> None:
    as_usual = replace(SLOW_LINK, before_s=0.022, after_s=0.0295)
    session, rings = busy_session(tmp_path, as_usual, RELIEF, SLOWER, RELIEF)

    told = events_told(session, rings, 12)

    assert [event.is_slow for event in told] == [True, False]
    assert told[0].after_s == SLOWER.after_s


def test_a_link_that_is_slow_is_news_however_long_iterations_usually_take(tmp_path: Path) -> None:
    as_usual = replace(SLOW_LINK, before_s=0.022, after_s=0.0295)
    session, _ = busy_session(tmp_path, as_usual)

    assert events_told(session, [], 12) == [as_usual]


def test_usual_is_the_median_of_many_iterations_each_counted_once() -> None:
    usual = UsualIterationTime()
    assert usual.is_exceeded_by(0.001)

    latest_s = deque([1.0] * 6, maxlen=6)
    usual.poll(6, latest_s)
    for number in range(7, 10):
        latest_s.append(3.0)
        usual.poll(number, latest_s)
    usual.poll(9, latest_s)

    assert list(usual._times_s) == [1.0] * 6 + [3.0] * 3
    assert usual.is_exceeded_by(1.26)
    assert not usual.is_exceeded_by(1.24)


def test_ranks_that_are_compared_with_each_other_are_compared_in_their_waiting_too(tmp_path: Path) -> None:
    rings, readers = readers_of(tmp_path, 2)
    cores = RunQueueWaits()
    for number in range(1, 9):
        for ring, each_ms in zip(rings, (30, 90), strict=True):
            ring.words[HeaderWord.WAITED_NS] = 10 * each_ms * 1_000_000 * number
        cores.poll(10 * number, readers)

    found = cores.more_than_others_s()

    assert found[0] == pytest.approx(0.0)
    assert found[1] == pytest.approx(0.06)
    assert RunQueueWaits().more_than_others_s() == {}
