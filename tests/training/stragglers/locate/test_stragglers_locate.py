"""Slow ranks and links named from logs of simulated jobs whose culprit is known."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.random import Generator

from takeup.training.stragglers.contract import CALL, CallLog, Operation, Suspect
from takeup.training.stragglers.locate.suspects import locate
from training.stragglers.plain_job import Faults, Job, cut, data_parallel, logs_of, tensor_and_data, two_by_two

NUM_BEFORE, NUM_AFTER = 24, 8
TOTAL = NUM_BEFORE + NUM_AFTER
NUM_SEEDS = 20
Named = set[tuple[str, tuple[int, ...]]]

JOBS: dict[str, Callable[[Generator], Job]] = {
    "data parallel": lambda random: data_parallel(int(random.integers(4, 9))),
    "data parallel, blocking": lambda random: data_parallel(int(random.integers(4, 9)), overlap=False),
    "two pipelines of two stages": lambda random: two_by_two(),
    "tensor and data parallel": lambda random: tensor_and_data(),
}


def windows(job: Job, faults: Faults, seed: int, noise: float = 0.03) -> tuple[list[CallLog], list[CallLog]]:
    """Calls before and since the fault."""
    faults.since = NUM_BEFORE
    return cut(logs_of(job, TOTAL, faults, seed, noise=noise), NUM_BEFORE, TOTAL)


def named(suspects: list[Suspect]) -> Named:
    return {(suspect.kind, suspect.ranks) for suspect in suspects}


def links_of(job: Job) -> list[tuple[int, int]]:
    """Neighbours in every group, and the ends of messages."""
    rings = [zip(ranks, ranks[1:] + ranks[:1], strict=True) for ranks in job.groups.values() if len(ranks) != 4]
    whole = [zip(ranks, ranks[1:] + ranks[:1], strict=True) for ranks in job.groups.values()]
    pairs = {(min(pair), max(pair)) for ring in (rings if len(job.groups) > 1 else whole) for pair in ring}
    return sorted(pairs | ({(0, 1), (2, 3)} if job.num_ranks == 4 and len(job.groups) > 1 else set()))


# One culprit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_past", [True, False], ids=["with past", "without past"])
@pytest.mark.parametrize("name", JOBS)
def test_a_slow_rank_is_named(name: str, with_past: bool) -> None:
    right = 0
    for seed in range(NUM_SEEDS):
        random = np.random.default_rng([1, seed])
        job = JOBS[name](random)
        culprit = int(random.integers(job.num_ranks))
        before, after = windows(job, Faults(ranks={culprit: random.uniform(1.25, 2.5)}), seed)
        right += named(locate(after, before if with_past else ())) == {("compute", (culprit,))}

    assert right >= 0.95 * NUM_SEEDS


@pytest.mark.parametrize("name", JOBS)
def test_a_slow_link_is_named_also_within_a_ring(name: str) -> None:
    right = 0
    for seed in range(NUM_SEEDS):
        random = np.random.default_rng([2, seed])
        job = JOBS[name](random)
        culprit = links_of(job)[int(random.integers(len(links_of(job))))]
        before, after = windows(job, Faults(links={culprit: random.uniform(5.0, 10.0)}), seed)
        right += named(locate(after, before)) == {("link", culprit)}

    assert right >= 0.95 * NUM_SEEDS


@pytest.mark.parametrize("name", JOBS)
def test_a_healthy_job_has_no_suspects(name: str) -> None:
    wrong = 0
    for seed in range(NUM_SEEDS):
        before, after = windows(JOBS[name](np.random.default_rng([3, seed])), Faults(), seed)
        wrong += len(locate(after, before)) + len(locate(after))

    assert wrong <= 0.05 * NUM_SEEDS


def test_the_factor_is_that_of_the_fault() -> None:
    before, after = windows(data_parallel(4), Faults(ranks={2: 1.5}), 0)
    (suspect,) = locate(after, before)

    assert suspect.factor == pytest.approx(1.5, rel=0.05)
    assert suspect.share_late > 0.9
    assert "own work in an iteration instead of" in suspect.reason
    assert str(suspect).startswith("rank 2 computes 1.")


def test_a_rank_that_always_has_more_work_is_compared_with_its_own_past() -> None:
    job = data_parallel(4)
    uneven = replace(
        job,
        steps=lambda rank, n: [
            (what, amount * (1.5 if rank == 2 and what == "compute" else 1.0), where, operation)
            for what, amount, where, operation in job.steps(rank, n)
        ],
    )
    before, after = windows(uneven, Faults(ranks={2: 1.5}), 0)
    (suspect,) = locate(after, before)

    assert suspect.factor == pytest.approx(1.5, rel=0.05)
    assert suspect.excess_s == pytest.approx(0.5 * 1.5 * 0.095, rel=0.1)


def test_the_factor_of_a_link_is_that_of_its_transfers() -> None:
    before, after = windows(two_by_two(), Faults(links={(0, 1): 6.0}), 0)
    (suspect,) = locate(after, before)

    assert suspect.factor == pytest.approx(6.0, rel=0.1)
    assert suspect.share_late > 0.9
    assert str(suspect).startswith("the link between ranks 0 and 1 is ")


# Harder cases ---------------------------------------------------------------------------------------------------------


def test_two_slow_ranks_at_once_are_both_named() -> None:
    right = 0
    for seed in range(NUM_SEEDS):
        random = np.random.default_rng([4, seed])
        culprits = random.choice(8, 2, replace=False).tolist()
        before, after = windows(data_parallel(8), Faults(ranks=dict(zip(culprits, (1.6, 1.8), strict=True))), seed)
        right += named(locate(after, before)) == {("compute", (rank,)) for rank in culprits}

    assert right >= 0.95 * NUM_SEEDS


def test_a_slow_rank_and_a_slow_link_at_once_are_both_named() -> None:
    before, after = windows(two_by_two(), Faults(ranks={3: 1.8}, links={(0, 1): 7.0}), 0)

    assert named(locate(after, before)) == {("compute", (3,)), ("link", (0, 1))}


def test_who_is_late_because_of_another_is_not_named() -> None:
    before, after = windows(two_by_two(), Faults(ranks={0: 2.0}), 5)

    assert named(locate(after, before)) == {("compute", (0,))}


def test_who_only_cannot_get_rid_of_messages_over_a_slow_link_is_not_named() -> None:
    before, after = windows(two_by_two(), Faults(links={(0, 1): 10.0}), 5)
    for log in (*before, *after):
        log.calls["ended_ns"][log.calls["operation"] == Operation.SEND] = 0  # so blocking looks like work

    assert named(locate(after, before)) == {("link", (0, 1))}


def test_a_link_that_is_late_because_its_rank_is_slow_is_not_named_beside_it() -> None:
    before, after = windows(two_by_two(), Faults(ranks={1: 2.5}, links={(0, 1): 3.0}), 5)  # 180 ms, and 16 messages

    assert named(locate(after, before)) == {("compute", (1,))}


def test_whoever_explains_little_of_the_loss_is_not_named() -> None:
    before, after = windows(data_parallel(4), Faults(ranks={2: 1.5}), 0)
    alone = locate(after, before)
    for log in after:  # everybody also waits for something else, much longer, before the first call of an iteration
        firsts = np.cumsum(log.calls["size_bytes"] == 3_000_000)
        for moment in ("began_ns", "ended_ns"):
            log.calls[moment] += firsts * 300_000_000

    assert named(alone) == {("compute", (2,))}
    assert locate(after, before) == []


def test_a_late_sender_is_not_taken_for_a_slow_link() -> None:
    before, after = windows(two_by_two(), Faults(ranks={2: 1.8}), 6)
    for log in (*before, *after):
        sends = log.calls["operation"] == Operation.SEND
        log.calls["ended_ns"][sends] = log.calls["began_ns"][sends] + 10**10  # nobody waits for them until late

    assert named(locate(after, before)) == {("compute", (2,))}


def test_if_all_become_slower_alike_nobody_is_named() -> None:
    before, after = windows(data_parallel(4), Faults(ranks=dict.fromkeys(range(4), 1.5)), 0)

    assert locate(after, before) == []


def test_missing_ends_do_no_harm() -> None:
    random, right = np.random.default_rng(5), 0
    for seed in range(NUM_SEEDS):
        culprit = seed % 4
        before, after = windows(two_by_two(), Faults(ranks={culprit: 1.8}), seed)
        for log in (*before, *after):
            log.calls["ended_ns"][random.random(len(log.calls)) < 0.05] = 0
        right += named(locate(after, before)) == {("compute", (culprit,))}

    assert right >= 0.95 * NUM_SEEDS


def test_rows_that_were_lost_do_no_harm() -> None:
    random, right = np.random.default_rng(6), 0
    for seed in range(NUM_SEEDS):
        before, after = windows(data_parallel(6), Faults(ranks={seed % 6: 1.8}), seed)
        thinned = [replace(log, calls=log.calls[random.random(len(log.calls)) > 0.02]) for log in after]
        right += named(locate(thinned, before)) == {("compute", (seed % 6,))}

    assert right >= 0.95 * NUM_SEEDS


def test_a_healthy_rank_without_a_log_does_not_matter() -> None:
    before, after = windows(data_parallel(5), Faults(ranks={2: 1.8}), 0)

    assert named(locate(after[:4], before[:4])) == {("compute", (2,))}


def test_if_the_slow_rank_has_no_log_its_group_is_named() -> None:
    before, after = windows(data_parallel(5), Faults(ranks={4: 1.8}), 0)
    (suspect,) = locate(after[:4], before[:4])

    assert suspect.ranks == (0, 1, 2, 3, 4)


def test_clocks_do_not_matter() -> None:
    before, after = windows(data_parallel(4), Faults(links={(1, 2): 8.0}), 3)
    for log in (before[1], after[1]):
        log.calls["began_ns"] += 10**15
        log.calls["ended_ns"] += 10**15

    assert named(locate(after, before)) == {("link", (1, 2))}


@pytest.mark.parametrize("num_rows", [0, 1, 3])
def test_too_little_to_judge_is_not_judged(num_rows: int) -> None:
    _, after = windows(data_parallel(4), Faults(ranks={1: 2.0}), 0)

    assert locate([replace(log, calls=log.calls[:num_rows]) for log in after]) == []
    assert locate([]) == []


def test_a_group_of_one_rank_is_no_link() -> None:
    rows = np.zeros(40, CALL)
    rows["operation"], rows["peer"], rows["number"] = 1, -1, np.arange(40)
    rows["began_ns"] = np.arange(40) * 10**8 + 10**9
    rows["ended_ns"] = rows["began_ns"] + np.where(np.arange(40) < 20, 10**6, 10**7)
    log = CallLog(0, rows, {0: (0,)})

    assert locate([replace(log, calls=rows[20:])], [replace(log, calls=rows[:20])]) == []


# A recorded job -------------------------------------------------------------------------------------------------------

RECORDED = Path(__file__).parent / "recorded" / "two_ranks.csv"


def recorded(window: str) -> list[CallLog]:
    """Calls of a real job of two ranks, on a busy machine, of which rank 1 became four times as slow."""
    rows: dict[int, list[tuple[int, ...]]] = {0: [], 1: []}
    with RECORDED.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["window"] == window:
                what = (Operation.ALL_REDUCE, -1, 1, int(row["number"]), int(row["size_bytes"]))
                rows[int(row["rank"])].append((*what, 1000 * int(row["began_us"]), 1000 * int(row["ended_us"])))
    return [CallLog(rank, np.array(each, CALL), {1: (0, 1)}) for rank, each in rows.items()]


def test_a_slow_rank_of_two_is_named_though_ends_of_calls_were_noted_late() -> None:
    since, before = recorded("since"), recorded("before")
    ended_ns, next_ns = since[0].calls["ended_ns"][:-1], since[0].calls["began_ns"][1:]

    (suspect,) = locate(since, before)

    assert (ended_ns > next_ns).mean() > 0.1  # so they were
    assert (suspect.kind, suspect.ranks) == ("compute", (1,))
    assert suspect.factor > 2
