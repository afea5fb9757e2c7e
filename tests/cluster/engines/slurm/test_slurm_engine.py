"""The engine on a Slurm in memory: what it sees, what it does, and what it refuses to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cluster.engines.slurm.fake_slurm import FakeSlurm, Killed
from takeup.cluster.engines import ENGINES, find_engine
from takeup.cluster.engines.slurm import Slurm, SlurmDown, SlurmEngine, StaleState
from takeup.cluster.model import Evict, Grade, Hold, Job, Kind, Node, Quota, Run, SetQuota, Start, Waiting
from takeup.cluster.policies import find_policy
from takeup.errors import BadInput, OutputFailed, TakeupError

Clock = Callable[[], float]


def engine_of(fake: FakeSlurm, journal: Path | None = None, *, read_only: bool = False) -> SlurmEngine:
    """An engine whose clocks are those of the fake."""

    def now_s() -> float:
        return fake.now_s

    return SlurmEngine(journal, slurm=Slurm(fake), wall=now_s, monotonic=now_s, read_only=read_only)


def start(job: str, *nodes: str, grade: Grade = Grade.GUARANTEED) -> Start:
    return Start(job, nodes, grade, "because")


def evict(job: str, for_job: str = "9", notice_s: float = 0.0) -> Evict:
    return Evict(job, for_job, 0.0, "because", notice_s)


def quota(gpus: float, pool: str = "a100") -> SetQuota:
    return SetQuota(Quota(pool, {1.0: gpus, 4.0: gpus / 2}), "because")


def test_the_engine_is_found_by_its_name() -> None:
    assert "slurm" in ENGINES
    assert find_engine("slurm") is SlurmEngine


# What it sees ---------------------------------------------------------------------------------------------------------


def test_a_held_job_waits_on_the_terms_of_its_qos() -> None:
    fake = FakeSlurm()
    fake.submit("hp", 8, num_nodes=2)
    fake.submit("spot", 2, comment="takeup guarantee_h=4 checkpoint_s=600", account="vision")

    state = engine_of(fake).observe()

    assert state.waiting == (
        Waiting(Job("1", Kind.HIGH, "research", "a100", 8, 2, 1000.0, checkpoint_s=float("inf")), 1000.0),
        Waiting(Job("2", Kind.SPOT, "vision", "a100", 2, 1, 1000.0, 4.0, 600.0), 1000.0),
    )


def test_a_running_job_shows_where_since_when_and_how_far_it_is_safe() -> None:
    fake = FakeSlurm()
    fake.run("spot_idle", 2, "n1", comment="takeup saved_s=1030", restart_cnt=2)
    fake.now_s = 1060.0

    (run,) = engine_of(fake).observe().runs

    job = Job("1", Kind.SPOT, "research", "a100", 2, 1, 1000.0, checkpoint_s=float("inf"))
    assert run == Run(job, ("n1",), 1000.0, Grade.OPPORTUNISTIC, 1030.0, 2)


def test_a_checkpoint_of_an_earlier_run_does_not_count() -> None:
    fake = FakeSlurm()
    fake.run("spot", 2, "n1", comment="takeup saved_s=400")

    assert engine_of(fake).observe().runs[0].saved_s == 1000.0


def test_malformed_comments_are_counted_and_the_job_is_kept() -> None:
    fake = FakeSlurm()
    fake.run("spot", 2, "n1", comment="takeup saved_s=never guarantee_h=x")
    engine = engine_of(fake)

    state = engine.observe()

    assert len(state.runs) == 1
    assert engine.skipped["malformed remarks in job comments"] == 2


def test_gpus_of_jobs_that_are_not_ours_are_taken_off_their_node() -> None:
    fake = FakeSlurm(num_nodes=2)
    fake.run("normal", 3, "n1")

    state = engine_of(fake).observe()

    assert state.nodes == (Node("n0", "a100", 8), Node("n1", "a100", 5))
    assert state.runs == ()


def test_a_node_that_drains_is_not_healthy() -> None:
    fake = FakeSlurm(num_nodes=2, node_states={"n1": "draining"})

    assert [node.healthy for node in engine_of(fake).observe().nodes] == [True, False]


def test_a_released_job_counts_as_running_where_it_was_put() -> None:
    fake = FakeSlurm()
    job = fake.submit("spot", 2)
    engine = engine_of(fake)
    engine.observe()

    engine.apply(start(job, "n3"))

    (run,) = engine.observe().runs
    assert (run.job.id, run.nodes, run.grade) == (job, ("n3",), Grade.GUARANTEED)


@pytest.mark.parametrize(
    "fields",
    [
        {"comment": "takeup parked"},
        {"dependency": "afterok:1(unfulfilled)"},
        {"dependency": "afternotok:99(failed)"},
        {"eligible_time": 5000},
        {"tres_per_node": ""},
        {"tres_per_node": "gres:gpu:h800:2"},
    ],
)
def test_jobs_that_are_not_to_start_yet_are_left_out_and_counted(fields: dict[str, Any]) -> None:
    fake = FakeSlurm()
    fake.run("hp", 8, "n0")
    fake.submit("spot", 2, **fields)
    engine = engine_of(fake)

    assert engine.observe().waiting == ()
    assert sum(engine.skipped.values()) == 1


def test_a_job_may_start_when_those_it_depends_on_are_over() -> None:
    fake = FakeSlurm()
    fake.submit("spot", 2, dependency="afterok:77(unfulfilled)")

    assert len(engine_of(fake).observe().waiting) == 1


@pytest.mark.parametrize(("state", "num_waiting"), [("COMPLETED", 1), ("FAILED", 0), ("CANCELLED", 0)])
def test_a_job_whose_dependency_failed_is_left_alone(state: str, num_waiting: int) -> None:
    fake = FakeSlurm()
    first = fake.run("hp", 2, "n0")
    fake.submit("hp", 8, dependency=f"afterok:{first}(unfulfilled)")
    fake.jobs[first]["job_state"] = state

    assert len(engine_of(fake).observe().waiting) == num_waiting


def test_a_gang_of_small_workers_gets_different_nodes() -> None:
    fake = FakeSlurm()
    fake.submit("spot", 2, num_nodes=3)

    (wait,) = engine_of(fake).observe().waiting

    assert wait.job.gpus_per_worker > 4  # two of them fit on no node of eight


def test_an_evicted_job_keeps_its_place_by_when_it_was_first_submitted() -> None:
    fake = FakeSlurm()
    job = fake.run("spot", 2, "n0")
    engine = engine_of(fake)
    engine.observe()

    engine.apply(evict(job))
    fake.tick(50)

    (wait,) = engine.observe().waiting
    assert (wait.job.submit_s, wait.since_s, wait.num_evictions) == (1000.0, 1050.0, 1)


# What it does ---------------------------------------------------------------------------------------------------------


def test_a_start_pins_releases_and_sets_the_terms() -> None:
    fake = FakeSlurm()
    job = fake.submit("spot", 2)
    engine = engine_of(fake)
    engine.observe()

    engine.apply(start(job, "n2", grade=Grade.OPPORTUNISTIC))
    fake.tick()

    row = fake.jobs[job]
    assert (row["job_state"], row["nodes"], row["qos"]) == ("RUNNING", "n2", "spot_idle")
    assert row["admin_comment"] == "why it runs: because"


def test_an_administrators_comment_is_not_overwritten() -> None:
    fake = FakeSlurm()
    job = fake.submit("spot", 2, admin_comment="takeup guarantee_h=2")
    engine = engine_of(fake)
    engine.observe()

    engine.apply(start(job, "n2"))

    assert not any("AdminComment" in change for change in fake.changes)


def test_starting_twice_is_starting_once() -> None:
    fake = FakeSlurm()
    job = fake.submit("hp", 8)
    engine = engine_of(fake)
    engine.observe()
    engine.apply(start(job, "n2", grade=Grade.HIGH))
    engine.observe()

    engine.apply(start(job, "n3", grade=Grade.HIGH))

    assert fake.jobs[job]["required_nodes"] == "n2"


def test_an_eviction_requeues_and_holds_and_is_remembered() -> None:
    fake = FakeSlurm()
    job = fake.run("spot", 2, "n1")
    engine = engine_of(fake)
    engine.observe()

    engine.apply(evict(job))
    fake.tick()

    (eviction,) = engine.observe().evictions
    assert (eviction.job_id, eviction.when_s, eviction.nodes) == (job, 1000.0, ("n1",))
    assert (fake.jobs[job]["priority"], fake.jobs[job]["restart_cnt"]) == (0, 1)


def test_a_job_that_slurm_has_not_started_yet_is_merely_held_again() -> None:
    fake = FakeSlurm()
    job = fake.submit("spot", 2)
    engine = engine_of(fake)
    engine.observe()
    engine.apply(start(job, "n1"))
    engine.observe()

    engine.apply(evict(job))

    state = engine.observe()
    assert [wait.job.id for wait in state.waiting] == [job]
    assert (state.evictions, fake.jobs[job]["restart_cnt"]) == ((), 0)


def test_who_makes_room_leaves_between_the_placing_and_the_release_of_the_job() -> None:
    fake = FakeSlurm(num_nodes=1)
    victim, high = fake.run("spot", 8, "n0"), fake.submit("hp", 8)
    engine = engine_of(fake)
    engine.observe()

    engine.apply(evict(victim, high))
    before = list(fake.changes)
    engine.apply(start(high, "n0", grade=Grade.HIGH))

    assert before == []
    assert [change.split()[1] for change in fake.changes] == ["update", "requeuehold", "release"]


def test_nobody_leaves_for_a_job_that_cannot_start() -> None:
    fake = FakeSlurm(num_nodes=1)
    victim, high = fake.run("spot", 8, "n0"), fake.submit("hp", 8)
    engine = engine_of(fake)
    engine.observe()
    engine.apply(evict(victim, high))

    with pytest.raises(BadInput, match="cannot run on"):
        engine.apply(start(high, "n7", grade=Grade.HIGH))

    engine.observe()
    assert fake.changes == []


def test_room_for_a_job_that_starts_later_is_made_before_the_next_look() -> None:
    fake = FakeSlurm(num_nodes=1)
    victim, high = fake.run("spot", 8, "n0"), fake.submit("hp", 8)
    engine = engine_of(fake)
    engine.observe()
    engine.apply(evict(victim, high))

    state = engine.observe()

    assert (fake.jobs[victim]["job_state"], state.runs) == ("COMPLETING", ())


def test_room_that_was_to_be_made_long_ago_is_not_made() -> None:
    fake = FakeSlurm(num_nodes=1)
    victim, high = fake.run("spot", 8, "n0"), fake.submit("hp", 8)
    engine = engine_of(fake)
    engine.observe()
    engine.apply(evict(victim, high))
    fake.now_s += 60.0

    state = engine.observe()

    assert [run.job.id for run in state.runs] == [victim]


def test_a_victim_that_left_by_itself_does_not_keep_the_job_waiting() -> None:
    fake = FakeSlurm(num_nodes=1)
    victim, high = fake.run("spot", 8, "n0"), fake.submit("hp", 8)
    engine = engine_of(fake)
    engine.observe()
    engine.apply(evict(victim, high))
    fake.jobs[victim].update(job_state="COMPLETED", nodes="", gres_detail=[])

    engine.apply(start(high, "n0", grade=Grade.HIGH))
    fake.tick()

    assert (fake.jobs[high]["job_state"], fake.jobs[victim]["restart_cnt"]) == ("RUNNING", 0)


def test_all_who_make_room_are_asked_at_once_and_one_that_did_not_start_is_merely_held() -> None:
    fake = FakeSlurm(num_nodes=1)
    runs, waiting, high = [fake.run("spot", 2, "n0") for _ in range(3)], fake.submit("spot", 2), fake.submit("hp", 8)
    engine = engine_of(fake)
    engine.observe()
    engine.apply(start(waiting, "n0"))
    engine.observe()
    fake.commands.clear()

    for name in (*runs, waiting):
        engine.apply(evict(name, high))
    engine.apply(start(high, "n0", grade=Grade.HIGH))

    middle = fake.commands[1:-1]
    assert middle == [f"scontrol uhold {waiting}", f"scontrol requeuehold Incomplete {' '.join(runs)}"]


def test_evictions_in_which_a_controller_was_killed_are_ended_by_the_next_one(tmp_path: Path) -> None:
    fake = FakeSlurm(num_nodes=1)
    victim, high = fake.run("spot", 8, "n0"), fake.submit("hp", 8)
    engine = engine_of(fake, tmp_path / "journal")
    engine.observe()
    engine.apply(evict(victim, high))
    fake.kill_at = 1  # the job has its nodes, its victim was written down
    with pytest.raises(Killed):
        engine.apply(start(high, "n0", grade=Grade.HIGH))
    engine.close()
    fake.kill_at = -1

    successor = engine_of(fake, tmp_path / "journal")
    (eviction,) = successor.observe().evictions
    successor.close()

    assert (eviction.job_id, fake.jobs[victim]["restart_cnt"]) == (victim, 1)


def test_evictions_of_long_ago_are_not_made_up_for(tmp_path: Path) -> None:
    fake = FakeSlurm(num_nodes=1)
    victim = fake.run("spot", 8, "n0")
    engine = engine_of(fake, tmp_path / "journal")
    engine.observe()
    fake.kill_at = 0
    with pytest.raises(Killed):
        engine.apply(evict(victim))
    engine.close()
    fake.kill_at = -1
    fake.now_s += 3600.0

    successor = engine_of(fake, tmp_path / "journal")
    (run,) = successor.observe().runs
    successor.close()

    assert run.job.id == victim


def test_a_quota_becomes_the_limit_of_the_guaranteed_qos() -> None:
    fake = FakeSlurm()
    engine = engine_of(fake)
    engine.observe()

    engine.apply(quota(12.7))
    engine.apply(quota(12.7))

    assert fake.limits == {"spot": 12.0}
    assert len(fake.changes) == 1
    assert engine.observe().quotas["a100"].gpus_by_hours == {1.0: 12.7, 4.0: 6.35}


def test_no_quota_is_no_limit() -> None:
    fake = FakeSlurm()
    engine = engine_of(fake)
    engine.observe()

    engine.apply(SetQuota(Quota("a100", {float("inf"): float("inf")}), "because"))

    assert fake.limits == {"spot": -1.0}


def test_with_gpus_of_several_models_each_has_its_own_limit() -> None:
    fake = FakeSlurm(node_models={"n3": "h800"})
    engine = engine_of(fake)
    engine.observe()

    engine.apply(quota(4.0, pool="h800"))

    assert fake.changes[0].endswith("modify qos spot set GrpTRES=gres/gpu:h800=4")


def test_holding_a_job_that_waits_changes_nothing() -> None:
    fake = FakeSlurm()
    job = fake.submit("spot", 2)
    engine = engine_of(fake)
    engine.observe()

    engine.apply(Hold(job, "no room"))

    assert fake.changes == []


def test_a_released_job_that_does_not_start_is_held_again() -> None:
    fake = FakeSlurm()
    job = fake.submit("spot", 2)
    engine = engine_of(fake)
    engine.observe()
    engine.apply(start(job, "n1"))
    fake.now_s += 31.0
    first = engine.observe()

    assert (first.waiting, first.runs, fake.jobs[job]["priority"]) == ((), (), 0)
    assert engine.skipped["waiting jobs that Slurm would not start where they were put"] == 1
    fake.now_s += 61.0
    assert [wait.job.id for wait in engine.observe().waiting] == [job]


def test_a_job_whose_time_slurm_forgot_with_its_release_is_left_alone() -> None:
    fake = FakeSlurm()
    job = fake.submit("hp", 8)
    engine = engine_of(fake)
    engine.observe()
    engine.apply(start(job, "n1", grade=Grade.HIGH))
    fake.jobs[job]["eligible_time"] = 0  # as a release in the next second leaves it
    fake.now_s += 1.0

    (run,) = engine.observe().runs

    assert (run.job.id, fake.jobs[job]["priority"]) == (job, 1)


def test_a_job_that_slurm_requeued_because_its_node_broke_is_placed_anew() -> None:
    fake = FakeSlurm()
    job = fake.run("hp", 8, "n1")
    fake.jobs[job].update(job_state="PENDING", nodes="", gres_detail=[], restart_cnt=1, eligible_time=1121)
    fake.node_states["n1"] = "down"

    (wait,) = engine_of(fake).observe().waiting

    assert (wait.job.id, fake.jobs[job]["priority"]) == (job, 0)


# Notices --------------------------------------------------------------------------------------------------------------


def test_a_job_that_asked_for_it_is_told_before_it_is_evicted() -> None:
    fake = FakeSlurm()
    victim = fake.run("spot", 8, "n1", comment="takeup notice=USR1")
    high = fake.submit("hp", 8)
    engine = engine_of(fake)
    engine.observe()

    engine.apply(evict(victim, high, notice_s=60.0))
    state = engine.observe()

    assert fake.changes == [f"scancel --signal=USR1 --batch {victim}"]
    assert state.nominations == {high: ("n1",)}
    assert (state.runs, state.nodes[1].num_gpus) == ((), 0)


@pytest.mark.parametrize("saved_s", [1000, 1004])
def test_it_goes_as_soon_as_it_has_saved(saved_s: int) -> None:
    fake = FakeSlurm(now_s=1000.75)  # jobs tell whole seconds
    victim = fake.run("spot", 8, "n1", comment="takeup notice=USR1")
    high = fake.submit("hp", 8)
    engine = engine_of(fake)
    engine.observe()
    engine.apply(evict(victim, high, notice_s=60.0))

    fake.now_s += 5.0
    fake.jobs[victim]["comment"] = f"takeup notice=USR1 saved_s={saved_s}"
    engine.observe()

    assert fake.jobs[victim]["job_state"] == "COMPLETING"


def test_it_goes_when_its_time_is_over_also_under_another_controller(tmp_path: Path) -> None:
    fake = FakeSlurm()
    victim = fake.run("spot", 8, "n1", comment="takeup notice=USR1")
    high = fake.submit("hp", 8)
    engine = engine_of(fake, tmp_path / "journal")
    engine.observe()
    engine.apply(evict(victim, high, notice_s=60.0))
    engine.close()

    successor = engine_of(fake, tmp_path / "journal")
    fake.now_s += 30.0
    successor.observe()
    before = str(fake.jobs[victim]["job_state"])
    fake.now_s += 31.0
    successor.observe()
    successor.close()

    assert (before, fake.jobs[victim]["job_state"]) == ("RUNNING", "COMPLETING")


def test_a_job_that_saves_nothing_is_not_waited_for() -> None:
    fake = FakeSlurm()
    victim = fake.run("spot", 8, "n1")
    engine = engine_of(fake)
    engine.observe()
    engine.apply(evict(victim, fake.submit("hp", 8), notice_s=60.0))

    engine.observe()

    assert fake.jobs[victim]["job_state"] == "COMPLETING"
    assert not any(change.startswith("scancel") for change in fake.changes)


# What it refuses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", ["hp", "normal"])
def test_only_spot_jobs_are_evicted(qos: str) -> None:
    fake = FakeSlurm()
    job = fake.run(qos, 2, "n1")
    engine = engine_of(fake)
    engine.observe()

    with pytest.raises(BadInput, match="only spot jobs"):
        engine.apply(evict(job))


@pytest.mark.parametrize("notice_s", [0.0, 60.0])
def test_no_job_with_a_promise_is_evicted_for_a_spot_job(notice_s: float) -> None:
    fake = FakeSlurm()
    job, other = fake.run("spot", 2, "n1"), fake.submit("spot", 8)
    engine = engine_of(fake)
    engine.observe()

    with pytest.raises(BadInput, match="only narrower jobs without a promise move"):
        engine.apply(evict(job, other, notice_s))
    with pytest.raises(BadInput, match="let it wait"):
        engine.apply(start(other, "n1"))
    fake.tick()
    state = engine.observe()
    assert ([run.job.id for run in state.runs], state.evictions) == ([job], ())


def test_a_narrow_job_without_a_promise_moves_for_a_wider_one() -> None:
    fake = FakeSlurm()
    narrow, wide = fake.run("spot_idle", 2, "n1"), fake.submit("spot", 8)
    engine = engine_of(fake)
    engine.observe()

    engine.apply(evict(narrow, wide))
    engine.apply(start(wide, "n1", grade=Grade.OPPORTUNISTIC))
    engine.apply(start(narrow, "n0", grade=Grade.OPPORTUNISTIC))  # it still leaves, and starts in the next round
    fake.tick()
    state = engine.observe()

    assert {run.job.id: run.nodes for run in state.runs} == {wide: ("n1",)}
    assert [wait.job.id for wait in state.waiting] == [narrow]
    assert [it.job_id for it in state.evictions] == [narrow]


def test_the_limit_of_the_quota_leaves_room_for_runs_whose_promise_is_over() -> None:
    """Two GPUs run on after their hour, two are promised now; of a quota of four two more may be promised."""
    fake = FakeSlurm()
    fake.run("spot", 2, "n0")
    fake.now_s += 4000.0
    fake.run("spot", 2, "n1")
    engine = engine_of(fake)
    engine.observe()
    engine.apply(quota(4.0))
    job, other = fake.submit("spot", 2), fake.submit("spot", 2)
    engine.observe()
    engine.apply(start(job, "n2"))

    assert fake.limits == {"spot": 6.0}
    with pytest.raises(BadInput, match="exceed the quota"):
        engine.apply(start(other, "n2"))


def test_no_run_is_evicted_twice() -> None:
    fake = FakeSlurm()
    job = fake.run("spot", 2, "n1")
    engine = engine_of(fake)
    engine.observe()
    engine.apply(evict(job))

    with pytest.raises(BadInput, match="no run is evicted twice"):
        engine.apply(evict(job))


def test_nobody_is_let_in_above_the_quota() -> None:
    fake = FakeSlurm()
    first, second = fake.submit("spot", 2), fake.submit("spot", 2)
    engine = engine_of(fake)
    engine.observe()
    engine.apply(quota(3.0))
    engine.apply(start(first, "n0"))

    with pytest.raises(BadInput, match="exceed the quota"):
        engine.apply(start(second, "n0"))


def test_a_job_that_is_gone_is_named() -> None:
    engine = engine_of(FakeSlurm())
    engine.observe()

    with pytest.raises(BadInput, match="no job 42"):
        engine.apply(evict("42"))


def test_a_node_that_is_gone_is_named() -> None:
    fake = FakeSlurm()
    job = fake.submit("spot", 2)
    engine = engine_of(fake)
    engine.observe()

    with pytest.raises(BadInput, match="cannot run on n77"):
        engine.apply(start(job, "n77"))


def test_nothing_is_done_before_the_first_look() -> None:
    fake = FakeSlurm()

    with pytest.raises(StaleState):
        engine_of(fake).apply(quota(3.0))
    assert fake.changes == []


def test_nothing_is_evicted_on_an_old_state() -> None:
    fake = FakeSlurm()
    job = fake.run("spot", 2, "n1")
    engine = engine_of(fake)
    engine.observe()
    fake.now_s += 11.0

    with pytest.raises(StaleState, match="older than 10 s"):
        engine.apply(evict(job))
    assert fake.changes == []


def test_a_clock_that_goes_backwards_costs_one_round() -> None:
    fake = FakeSlurm()
    job = fake.run("spot", 2, "n1")
    engine = engine_of(fake)
    engine.observe()
    fake.now_s -= 3600.0

    with pytest.raises(StaleState, match="backwards"):
        engine.observe()
    with pytest.raises(StaleState):
        engine.apply(evict(job))
    assert [run.job.id for run in engine.observe().runs] == [job]


def test_an_engine_that_only_looks_changes_nothing(tmp_path: Path) -> None:
    fake = FakeSlurm()
    waits, runs = fake.submit("spot", 2), fake.run("spot", 2, "n1")
    engine = engine_of(fake, tmp_path / "journal", read_only=True)
    engine.observe()

    for decision in (start(waits, "n0"), evict(runs), quota(3.0)):
        with pytest.raises(TakeupError):
            engine.apply(decision)
    assert fake.changes == []
    assert list(tmp_path.iterdir()) == []


def test_missing_qos_are_named_with_the_command_that_makes_them() -> None:
    fake = FakeSlurm()
    engine = SlurmEngine(slurm=Slurm(fake))
    engine.classes = type(engine.classes)(high="gold")

    with pytest.raises(BadInput, match="sacctmgr add qos gold"):
        engine.observe()


def test_a_slurm_that_is_away_is_asked_less_and_less_often_and_found_again() -> None:
    fake = FakeSlurm(is_down=True)
    asked: list[float] = []

    def call(arguments: object) -> object:
        asked.append(fake.now_s)
        return fake(arguments)  # type: ignore[arg-type]

    engine = engine_of(fake)
    engine._slurm = Slurm(call)  # type: ignore[arg-type]
    for _ in range(300):
        with pytest.raises(SlurmDown):
            engine.observe()
        fake.now_s += 1.0
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    fake.is_down = False
    fake.now_s += 61.0

    assert gaps[:6] == [1, 2, 4, 8, 16, 32]
    assert set(gaps[6:]) == {60}
    assert engine.observe().nodes


def test_an_eviction_that_was_refused_by_a_full_disk_never_happens_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeSlurm(num_nodes=2)
    job = fake.run("spot", 8, "n0")
    engine = engine_of(fake, tmp_path / "journal")
    engine.observe()

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputFailed):
        engine.apply(evict(job))
    monkeypatch.undo()
    engine.close()
    fake.tick()

    again = engine_of(fake, tmp_path / "journal")
    again.observe()
    again.close()
    assert fake.jobs[job]["job_state"] == "RUNNING"
    assert not any("requeuehold" in command for command in fake.commands)


# Holds of others ------------------------------------------------------------------------------------------------------


def test_a_job_that_an_operator_holds_is_never_released() -> None:
    fake = FakeSlurm()
    gated = fake.submit("spot", 2)
    fake.submit("spot", 2, state_reason="JobHeldAdmin")
    fake.submit("hp", 2, admin_comment="")  # sbatch --hold: the gate did not hold it
    engine = engine_of(fake)

    state = engine.observe()

    assert [it.job.id for it in state.waiting] == [gated]
    assert engine.skipped == {"jobs that an operator or their owner holds": 2}


def test_a_job_that_an_operator_requeued_and_held_stays_held(tmp_path: Path) -> None:
    fake = FakeSlurm()
    ours, theirs = fake.submit("spot", 2), fake.submit("spot", 2)
    engine = engine_of(fake, tmp_path / "journal")
    engine.observe()
    for name in (ours, theirs):
        engine.apply(start(name, "n0"))
    fake.tick()
    engine.observe()
    engine.apply(evict(ours))
    fake(["scontrol", "requeuehold", theirs, theirs])
    fake.tick(130.0)

    waiting = [[it.job.id for it in engine.observe().waiting]]
    engine.close()
    again = engine_of(fake, tmp_path / "journal")
    waiting.append([it.job.id for it in again.observe().waiting])
    again.close()

    assert waiting == [[ours], [ours]]


def test_a_job_that_its_owner_held_after_its_release_stays_held() -> None:
    fake = FakeSlurm()
    job = fake.submit("spot", 8)
    engine = engine_of(fake)
    engine.observe()
    engine.apply(start(job, "n0"))
    fake.tick()
    engine.observe()
    fake.jobs[job].update(job_state="PENDING", nodes="", priority=0, restart_cnt=1, required_nodes="")

    assert engine.observe().waiting == ()


# Where a job may run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        ({"partition": "small"}, {"n0"}),
        ({"partition": "small,all"}, None),
        ({"features": "ib"}, {"n1", "n2"}),
        ({"features": "ib&fast|old"}, {"n2", "n3"}),
        ({"excluded_nodes": "n[0-2]"}, {"n3"}),
        ({"required_nodes": "n2"}, {"n2"}),
        ({"partition": "small", "required_nodes": "n0,n1"}, {"n0"}),
    ],
)
def test_a_job_waits_for_the_nodes_that_slurm_would_give_it(fields: dict[str, Any], nodes: set[str] | None) -> None:
    fake = FakeSlurm(partitions={"n0": ["small", "all"]}, features={"n1": "ib", "n2": "ib,fast", "n3": "old"})
    fake.submit("hp", 8, **fields)

    (wait,) = engine_of(fake).observe().waiting

    assert wait.job.only_nodes == nodes


@pytest.mark.parametrize("fields", [{"features": "[ib*2]"}, {"partition": "other"}, {"resv_name": "maintenance"}])
def test_a_job_that_no_node_can_take_is_left_alone(fields: dict[str, Any]) -> None:
    fake = FakeSlurm(partitions={f"n{number}": ["all"] for number in range(4)})
    fake.submit("hp", 8, **fields)

    assert engine_of(fake).observe().waiting == ()


def test_nothing_is_evicted_for_a_job_on_nodes_that_it_may_not_use() -> None:
    fake = FakeSlurm(num_nodes=2, partitions={"n0": ["small", "all"]})
    victims = [fake.run("spot_idle", 8, name) for name in ("n0", "n1")]
    fake.submit("hp", 8, partition="small")
    fake.submit("hp", 8, partition="small", excluded_nodes="n0")
    state = engine_of(fake).observe()

    decisions = find_policy("kube").decide(state)

    assert [it.job_id for it in decisions if isinstance(it, Evict)] == victims[:1]
    assert [it.nodes for it in decisions if isinstance(it, Start)] == [("n0",)]


def test_the_nodes_that_an_owner_named_hold_after_an_eviction() -> None:
    fake = FakeSlurm()
    job = fake.submit("spot", 2, required_nodes="n1,n2")
    engine = engine_of(fake)
    engine.observe()
    engine.apply(start(job, "n2"))
    fake.tick()
    engine.observe()
    engine.apply(evict(job))
    fake.tick(130.0)

    (wait,) = engine.observe().waiting

    assert wait.job.only_nodes == frozenset({"n1", "n2"})
    with pytest.raises(BadInput, match="cannot run on n3"):
        engine.apply(start(job, "n3"))


def test_a_job_that_wants_its_node_for_itself_asks_for_all_of_its_gpus() -> None:
    fake = FakeSlurm()
    fake.submit("hp", 2, shared="none")

    (wait,) = engine_of(fake).observe().waiting

    assert wait.job.gpus_per_worker == 8


def test_no_more_tasks_of_an_array_wait_than_its_limit_leaves() -> None:
    fake = FakeSlurm()
    fake.submit("spot", 1, array_job_id=1, array_task_string="0-5%2", array_max_tasks=2)

    state = engine_of(fake).observe()

    assert [it.job.id for it in state.waiting] == ["1_0", "1_1"]


# Clocks that are set --------------------------------------------------------------------------------------------------


def test_a_wall_clock_set_forward_does_not_shorten_a_notice() -> None:
    fake, ahead_s = FakeSlurm(), 0.0
    job, high = fake.run("spot", 8, "n0", comment="takeup notice=USR1"), fake.submit("hp", 8)
    engine = SlurmEngine(slurm=Slurm(fake), wall=lambda: fake.now_s + ahead_s, monotonic=lambda: fake.now_s)
    engine.observe()
    engine.apply(evict(job, high, notice_s=120.0))
    ahead_s = 3600.0

    fake.tick(2.0)
    engine.observe()
    before = fake.jobs[job]["job_state"]
    fake.tick(120.0)
    engine.observe()

    assert (before, fake.jobs[job]["job_state"]) == ("RUNNING", "COMPLETING")
