"""The cluster inside this process: jobs come and end by the clock, and what cannot be done is refused."""

from __future__ import annotations

import pytest

from cluster.cluster_outcomes import HOUR_S, workload
from support.embedded_cluster import EmbeddedEngine
from takeup.cluster.model import Evict, Grade, Hold, Quota, SetQuota, Start, Workload
from takeup.cluster.policies import find_policy
from takeup.cluster.quota.allocator import SpotQuota
from takeup.core.clock import VirtualClock
from takeup.core.control import ControlLoop
from takeup.errors import BadInput

SPOT = (1, 0, 8.0, 1, 0.0, 4.0)
HIGH = (0, 0, 8.0, 1, 1.5, 2.0)


def engine(*jobs: tuple[int, int, float, int, float, float], **changes: object) -> EmbeddedEngine:
    return EmbeddedEngine(workload(list(jobs), {"a": 1, "b": 1}, **changes), VirtualClock())


def at(given: EmbeddedEngine, hours: float) -> EmbeddedEngine:
    given.clock.run(hours * HOUR_S)
    return given


def start(job: str, *nodes: str, grade: Grade = Grade.OPPORTUNISTIC) -> Start:
    return Start(job, nodes, grade, "because")


def test_jobs_come_when_they_were_submitted_and_go_when_they_are_done() -> None:
    given = engine(SPOT, HIGH)
    before = given.observe()
    given.apply(start("job-0", "node-0"))
    running, later = at(given, 2.0).observe(), at(given, 4.0).observe()

    assert [it.job.id for it in before.waiting] == ["job-0"]
    assert [run.job.id for run in running.runs] == ["job-0"]
    assert [it.job.id for it in running.waiting] == ["job-1"]
    assert later.runs == ()
    assert given.num_finished == 1


def test_a_state_says_when_work_was_saved_and_not_how_long_it_will_take() -> None:
    given = engine(SPOT)
    given.observe()
    given.apply(start("job-0", "node-0"))
    (run,) = at(given, 1.75).observe().runs

    assert (run.start_s, run.saved_s) == (0.0, HOUR_S)
    assert not any("duration" in name for name in type(run.job).__slots__)


def test_an_evicted_job_waits_again_and_does_what_it_lost_once_more() -> None:
    given = engine(SPOT)
    given.observe()
    given.apply(start("job-0", "node-0"))
    at(given, 1.5).observe()
    given.apply(Evict("job-0", "x", 0.0, "room"))
    state = given.observe()
    given.apply(start("job-0", "node-0"))
    runs_at = {hours: len(at(given, hours).observe().runs) for hours in (4.5, 4.6)}

    assert [(it.job.id, it.since_s, it.num_evictions) for it in state.waiting] == [("job-0", 1.5 * HOUR_S, 1)]
    assert [(it.job_id, it.nodes) for it in state.evictions] == [("job-0", ("node-0",))]
    assert given.lost_gpu_s == pytest.approx(0.5 * HOUR_S * 8)
    assert runs_at == {4.5: 1, 4.6: 0}  # three hours were left, and the restart


def test_a_job_without_checkpoints_loses_everything() -> None:
    given = engine(SPOT, job_checkpoint_s=workload([SPOT], {"a": 1, "b": 1}).job_checkpoint_s + float("inf"))
    given.observe()
    given.apply(start("job-0", "node-0"))
    at(given, 3.0).observe()
    given.apply(Evict("job-0", "x", 0.0, "room"))

    assert given.lost_gpu_s == pytest.approx(3 * HOUR_S * 8)


def test_evictions_are_remembered_for_a_day() -> None:
    given = engine(SPOT)
    given.observe()
    given.apply(start("job-0", "node-0"))
    given.apply(Evict("job-0", "x", 0.0, "room"))

    assert len(at(given, 23.0).observe().evictions) == 1
    assert at(given, 25.0).observe().evictions == ()


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (start("job-9", "node-0"), "does not wait"),
        (start("job-0", "node-0", "node-0"), "1 workers, 2 nodes were named"),
        (start("job-0", "node-1"), "is no node of pool 'a'"),
        (start("job-0", "nowhere"), "is no node of pool 'a'"),
        (start("job-1", "node-0"), "no room for 8 GPUs"),
        (Evict("job-1", "x", 0.0, "room"), "does not run"),
        (Evict("job-2", "x", 0.0, "room"), "only spot jobs are evicted"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(decision: Start | Evict, words: str) -> None:
    given = engine(SPOT, (0, 0, 8.0, 1, 0.0, 1.0), (0, 0, 4.0, 1, 0.0, 1.0))
    given.observe()
    given.apply(start("job-2", "node-0", grade=Grade.HIGH))
    before = given.observe()
    with pytest.raises(BadInput, match=words):
        given.apply(decision)

    assert given.observe() == before


def test_a_quota_is_kept_and_a_hold_does_nothing() -> None:
    given = engine(SPOT)
    before = given.observe()
    quota = Quota("a", {1.0: 4.0})
    given.apply(SetQuota(quota, "so"))
    given.apply(Hold("job-0", "so"))

    assert given.observe().quotas == {"a": quota}
    assert given.observe().waiting == before.waiting


def played(given: Workload, policy: str, hours: float) -> EmbeddedEngine:
    clock = VirtualClock()
    found = EmbeddedEngine(given, clock)
    loop = ControlLoop(clock, found, find_policy(policy, SpotQuota()), 300.0)
    loop.start()
    clock.run(hours * HOUR_S)

    assert loop.counters.num_failed_rounds == loop.counters.num_refused == loop.counters.num_failed == 0
    return found


def test_gfs_makes_room_where_fifo_waits() -> None:
    jobs = workload([SPOT, HIGH], {"a": 1, "b": 1})
    gfs, fifo = (played(jobs, policy, 2.0).observe() for policy in ("gfs", "fifo"))

    assert [run.job.id for run in gfs.runs] == ["job-1"]
    assert [run.job.id for run in fifo.runs] == ["job-0"]
    assert len(gfs.evictions) == 1


def test_all_jobs_of_a_crowded_day_are_done_in_the_end() -> None:
    jobs = [(number % 2, number % 2, float(1 + number % 8), 1, number / 10, 1.0) for number in range(40)]
    found = played(workload(jobs, {"a": 1, "b": 1}), "gfs", 80.0)

    assert found.num_finished == 40
