"""What is expected of datasets after the jobs so far; the tests of the plug-in's own version have the same examples."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from takeup.caching.model import EngineModel
from takeup.caching.policies import find_policy
from takeup.caching.simulate.expectations import expected_by_job
from takeup.caching.simulate.plain import simulate
from takeup.caching.traces.job_graph import WorkloadBuilder

Job = tuple[str, str]  # datasets that it makes and that it reads
SIZE_BYTES = 10


def expected_after(
    jobs: Sequence[Job], kinds: Sequence[str] = "abcdef", dropped: dict[str, int] | None = None
) -> list[set[str]]:
    """By job, the datasets, each of one block, that are expected once it has begun."""
    builder, names = WorkloadBuilder("jobs"), sorted({name for made, _ in jobs for name in made})
    for name in names:
        builder.block(name, SIZE_BYTES, dataset=names.index(name))
    for number, (made, read) in enumerate(jobs):
        for name in (name for name, job in (dropped or {}).items() if job == number):
            builder.drop(name)
        builder.task(inputs=list(read), outputs=list(made), job=number, stage=builder.stage())
    workload = builder.build()
    blocks = {block: names[dataset] for block, dataset in enumerate(workload.block_dataset.tolist())}
    now, all_expected = set[str](), list[set[str]]()
    for events in expected_by_job(workload, kinds).values():
        for block, position, _ in events:
            (now.discard if position is None else now.add)(blocks[block])
        all_expected.append(set(now))
    return all_expected


def test_a_dataset_that_was_never_read_is_expected_but_not_for_ever() -> None:
    after = expected_after([("a", ""), *[("", "")] * 5])

    assert after == [{"a"}] * 4 + [set()] * 2


def test_one_that_was_read_once_is_expected_after_as_many_jobs_as_it_took() -> None:
    after = expected_after([("a", ""), ("", ""), ("", "a"), *[("", "")] * 5])

    assert after[2:] == [{"a"}] * 5 + [set()]


def test_in_a_loop_the_dataset_of_the_round_before_is_used_up() -> None:
    rounds = [("a", ""), ("b", "a"), ("c", "b"), ("d", "c")]

    after = expected_after(rounds, kinds="xxxx")

    assert after[1:] == [{"b"}, {"c"}, {"d"}]


def test_what_was_dropped_unread_is_not_expected_of_the_next_of_its_kind() -> None:
    after = expected_after([("a", ""), ("b", "")], kinds="xx", dropped={"a": 1})

    assert after[1] == {"a"}  # gone, so that nothing is to be taken back


@pytest.mark.parametrize("knows", [False, True])
def test_expected_readers_keep_a_dataset_that_no_announced_job_reads(knows: bool) -> None:
    """`a` is read in every other job; `b` and `c` come in between and are read at once."""
    builder = WorkloadBuilder("turns")
    for name, dataset in (("a", 0), ("b", 1), ("c", 2), ("d", 3)):
        builder.block(name, SIZE_BYTES, dataset=dataset)
    for number, (made, read) in enumerate(
        [("a", ""), ("", "a"), ("b", ""), ("", "a"), ("c", ""), ("", "a"), ("d", ""), ("", "a")]
    ):
        builder.task(inputs=list(read), outputs=list(made), job=number, stage=builder.stage())
    workload = builder.build()
    expected = expected_by_job(workload, "abcd") if knows else None

    result = simulate(
        find_policy("dag"), workload, EngineModel(SIZE_BYTES, "disk", profile="online"), expected=expected
    )

    assert result.num_hits == (4 if knows else 1)
