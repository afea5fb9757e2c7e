"""A controller that is killed at every single step, and its successor: no job is lost, none evicted twice.

A Slurm in memory makes the moments exact: before and after each command that changes something. The same is done to a
real one, at random moments, in the tests of the lab.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cluster.engines.slurm.fake_slurm import FakeSlurm, Killed
from takeup.cluster.contract import StaticQuota
from takeup.cluster.engines.slurm import Slurm, SlurmEngine
from takeup.cluster.engines.slurm.journal import Journal
from takeup.cluster.model import Hold
from takeup.cluster.policies import find_policy
from takeup.errors import TakeupError

QUOTA_GPUS = 16


def crowded() -> FakeSlurm:
    """Four full nodes, eight spot jobs behind them, and a gang that needs two of the nodes."""
    fake = FakeSlurm(num_nodes=4)
    for number in range(16):
        fake.run("spot" if number < 8 else "spot_idle", 2, f"n{number // 4}")
    for _ in range(8):
        fake.submit("spot", 2)
    fake.submit("hp", 8, num_nodes=2)
    return fake


def work(fake: FakeSlurm, journal: Path, num_rounds: int) -> None:
    """A controller at work for some rounds, ten seconds apart so that evictions pay, or until it is killed."""
    engine = SlurmEngine(
        journal, slurm=Slurm(fake), wall=lambda: fake.now_s, monotonic=lambda: fake.now_s, read_only=False
    )
    scheduler = find_policy("gfs", StaticQuota(QUOTA_GPUS / 32))
    try:
        for _ in range(num_rounds):
            for decision in scheduler.decide(engine.observe()):
                if not isinstance(decision, Hold):
                    try:
                        engine.apply(decision)
                    except TakeupError as error:
                        fake.changes.append(f"refused: {error}")
                assert fake.held_gpus("spot") <= QUOTA_GPUS
            fake.tick(10.0)
    finally:
        engine.close()


@pytest.mark.parametrize("kill_before", [True, False])
def test_killed_at_any_step_the_next_controller_finishes_the_work(tmp_path: Path, kill_before: bool) -> None:
    undisturbed = crowded()
    work(undisturbed, tmp_path / "undisturbed", 4)
    num_changes = len(undisturbed.changes)
    for step in range(num_changes):
        fake = crowded()
        fake.kill_at, fake.kill_before = step, kill_before
        journal = tmp_path / f"journal-{step}-{kill_before}"
        with pytest.raises(Killed):
            work(fake, journal, 4)
        fake.kill_at = -1
        fake.tick()
        work(fake, journal, 4)

        assert fake.jobs["25"]["job_state"] == "RUNNING"
        assert len(fake.jobs) == 25
        assert {row["job_state"] for row in fake.jobs.values()} <= {"RUNNING", "PENDING"}
        assert max(row["restart_cnt"] for row in fake.jobs.values()) <= 1
        assert sum(row["restart_cnt"] for row in fake.jobs.values()) == 8
        assert num_evicted_for(journal) == Counter({"25": 8})
    assert num_changes > 8


def num_evicted_for(journal: Path) -> Counter[str]:
    """Different jobs that were evicted for each job."""
    with Journal(journal) as kept:
        entries = kept.entries
    return Counter(for_job for _, for_job in {(it["job"], it["for"]) for it in entries if it["do"] == "evict"})
