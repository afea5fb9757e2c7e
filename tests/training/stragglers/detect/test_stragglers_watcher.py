"""A watched job from beginning to end: calls in portions, iterations, events, and what must not become one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from takeup.training.stragglers.contract import CallLog, Operation, SlowdownEvent
from takeup.training.stragglers.detect.detector import StragglerDetector
from training.stragglers.plain_job import WORLD, Faults, Job, Step, data_parallel, logs_of, two_by_two

NUM = 120


def portions(logs: list[CallLog], seed: int = 0, mean: int = 12) -> Iterator[list[CallLog]]:
    """The logs as a watcher gets them: uneven portions, each call once."""
    random = np.random.default_rng(seed)
    places = [0] * len(logs)
    while any(place < len(log.calls) for place, log in zip(places, logs, strict=True)):
        ends = [min(place + int(random.poisson(mean)), min(places) + 2 * mean) for place in places]
        yield [replace(log, calls=log.calls[a:b]) for log, a, b in zip(logs, places, ends, strict=True)]
        places = ends


def events_of(logs: list[CallLog], watcher: StragglerDetector | None = None) -> list[SlowdownEvent]:
    watcher = watcher or StragglerDetector()
    return [event for portion in portions(logs) for event in watcher.see(portion)]


def repeated(job: Job, every: int, steps: list[Step]) -> Job:
    """The job with more to do in every so many iterations."""
    return replace(job, steps=lambda rank, n: [*(steps if n % every == every - 1 else []), *job.steps(rank, n)])


# Events ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [data_parallel(4), two_by_two()], ids=["data parallel", "pipelines"])
def test_a_slow_rank_is_told_and_its_recovery_too(job: Job) -> None:
    slow, well = events_of(logs_of(job, NUM, Faults(60, 90, ranks={2: 1.6}), 0))

    assert (slow.is_slow, well.is_slow) == (True, False)
    assert abs(slow.began - 60) <= 2
    assert abs(well.began - 90) <= 2
    assert slow.declared - 60 <= 8
    assert [(each.kind, each.ranks) for each in slow.suspects] == [("compute", (2,))]
    assert slow.lost_share == pytest.approx(1 - slow.before_s / slow.after_s)
    assert well.suspects == ()
    assert well.lost_share < 0.05


def test_a_slow_rank_is_told_when_there_are_calls_enough_to_locate_it_and_its_recovery_at_once() -> None:
    watcher, told = StragglerDetector(num_to_locate=20), list[tuple[bool, int]]()
    for portion in portions(logs_of(data_parallel(4), NUM, Faults(50, 90, ranks={2: 1.6}), 0), mean=3):
        for event in watcher.see(portion):
            told.append((event.is_slow, watcher.num_iterations - event.began))

    (is_slow, slow_after), (is_still_slow, well_after) = told
    assert (is_slow, is_still_slow) == (True, False)
    assert 20 <= slow_after <= 22
    assert well_after < 20


def test_a_change_after_hundreds_of_iterations_has_its_number() -> None:
    (event,) = events_of(logs_of(data_parallel(2), 480, Faults(450, ranks={1: 1.6}), 0))

    assert abs(event.began - 450) <= 2
    assert 450 <= event.declared <= 460


def test_a_slow_link_is_told() -> None:
    (event,) = events_of(logs_of(data_parallel(5), 90, Faults(60, links={(1, 2): 12.0}), 1))

    assert [(each.kind, each.ranks) for each in event.suspects] == [("link", (1, 2))]


def test_the_sentence_names_who_how_much_and_what_it_costs() -> None:
    (event,) = events_of(logs_of(data_parallel(4), 90, Faults(60, ranks={3: 1.5}), 0))

    assert event.sentence().startswith("since iteration ")
    assert "rank 3 computes 1." in event.sentence()
    assert "of the throughput" in event.sentence()
    assert "iterations have recovered" in replace(event, is_slow=False).sentence()
    assert "all ranks are slower" in replace(event, suspects=()).sentence()


def test_a_second_slowdown_on_top_of_the_first_counts_the_loss_from_the_beginning() -> None:
    both = Faults(50, ranks={1: 1.5})
    logs = logs_of(data_parallel(4), 80, both, 0)
    worse = logs_of(data_parallel(4), 60, Faults(ranks={1: 2.2}), 1)
    for log, more in zip(logs, worse, strict=True):
        shift = int(log.calls["ended_ns"].max() - more.calls["began_ns"].min()) + 10**6
        more.calls["began_ns"] += shift
        more.calls["ended_ns"] += shift
        more.calls["number"] += int(log.calls["number"].max())
    first, second = events_of(
        [replace(a, calls=np.concatenate([a.calls, b.calls])) for a, b in zip(logs, worse, strict=True)]
    )

    assert (first.is_slow, second.is_slow) == (True, True)
    assert second.lost_share == pytest.approx(1 - first.before_s / second.after_s)


def test_who_is_slow_is_known_even_if_it_took_long_to_notice() -> None:
    events = [
        event
        for seed in range(4)
        for event in events_of(logs_of(data_parallel(4), 110, Faults(60, ranks={2: 1.35}), seed, noise=0.2))[:1]
    ]

    assert len(events) >= 3
    assert all([each.ranks for each in event.suspects] == [(2,)] for event in events)


def test_in_which_portions_calls_come_does_not_matter() -> None:
    logs = logs_of(data_parallel(4), NUM, Faults(60, 90, ranks={2: 1.6}), 0)
    found = []
    for mean in (3, 40):
        watcher = StragglerDetector()
        found.append([event for portion in portions(logs, mean=mean) for event in watcher.see(portion)])

    assert [event.is_slow for event in found[0]] == [event.is_slow for event in found[1]] == [True, False]
    assert all(abs(one.began - other.began) <= 1 for one, other in zip(*found, strict=True))


# What must not become an event ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_job_is_left_in_peace(seed: int) -> None:
    assert events_of(logs_of(data_parallel(4), 200, Faults(), seed, noise=0.05)) == []


def test_warm_up_is_no_event() -> None:
    assert events_of(logs_of(data_parallel(4), NUM, Faults(0, 9, ranks=dict.fromkeys(range(4), 3.0)), 0)) == []


def assert_all_pause(events: list[SlowdownEvent]) -> None:
    """The time lost in pauses that all ranks make together is told once, and no rank is blamed."""
    assert [suspect.kind for event in events for suspect in event.suspects] == ["pause"]
    assert events[0].suspects[0].ranks == (0, 1, 2, 3)


def test_iterations_that_evaluate_are_compared_with_each_other() -> None:
    evaluate: list[Step] = [("compute", 0.3, 0, 0), ("call", 8, WORLD, Operation.ALL_GATHER), ("wait", 0, 0, 0)]
    often, seldom = (
        events_of(logs_of(repeated(data_parallel(4), every, evaluate), NUM, Faults(), 0)) for every in (2, 5)
    )

    assert often == []  # as usual as the others
    assert_all_pause(seldom)


def test_a_slow_rank_is_found_although_every_third_iteration_evaluates() -> None:
    evaluate: list[Step] = [("compute", 0.3, 0, 0), ("call", 8, WORLD, Operation.ALL_GATHER), ("wait", 0, 0, 0)]
    job = repeated(data_parallel(4), 3, evaluate)
    event, *_ = events_of(logs_of(job, NUM, Faults(60, ranks={1: 1.6}), 0))

    assert abs(event.began - 60) <= 3
    assert event.suspects[0].ranks == (1,)


def test_saving_without_a_call_is_a_pause_of_all_ranks() -> None:
    assert_all_pause(events_of(logs_of(repeated(data_parallel(4), 10, [("compute", 1.0, 0, 0)]), NUM, Faults(), 0)))


def test_longer_sequences_are_no_slowdown_if_the_work_is_known() -> None:
    random = np.random.default_rng(0)
    tokens = np.concatenate([random.uniform(0.7, 1.3, 60), random.uniform(1.2, 1.8, 60)])
    job = data_parallel(4)
    scaled = replace(
        job,
        steps=lambda rank, n: [
            (what, amount * (tokens[n] if what == "compute" else 1), where, op)
            for what, amount, where, op in job.steps(rank, n)
        ],
    )
    logs = logs_of(scaled, NUM, Faults(), 0)
    informed, blind = StragglerDetector(), StragglerDetector()

    assert informed.see(logs, tokens.tolist()) == []
    assert blind.see(logs) != []


# After an action, and when the job changes ----------------------------------------------------------------------------


def test_after_an_action_what_follows_is_the_new_normal() -> None:
    logs = logs_of(data_parallel(4), NUM, Faults(60, ranks={2: 1.6}), 0)
    half = [len(log.calls) // 2 for log in logs]
    watcher = StragglerDetector()
    watcher.see([replace(log, calls=log.calls[:place]) for log, place in zip(logs, half, strict=True)])
    watcher.rebase()

    assert watcher.see([replace(log, calls=log.calls[place:]) for log, place in zip(logs, half, strict=True)]) == []
    assert set(watcher.anchors) == {0, 1, 2, 3}


def test_own_work_of_ranks_is_measured() -> None:
    watcher = StragglerDetector()
    watcher.see(logs_of(data_parallel(4), 60, Faults(ranks={2: 1.5}), 0))
    own_s = {row.rank: row.own_s for row in watcher.standings()}

    assert own_s[0] == pytest.approx(0.095, rel=0.05)
    assert own_s[2] == pytest.approx(0.1425, rel=0.05)


def test_the_anchor_is_a_call_that_comes_once_in_every_iteration() -> None:
    watcher = StragglerDetector()
    watcher.see(logs_of(data_parallel(4), 60, Faults(), 0))

    assert set(watcher.anchors.values()) <= {(Operation.ALL_REDUCE, WORLD, 4), (Operation.ALL_REDUCE, WORLD, 3_000_000)}
    assert watcher.num_iterations == 59
    assert len(watcher.iterations_s) == 59


def test_a_job_that_does_something_else_from_then_on_is_watched_again() -> None:
    first, then = logs_of(data_parallel(4), 60, Faults(), 0), logs_of(two_by_two(), 60, Faults(), 0)
    watcher = StragglerDetector()
    watcher.see(first)
    for portion in portions(then):
        watcher.see(portion)

    assert {size for _, _, size in watcher.anchors.values()} <= {4, 8_000_000}


def test_a_rank_that_falls_silent_is_not_waited_for() -> None:
    logs = logs_of(data_parallel(4), NUM, Faults(60, ranks={1: 1.6}), 0)
    silent = [replace(log, calls=log.calls[:100]) if log.rank == 3 else log for log in logs]
    event, *_ = events_of(silent)

    assert event.suspects[0].ranks == (1,)


def test_memory_is_bounded() -> None:
    watcher = StragglerDetector()
    for portion in portions(logs_of(data_parallel(2), 400, Faults(), 0)):
        watcher.see(portion)

    assert all(len(log.calls) < 150 * 5 for log in watcher.logs())
    assert watcher.num_iterations == 399


def test_nothing_heard_is_nothing_to_say() -> None:
    watcher = StragglerDetector()

    assert watcher.see([]) == []
    assert watcher.anchors == {}
    assert watcher.standings() == []
