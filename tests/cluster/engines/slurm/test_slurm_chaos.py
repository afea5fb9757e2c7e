"""A day on a real Slurm with holds, partitions, features, node lists, arrays, dependencies, drains and reservations."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster.engines.slurm.slurm_lab import Lab, Nursery, fill, needs_lab, wait_until
from takeup.cluster.engines.slurm.rows import JobRow, JobStatus

pytestmark = needs_lab

SMALL, FAST = {f"n{number}" for number in range(4)}, {"n4", "n5"}  # a partition, and nodes with a feature
FOREIGN, DRAINED, RESERVED = "n13", "n14", "n15"
AFTERWARDS_S = 8.0  # how long is watched after the last job that should start has started


@dataclass
class Day:
    """What was seen: the nodes of each job while it ran, how many ran at once, and what the controller wrote."""

    jobs: dict[str, str]
    ran_on: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    gpus_on: dict[str, tuple[int, ...]] = field(default_factory=dict)
    most_of_array: int = 0
    last: dict[str, JobRow] = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)

    def watch(self, lab: Lab) -> None:
        self.last = lab.jobs()
        running = {name: row for name, row in self.last.items() if row.status == JobStatus.RUNNING}
        for name, row in running.items():
            self.ran_on[name] |= set(row.nodes)
            self.gpus_on[name] = row.gpus_on
        ours = [name for name in running if name.startswith(f"{self.jobs['array']}_")]
        self.most_of_array = max(self.most_of_array, len(ours))

    def ran(self, which: str) -> bool:
        return self.jobs[which] in self.ran_on

    def emptied_for(self, which: str) -> set[str]:
        """The nodes from which jobs were evicted for this one."""
        found = (it for it in self.entries if it["do"] == "evict" and it["for"] == self.jobs[which])
        return {name for it in found for name in it["nodes"]}


def prepare(lab: Lab) -> None:
    lab.call("scontrol", "create", "PartitionName=small", "Nodes=n[0-3]", "State=UP", "MaxTime=INFINITE")
    lab.call("scontrol", "update", "NodeName=n[4-5]", "AvailableFeatures=ib", "ActiveFeatures=ib")
    lab.call("scontrol", "update", f"NodeName={DRAINED}", "State=DRAIN", "Reason=fans")
    times = ("StartTime=now", "Duration=60")
    lab.call("scontrol", "create", "Reservation=course", *times, "Users=root", f"Nodes={RESERVED}")


def tidy(lab: Lab) -> None:
    lab.clean()
    lab.call("scontrol", "delete", "Reservation=course")
    lab.call("scontrol", "delete", "PartitionName=small")
    lab.call("scontrol", "update", "NodeName=n[4-5]", "AvailableFeatures=", "ActiveFeatures=")
    lab.call("scontrol", "update", f"NodeName={DRAINED}", "State=RESUME")


def submit(lab: Lab) -> dict[str, str]:
    whole, half = "--gres=gpu:8", "--gres=gpu:4"
    elsewhere = "--exclude=n[0-8],n12"  # where no other job has to be
    jobs = {
        "own hold": lab.submit("spot", "--gres=gpu:1", "--hold"),
        "partition": lab.submit("hp", whole, "--partition=small"),
        "feature": lab.submit("hp", whole, "--constraint=ib"),
        "named": lab.submit("hp", whole, "--nodelist=n6"),
        "excluded": lab.submit("hp", whole, "--exclude=n[0-11]"),
        "exclusive": lab.submit("hp", "--gres=gpu:2", "--exclusive", elsewhere),
        "first": lab.submit("hp", half, "--nodelist=n7", script="sleep 2"),
        "fails": lab.submit("hp", half, "--nodelist=n8", script="sleep 1; false"),
        "array": lab.submit("hp", half, "--array=0-3%2", elsewhere, script="sleep 4"),
        "in reservation": lab.submit("hp", whole, "--reservation=course"),
    }
    jobs["after"] = lab.submit("hp", half, elsewhere, f"--dependency=afterok:{jobs['first']}")
    jobs["never"] = lab.submit("hp", half, elsewhere, f"--dependency=afterok:{jobs['fails']}")
    return jobs


@pytest.fixture(scope="module")
def day(whole_lab: Lab, shared_nursery: Nursery) -> Iterator[Day]:
    lab = whole_lab
    lab.clean()
    shared_nursery.journal.unlink(missing_ok=True)
    prepare(lab)
    try:
        foreign = lab.submit("normal", "--gres=gpu:8", f"--nodelist={FOREIGN}")
        wait_until(lambda: foreign in lab.running(), "job of another QOS")
        shared_nursery.start("gfs", 0.25)
        spots = fill(lab, 56)
        wait_until(lambda: len(lab.running()) == 13 * 4 + 1, "full cluster")
        held = next(name for name, row in lab.jobs().items() if row.status == JobStatus.HELD)
        requeued = next(name for name in lab.running() if name in spots)
        lab.call("scontrol", "hold", held)
        lab.call("scontrol", "requeuehold", requeued)
        seen = Day(submit(lab) | {"foreign": foreign, "requeued": requeued, "held": held})
        wanted = ("partition", "feature", "named", "excluded", "exclusive", "first", "fails", "after")

        def all_ran() -> bool:
            seen.watch(lab)
            tasks = [f"{seen.jobs['array']}_{number}" in seen.ran_on for number in range(4)]
            return all(map(seen.ran, wanted)) and all(tasks)

        wait_until(all_ran, "start of every job that may start", limit_s=200.0)
        until_s = time.monotonic() + AFTERWARDS_S
        while time.monotonic() < until_s:
            seen.watch(lab)
        shared_nursery.kill()
        seen.entries = shared_nursery.entries()
        yield seen
    finally:
        shared_nursery.kill()
        print(shared_nursery.log.read_text("utf-8")[-8_000:])
        tidy(lab)


@pytest.mark.parametrize("which", ["held", "own hold"])
def test_a_job_that_an_operator_or_its_owner_holds_is_not_released(day: Day, which: str) -> None:
    assert not day.ran(which)
    assert day.last[day.jobs[which]].status == JobStatus.HELD


def test_a_job_that_an_operator_requeued_and_held_does_not_run_again(day: Day) -> None:
    row = day.last[day.jobs["requeued"]]

    assert row.status == JobStatus.HELD
    assert row.num_restarts == 1


@pytest.mark.parametrize(
    ("which", "nodes"), [("partition", SMALL), ("feature", FAST), ("named", {"n6"}), ("excluded", {"n12"})]
)
def test_a_job_runs_and_evicts_only_where_it_may_run(day: Day, which: str, nodes: set[str]) -> None:
    assert day.ran_on[day.jobs[which]] <= nodes
    assert day.emptied_for(which) <= nodes


def test_an_exclusive_job_has_its_node_for_itself(day: Day) -> None:
    (node,) = day.ran_on[day.jobs["exclusive"]]
    others = [name for name, row in day.last.items() if row.status == JobStatus.RUNNING and node in row.nodes]

    assert others == [day.jobs["exclusive"]]


def test_no_more_tasks_of_an_array_run_at_once_than_its_limit(day: Day) -> None:
    assert 1 <= day.most_of_array <= 2


def test_a_job_whose_dependency_failed_never_runs_and_evicts_nothing(day: Day) -> None:
    assert not day.ran("never")
    assert day.emptied_for("never") == set()


def test_nothing_starts_on_a_drained_node(day: Day) -> None:
    assert not any(DRAINED in nodes for nodes in day.ran_on.values())


def test_nothing_starts_on_a_reserved_node_and_nothing_is_evicted_for_its_job(day: Day) -> None:
    assert not any(RESERVED in nodes for nodes in day.ran_on.values())
    assert day.emptied_for("in reservation") == set()


def test_a_job_of_another_qos_is_neither_evicted_nor_joined_on_its_node(day: Day) -> None:
    on_its_node = {name for name, nodes in day.ran_on.items() if FOREIGN in nodes}

    assert on_its_node == {day.jobs["foreign"]}
    assert day.last[day.jobs["foreign"]].num_restarts == 0


def test_no_run_is_evicted_twice_during_the_day(day: Day) -> None:
    evicted = [(it["job"], it["restarts"]) for it in day.entries if it["do"] == "evict"]

    assert evicted
    assert len(evicted) == len(set(evicted))
