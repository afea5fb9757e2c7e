"""One brain: what is decided about a moment of a replay is what `decide` says about the same state."""

from __future__ import annotations

import numpy as np
import pytest

from cluster.scheduling.cluster_states import to_state
from cluster.simulate.cluster_traces import drawn
from takeup.cluster.contract import StaticQuota
from takeup.cluster.model import Evict, Job, Kind, Start, Workload
from takeup.cluster.policies import POLICIES
from takeup.cluster.policies.rule_based import RuleBasedScheduler
from takeup.cluster.scheduling.counters import enqueue
from takeup.cluster.scheduling.layout import EVICTED, LEASE_OVER, NUM_LOGGED, STARTED, JobArrays, empty_fleet
from takeup.cluster.scheduling.scheduling_pass import run_arrival_pass, run_pass
from takeup.cluster.scheduling.snapshot import PoolSnapshot
from takeup.cluster.simulate.event_loop import CHANGED, NEXT_JOB, empty_queue, empty_record, run_until

SHARE = 0.4
QUOTA = np.array([1.0, 2.0, 4.0]), np.full(3, SHARE * 12 * 8)
Named = tuple[str, str, tuple[str, ...]]


def jobs_of(workload: Workload) -> tuple[Job, ...]:
    columns = zip(
        workload.job_kind, workload.job_gpus, workload.job_workers, workload.job_submit_s, workload.job_guarantee_h,
        strict=True,
    )  # fmt: skip
    return tuple(
        Job(f"job{number:04d}", Kind(kind), "org", "a100", float(gpus), int(workers), float(submit), float(hours))
        for number, (kind, gpus, workers, submit, hours) in enumerate(columns)
    )


def lived(workload: Workload, name: str, until_s: float, num_more: int) -> PoolSnapshot:
    """A replay in its middle, with a few jobs that have just come and were not looked at."""
    rules, none = POLICIES[name], np.zeros(workload.num_jobs, np.int64)
    fields = (workload.job_gpus, workload.job_workers, workload.job_submit_s, workload.job_guarantee_h)
    fleet = empty_fleet(workload.node_gpus, JobArrays(workload.job_kind, none, *fields, workload.job_checkpoint_s))
    story = empty_record(workload.job_duration_s, 100, 1, 1000)
    clock = np.array([0.0, -1.0])
    run_until(fleet, story, empty_queue(9 * workload.num_jobs + 64), clock, until_s, *QUOTA, rules)
    first = int(story.ticks[NEXT_JOB])
    for job in range(first, min(first + num_more, workload.num_jobs)):
        fleet.jobs["submit_s"][job] = until_s
        enqueue(fleet, job, until_s, rules)
    fleet.nodes["calm"] = 10_000.0
    assert not story.ticks[CHANGED]
    jobs = list(jobs_of(workload))
    return PoolSnapshot(fleet, tuple(jobs), tuple(f"n{i:02d}" for i in range(workload.num_nodes)))


def logged(snapshot: PoolSnapshot) -> list[Named]:
    found: list[Named] = []
    for line in snapshot.fleet.log[: snapshot.fleet.totals[NUM_LOGGED]]:
        job = snapshot.jobs[line["job"]].id
        if line["what"] == STARTED:
            found.append(("start", job, snapshot.nodes_of(int(line["job"]))))
        elif line["what"] in (EVICTED, LEASE_OVER):
            found.append(("evict", job, (snapshot.jobs[line["other"]].id if line["other"] >= 0 else "",)))
    return found


def named(decisions: list[object]) -> list[Named]:
    found: list[Named] = []
    for it in decisions:
        if isinstance(it, Start):
            found.append(("start", it.job_id, it.nodes))
        elif isinstance(it, Evict) and not it.notice_s:
            found.append(("evict", it.job_id, (it.for_job,)))
    return found


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"gfs_notice"}))
def test_a_moment_of_a_replay_is_decided_as_a_state(name: str) -> None:
    num_events = 0
    for seed in range(6):
        workload = drawn(seed, num_jobs=160, shared=False, load_share=1.3 if seed % 2 else 0.5)
        until_s = float(workload.job_submit_s[100]) + 0.5
        snapshot = lived(workload, name, until_s, num_more=25)
        state = to_state(snapshot, until_s)
        decided = named(list(RuleBasedScheduler(name, POLICIES[name], StaticQuota(SHARE)).decide(state)))

        run_pass(snapshot.fleet, until_s, *QUOTA, POLICIES[name])
        assert decided == logged(snapshot)
        num_events += len(decided)
    assert num_events > 0


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"gfs_notice"}))
def test_a_newcomer_alone_is_served_as_in_a_whole_pass(name: str) -> None:
    for seed in range(6):
        workload = drawn(seed, num_jobs=160, shared=False, load_share=1.3 if seed % 2 else 0.5)
        until_s = float(workload.job_submit_s[100]) // 300 * 300 + 1.0
        snapshot = lived(workload, name, until_s, num_more=1)
        newcomer = int(np.flatnonzero(snapshot.fleet.jobs["submit_s"] == until_s)[-1])
        state = to_state(snapshot, until_s)
        decided = named(list(RuleBasedScheduler(name, POLICIES[name], StaticQuota(SHARE)).decide(state)))

        run_arrival_pass(snapshot.fleet, newcomer, until_s, *QUOTA, POLICIES[name])
        assert decided == logged(snapshot)
