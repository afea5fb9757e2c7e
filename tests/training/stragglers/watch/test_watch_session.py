"""One round after the other beside a job: what is done about events, and undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from takeup.training.stragglers.contract import Confirmation, SlowdownEvent
from takeup.training.stragglers.remedy.remediation import WatchSettings
from takeup.training.stragglers.watch.confirmation import PauseController
from takeup.training.stragglers.watch.ring import HeaderWord, RingBuffer
from takeup.training.stragglers.watch.session import WatchSession, ring_passes
from training.stragglers.watch.watched_rings import RELIEF, SLOW_LINK, SLOW_RANK, Scripted, add, new_ring, sharing


def watched(
    folder: Path, *rounds: list[SlowdownEvent], settings: WatchSettings | None = None
) -> tuple[WatchSession, Scripted]:
    """A session whose judge says these events, round by round."""
    judge = Scripted(list(rounds))
    return WatchSession(folder, settings or WatchSettings(), new_detector=lambda: judge), judge


def four(folder: Path) -> list[RingBuffer]:
    return [new_ring(folder, rank, 4) for rank in range(4)]


def shares(rings: list[RingBuffer]) -> list[tuple[int, int]]:
    return [(ring.words[HeaderWord.PLAN_FIRST], ring.words[HeaderWord.PLAN_COUNT]) for ring in rings]


def test_nothing_is_judged_before_all_ranks_are_there(tmp_path: Path) -> None:
    rings = [new_ring(tmp_path, rank, 2) for rank in range(1)]
    add(rings[0], 0)
    session, judge = watched(tmp_path)

    session.poll()
    assert judge.seen == []

    add(new_ring(tmp_path, 1, 2), 0)
    session.poll()
    assert [log.rank for log in judge.seen] == [0, 1]


def test_a_slow_rank_gets_fewer_micro_batches(tmp_path: Path) -> None:
    rings = four(tmp_path)
    sharing(rings, 16, [5.0, 10.0, 5.0, 5.0])
    session, judge = watched(tmp_path, [SLOW_RANK])

    (finding,) = session.poll()

    assert finding.action == "micro-batches of ranks 4 4 4 4 -> 5 2 5 4"
    assert shares(rings) == [(0, 5), (5, 2), (7, 5), (12, 4)]
    assert [ring.words[HeaderWord.PLAN] for ring in rings] == [1, 1, 1, 1]
    assert judge.num_rebased == 1


def test_the_sentence_has_rank_kind_factor_cost_and_action(tmp_path: Path) -> None:
    sharing(four(tmp_path), 16, [5.0, 10.0, 5.0, 5.0])
    session, _ = watched(tmp_path, [SLOW_RANK])

    (finding,) = session.poll()

    assert finding.sentence() == (
        "since iteration 60, rank 1 computes 1.50x slower, costing 29% of the throughput (20 ms before, 28 ms now); "
        "action: micro-batches of ranks 4 4 4 4 -> 5 2 5 4"
    )


def test_even_shares_come_back_when_the_rank_has_recovered_and_all_follow(tmp_path: Path) -> None:
    rings = four(tmp_path)
    sharing(rings, 16, [5.0, 10.0, 5.0, 5.0])
    session, judge = watched(tmp_path, [SLOW_RANK])
    session.poll()

    for ring in rings:
        ring.words[HeaderWord.MICROBATCH_NS] = 5_000_000
    assert session.poll() == []  # ranks do not follow the last change yet

    sharing(rings, 16, [5.0, 5.0, 5.2, 5.0])
    (finding,) = session.poll()

    assert finding.action == "micro-batches of ranks 5 2 5 4 -> 4 4 4 4"
    assert not finding.event.is_slow
    assert shares(rings) == [(0, 4), (4, 4), (8, 4), (12, 4)]
    assert judge.num_rebased == 2
    assert session.remedies.slow == ()


def test_shares_are_chosen_again_once_more_is_known_of_the_slow_rank(tmp_path: Path) -> None:
    rings = four(tmp_path)
    sharing(rings, 16, [5.0, 10.0, 5.0, 5.0])
    session, judge = watched(tmp_path, [SLOW_RANK])
    session.poll()

    sharing(rings, 16, [5.0, 22.0, 5.0, 5.0])  # it is far slower than was thought
    (finding,) = session.poll()

    assert finding.action == "micro-batches of ranks 5 2 5 4 -> 5 1 5 5"
    assert finding.event is session.findings[0].event
    assert judge.num_rebased == 2


def test_a_pipeline_is_asked_once_and_what_it_made_of_it_is_told(tmp_path: Path) -> None:
    rings = four(tmp_path)
    for ring in rings:
        ring.words[HeaderWord.IS_ADAPTIVE] = 1
    session, judge = watched(tmp_path, [SLOW_LINK])
    session.poll()

    assert [ring.words[HeaderWord.ADAPT] for ring in rings] == [1, 1, 1, 1]
    assert session.poll() == []  # ranks have not followed yet
    for ring in rings:
        ring.words[HeaderWord.SCHEDULE], ring.words[HeaderWord.ADAPTED] = 1, 1
    (finding,) = session.poll()
    assert finding.action == "the pipeline has changed its schedule"
    assert finding.event == SLOW_LINK
    assert judge.num_rebased == 1
    assert session.poll() == []  # it is told once


def test_a_pipeline_that_keeps_its_schedule_is_told_and_nothing_is_taken_for_normal(tmp_path: Path) -> None:
    rings = four(tmp_path)
    for ring in rings:
        ring.words[HeaderWord.IS_ADAPTIVE] = 1
    session, judge = watched(tmp_path, [SLOW_LINK])
    session.poll()

    for ring in rings:
        ring.words[HeaderWord.ADAPTED] = 1
    (finding,) = session.poll()

    assert finding.action == "none; no other schedule would be faster"
    assert judge.num_rebased == 0


def test_with_no_action_a_pipeline_is_not_asked(tmp_path: Path) -> None:
    rings = four(tmp_path)
    for ring in rings:
        ring.words[HeaderWord.IS_ADAPTIVE] = 1
    session, _ = watched(tmp_path, [SLOW_LINK], settings=WatchSettings(rebalance=False))

    (finding,) = session.poll()

    assert finding.action == "none, as actions are off"
    assert [ring.words[HeaderWord.ADAPT] for ring in rings] == [0, 0, 0, 0]


def test_shares_stay_while_the_rank_is_slow(tmp_path: Path) -> None:
    rings = four(tmp_path)
    sharing(rings, 16, [5.0, 10.0, 5.0, 5.0])
    session, _ = watched(tmp_path, [SLOW_RANK])
    session.poll()

    sharing(rings, 16, [5.0, 9.0, 5.0, 5.0])

    assert session.poll() == []
    assert [ring.words[HeaderWord.PLAN] for ring in rings] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("event", "is_adaptive", "action"),
    [
        (SLOW_RANK, False, "none; with Batches in the script a slow rank would get less work"),
        (SLOW_LINK, False, "none; look at this link, or restart without its machines"),
        (SLOW_LINK, True, "the pipeline measures the link and plans its schedule again"),
        (RELIEF, False, "none is needed"),
    ],
)
def test_what_cannot_be_done_is_advised(tmp_path: Path, event: SlowdownEvent, is_adaptive: bool, action: str) -> None:
    for ring in four(tmp_path):
        ring.words[HeaderWord.IS_ADAPTIVE] = is_adaptive
    session, _ = watched(tmp_path, [event])

    (finding,) = session.poll()

    assert finding.action == action


def test_with_no_action_nothing_is_asked_of_ranks(tmp_path: Path) -> None:
    rings = four(tmp_path)
    sharing(rings, 16, [5.0, 10.0, 5.0, 5.0])
    session, _ = watched(tmp_path, [SLOW_RANK], settings=WatchSettings(rebalance=False))

    session.poll()

    assert [ring.words[HeaderWord.PLAN] for ring in rings] == [0, 0, 0, 0]


def test_two_slow_ranks_are_both_given_less(tmp_path: Path) -> None:
    rings = four(tmp_path)
    sharing(rings, 16, [5.0, 10.0, 5.0, 10.0])
    session, _ = watched(tmp_path, [SLOW_RANK])

    session.poll()
    counts = [count for _, count in shares(rings)]

    assert sum(counts) == 16
    assert max(counts[1], counts[3]) < 4 < min(counts[0], counts[2])


def test_the_loss_is_what_iterations_take_beyond_the_healthy_time(tmp_path: Path) -> None:
    four(tmp_path)
    session, _ = watched(tmp_path, [SLOW_RANK], [], [RELIEF], [])

    lost_s = []
    for _ in range(4):
        session.poll()
        lost_s.append(round(session.remedies.lost_s, 6))

    assert lost_s == [0.08, 0.16, 0.16, 0.16]


def losing(folder: Path, *, can_restart: bool) -> tuple[WatchSession, list[RingBuffer]]:
    """A session whose job may lose little before it is restarted, and has lost more after the second look."""
    rings = four(folder)
    sharing(rings, 16, [5.0, 5.0, 5.0, 5.0], can_restart=can_restart)
    return watched(folder, [SLOW_LINK], [], settings=WatchSettings(restart_after_s=0.1))[0], rings


def test_a_job_that_can_save_restarts_once_the_loss_is_too_much(tmp_path: Path) -> None:
    session, rings = losing(tmp_path, can_restart=True)

    session.poll()
    assert [ring.words[HeaderWord.PLAN_RESTART] for ring in rings] == [0, 0, 0, 0]
    (finding,) = session.poll()

    assert finding.action.startswith("saved and restarted after a loss of ")
    assert [ring.words[HeaderWord.PLAN_RESTART] for ring in rings] == [1, 1, 1, 1]


def test_a_job_that_would_not_come_back_is_not_restarted_which_is_said_once(tmp_path: Path) -> None:
    session, rings = losing(tmp_path, can_restart=False)
    session.poll()

    actions = [finding.action for _ in range(3) for finding in session.poll()]

    assert actions == ["no restart; Batches needs a save function, and torchrun --max-restarts"]
    assert [ring.words[HeaderWord.PLAN_RESTART] for ring in rings] == [0, 0, 0, 0]


def test_a_pause_that_is_impossible_is_said_and_the_event_is_acted_on(tmp_path: Path) -> None:
    four(tmp_path)  # of no process that lives
    session, _ = watched(tmp_path, [SLOW_RANK], settings=WatchSettings(confirm=True))

    (finding,) = session.poll()

    assert finding.confirmed is not None
    assert finding.confirmed.problem
    assert "no pause: " in finding.sentence()


def test_a_slowdown_that_has_vanished_before_the_pause_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings = four(tmp_path)
    sharing(rings, 16, [5.0, 10.0, 5.0, 5.0])
    monkeypatch.setattr(PauseController, "confirm", lambda *arguments: Confirmation({}, {}, 0.4))
    session, _ = watched(tmp_path, [SLOW_RANK], settings=WatchSettings(confirm=True))

    (finding,) = session.poll()

    assert finding.action == "none, it is over"
    assert "tested in a pause of 0.40 s: it has vanished" in finding.sentence()
    assert [ring.words[HeaderWord.PLAN] for ring in rings] == [0, 0, 0, 0]


def test_ranks_that_begin_again_get_a_new_judge(tmp_path: Path) -> None:
    judges: list[Scripted] = []

    def judge() -> Scripted:
        judges.append(Scripted([]))
        return judges[-1]

    four(tmp_path)
    session = WatchSession(tmp_path, new_detector=judge)
    session.poll()
    for rank in range(2):
        new_ring(tmp_path, rank, 2, pid=2)
    session.poll()

    assert len(judges) == 2
    assert session.gather.num_ranks == 2


def test_findings_of_one_round_have_numbers_of_their_own(tmp_path: Path) -> None:
    four(tmp_path)
    session, _ = watched(tmp_path, [SLOW_LINK, RELIEF], [SLOW_RANK])

    assert [finding.number for _ in range(2) for finding in session.poll()] == [1, 2, 3]


def test_our_own_watcher_takes_what_rings_hold(tmp_path: Path) -> None:
    rings = four(tmp_path)
    for number in range(200):
        for rank, ring in enumerate(rings):
            add(ring, number, skew_ns=number * 1_000_000 + rank * 10**12)
    session = WatchSession(tmp_path)

    assert session.poll() == []
    assert session.watcher.num_iterations > 150
    assert set(session.watcher.anchors) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("num_ranks", "num_passes"), [(1, 0), (2, 1), (3, 3), (4, 2), (5, 3), (6, 2), (65, 3), (256, 2)]
)
def test_every_link_of_the_ring_is_tested_once_and_no_rank_twice_at_a_time(num_ranks: int, num_passes: int) -> None:
    passes = ring_passes(num_ranks)

    links = {(min(n, (n + 1) % num_ranks), max(n, (n + 1) % num_ranks)) for n in range(num_ranks) if num_ranks > 1}
    assert sorted(pair for each in passes for pair in each) == sorted(links)
    assert all(len({rank for pair in each for rank in pair}) == 2 * len(each) for each in passes)
    assert len(passes) == num_passes
