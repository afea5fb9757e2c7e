"""Ranks that are slow from the first step, pause, or follow each other: named without any change of iterations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from takeup.training.stragglers.contract import CALL, CallLog, Operation, SlowdownEvent
from takeup.training.stragglers.detect.detector import StragglerDetector
from takeup.training.stragglers.locate.accounts import MOST_RANKS, screened
from takeup.training.stragglers.locate.standing import RankStanding, standing_suspects, standings
from training.stragglers.plain_job import Faults, Job, data_parallel, logs_of, one_pipeline, tensor_and_data, two_by_two

JOBS: dict[str, Callable[[], Job]] = {
    "overlapped": lambda: data_parallel(4),
    "synchronous": lambda: data_parallel(4, overlap=False),
    "pipelines": two_by_two,
    "tensor parallel": tensor_and_data,
}


class Pauses(Faults):
    """Rank 1 computes eight times as long in every tenth iteration."""

    def of_rank(self, rank: int, iteration: int) -> float:
        return 8.0 if rank == 1 and iteration % 10 == 3 else 1.0


class Moves(Faults):
    """Rank 2 is slow, and then rank 3 instead, by the same factor."""

    def of_rank(self, rank: int, iteration: int) -> float:
        return 1.5 if (rank == 2 and 60 <= iteration < 150) or (rank == 3 and iteration >= 150) else 1.0


def events_of(
    job: Job, faults: Faults, num_iterations: int = 300, seed: int = 1, noise: float = 0.03
) -> list[SlowdownEvent]:
    """What the detector says of a job, whose calls it gets in forty portions."""
    logs, detector, events = logs_of(job, num_iterations, faults, seed, noise=noise), StragglerDetector(), []
    for part in range(40):
        portions = [slice(len(log.calls) * part // 40, len(log.calls) * (part + 1) // 40) for log in logs]
        seen = [CallLog(log.rank, log.calls[each], log.groups) for log, each in zip(logs, portions, strict=True)]
        events += detector.see(seen)
    return events


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("factor", [1.15, 1.5])
def test_a_rank_that_is_slow_from_the_first_step_is_named_once(kind: str, factor: float) -> None:
    (event,) = events_of(JOBS[kind](), Faults(ranks={2: factor}))

    (suspect,) = event.suspects
    assert (suspect.kind, suspect.ranks) == ("compute", (2,))
    assert suspect.factor == pytest.approx(factor, rel=0.04)
    assert event.began == 0
    assert "compared with ranks in its role" in event.sentence()


@pytest.mark.parametrize("kind", JOBS)
def test_pauses_of_a_rank_are_named_with_their_length_and_cost(kind: str) -> None:
    (event,) = events_of(JOBS[kind](), Pauses())

    (suspect,) = event.suspects
    assert (suspect.kind, suspect.ranks) == ("pause", (1,))
    assert "rank 1 pauses for " in event.sentence()
    assert 0.25 <= event.lost_share <= 0.5


@pytest.mark.parametrize("num_iterations", [80, 300])
def test_a_rank_that_is_slow_from_the_first_step_is_named_also_if_all_calls_come_at_once(num_iterations: int) -> None:
    detector = StragglerDetector()

    (event,) = detector.see(logs_of(data_parallel(4), num_iterations, Faults(ranks={2: 1.5}), 1))

    assert [suspect.ranks for suspect in event.suspects] == [(2,)]


def test_a_slow_rank_that_another_follows_at_the_same_factor_is_not_blamed_any_more() -> None:
    events = events_of(data_parallel(4), Moves())

    assert [event.suspects[0].ranks for event in events] == [(2,), (3,)]


def test_a_rank_that_was_slow_from_the_first_step_recovers() -> None:
    events = events_of(data_parallel(4), Faults(until=150, ranks={2: 1.5}))

    assert [event.is_slow for event in events] == [True, False]
    assert events[1].began == pytest.approx(150, abs=12)


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("seed", range(3))
def test_noise_is_no_standing_difference(kind: str, seed: int) -> None:
    assert events_of(JOBS[kind](), Faults(), 400, seed, noise=0.15) == []


def test_time_of_every_rank_adds_up_to_the_iteration() -> None:
    rows = standings(logs_of(data_parallel(4), 60, Faults(ranks={2: 1.5}), 1))

    assert rows[0].rank == 2
    assert rows[0].late_share > 0.9
    assert rows[0].lost_share == pytest.approx(1 / 3, abs=0.03)
    for row in rows:
        assert row.own_s + row.wait_s + row.transfer_s == pytest.approx(row.iteration_s, rel=0.01)


def test_a_rank_alone_in_its_role_has_nothing_to_compare_with() -> None:
    row = RankStanding(0, 1, 0.1, 0.09, 0.01, 0.0, 1.0)

    assert row.lost_share == 0
    assert standing_suspects([row]) == []


@pytest.mark.parametrize(("slow", "named"), [(0, []), (2, [(2,)]), (4, [])])
def test_a_stage_is_compared_with_other_middle_stages_only(slow: int, named: list[tuple[int, ...]]) -> None:
    events = events_of(one_pipeline(), Faults(ranks={slow: 1.5}))

    assert [suspect.ranks for event in events for suspect in event.suspects] == named


def test_two_pauses_are_no_habit_and_pauses_of_all_are_of_none() -> None:
    once = RankStanding(0, 4, 0.1, 0.09, 0.0, 0.0, 0.5, 0.02, 0.02, 2, 96)
    often = [RankStanding(rank, 4, 0.1, 0.09, 0.0, 0.0, 0.5, 0.02, 0.02, 9, 96) for rank in range(4)]

    assert standing_suspects([once]) == []
    assert standing_suspects(often) == []
    assert len(standing_suspects(often[:1])) == 1


def test_without_a_complete_iteration_nothing_stands() -> None:
    assert standings(logs_of(data_parallel(2), 1, Faults(), 1)) == []


class Checkpoints(Faults):
    """All ranks stop together in every twentieth iteration."""

    def of_rank(self, rank: int, iteration: int) -> float:
        return 12.0 if iteration % 20 == 7 else 1.0


@pytest.mark.parametrize("kind", ["overlapped", "synchronous"])
def test_pauses_of_all_ranks_together_are_one_event_and_blame_no_rank(kind: str) -> None:
    (event,) = events_of(JOBS[kind](), Checkpoints())

    (suspect,) = event.suspects
    assert (suspect.kind, suspect.ranks, event.is_shared) == ("pause", (0, 1, 2, 3), True)
    assert "all ranks pause together for" in event.sentence()
    assert 0.2 < event.lost_share < 0.5  # eleven of thirty-one twentieths


def many_ranks(num_ranks: int, num_iterations: int, slow: int) -> list[CallLog]:
    """Ranks that compute and then wait for each other twice in an iteration; one computes half as long again."""
    random = np.random.default_rng(1)
    own_s = 0.01 * (1 + 0.02 * random.standard_normal((2 * num_iterations, num_ranks)))
    own_s[:, slow] *= 1.5
    ends_s = np.cumsum(own_s.max(axis=1) + 0.001)
    calls = np.zeros((num_ranks, 2 * num_iterations), CALL)
    calls["operation"], calls["peer"], calls["group"] = Operation.ALL_REDUCE, -1, 1
    calls["number"], calls["size_bytes"] = np.arange(2 * num_iterations), 1000 + np.arange(2 * num_iterations) % 2
    calls["began_ns"] = np.rint(1e9 * (1 + np.concatenate([[0.0], ends_s[:-1]])[:, None] + own_s)).T
    calls["ended_ns"] = np.rint(1e9 * (1 + ends_s))
    return [CallLog(rank, row, {1: tuple(range(num_ranks))}) for rank, row in enumerate(calls)]


def test_a_slow_rank_among_very_many_is_found_from_the_calls_of_some() -> None:
    logs = many_ranks(300, 12, slow=177)

    kept, _ = screened(logs, ())

    assert len(kept) <= MOST_RANKS
    assert [suspect.ranks for suspect in standing_suspects(standings(logs))] == [(177,)]


# Roles ----------------------------------------------------------------------------------------------------------------


def test_the_last_stages_of_two_pipelines_are_compared_with_each_other_only() -> None:
    """The second stage has a third more work; rank 3 computes it twice as slowly as rank 1."""
    rows = standings(logs_of(two_by_two(), 60, Faults(ranks={1: 1.33, 3: 2.66}), 1))

    (suspect,) = standing_suspects(rows)
    assert suspect.ranks == (3,)
    assert suspect.factor == pytest.approx(2.0, rel=0.1)


def with_all_to_alls(log: CallLog, sizes: Callable[[int, int], int]) -> CallLog:
    """The same with all-to-alls for its reductions of 2 MB, whose sizes are by rank and number."""
    calls = log.calls.copy()
    chosen = calls["size_bytes"] == int(2e6)
    calls["operation"][chosen] = Operation.ALL_TO_ALL
    calls["size_bytes"][chosen] = [sizes(log.rank, number) for number in range(int(chosen.sum()))]
    return CallLog(log.rank, calls, log.groups)


def with_steps(log: CallLog) -> CallLog:
    """The same with a step of an optimizer after each reduction of the loss."""
    losses = log.calls[log.calls["size_bytes"] == 4]
    steps = losses.copy()
    steps["operation"], steps["group"], steps["number"] = Operation.STEP, 0, np.arange(len(steps))
    steps["size_bytes"], steps["began_ns"], steps["ended_ns"] = 0, losses["ended_ns"] + 1, losses["ended_ns"] + 1
    calls = np.concatenate([log.calls, steps])
    return CallLog(log.rank, calls[np.argsort(calls["began_ns"], kind="stable")], {0: (), **log.groups})


@pytest.mark.parametrize("sizes", [lambda rank, _: 8 if rank == 2 else 2, lambda rank, number: 10 * number + rank])
def test_a_rank_with_more_tokens_for_its_experts_is_compared_with_the_others(sizes: Callable[[int, int], int]) -> None:
    logs = logs_of(data_parallel(4, overlap=False), 60, Faults(ranks={2: 1.5}), 1)

    rows = standings([with_steps(with_all_to_alls(log, sizes)) for log in logs])

    assert [suspect.ranks for suspect in standing_suspects(rows)] == [(2,)]
    assert {row.role_size for row in rows} == {4}


def test_a_learner_with_an_optimizer_is_not_compared_with_its_actors() -> None:
    """Rank 0 makes steps and computes little; of the others rank 3 is slow."""
    learner, *actors = logs_of(data_parallel(4, overlap=False), 120, Faults(ranks={0: 0.2, 3: 1.5}), 1)
    detector = StragglerDetector()

    detector.see([with_steps(learner), *actors])
    suspects = standing_suspects(detector.standings())

    assert detector.num_iterations >= 110
    assert [suspect.ranks for suspect in suspects] == [(3,)]
