"""What the scheduler's half tells whom, seen at a stand-in for the scheduler with two workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from takeup.caching.engines.dask.plugins import FROM_WORKER, MAX_PEERS, NAME, TO_WORKER, Announcer


class Thing:
    """Anything with these attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def stand_in(**attributes: Any) -> Any:
    return Thing(**attributes)


class Desk:
    """An announcer at its scheduler, and every message it sent."""

    def __init__(self, *, uses_table: bool = True, follows_peers: bool = False) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.calls: list[tuple[Any, ...]] = []
        loop = Thing(time=lambda: 0.0, call_later=lambda delay_s, *call: self.calls.append(call))
        workers = {name: Thing(address=name, has_what=set()) for name in ("w1", "w2")}
        self.scheduler = stand_in(
            tasks={},
            workers=workers,
            stream_comms=dict.fromkeys(workers),
            stream_handlers={},
            plugins={},
            task_groups={},
            generation=1,
            loop=Thing(asyncio_loop=loop),
            worker_send=lambda worker, message: self.sent.append((worker, message)),
        )
        self.announcer = Announcer("ours", uses_table=uses_table, follows_peers=follows_peers)
        self.scheduler.plugins[NAME] = self.announcer
        asyncio.run(self.announcer.start(self.scheduler))
        for worker in workers:
            self.announcer.handle_message(worker, "ours", "hello")
        self.news()

    def add(self, key: str, *inputs: str, place: int = 0, at: str | None = None) -> None:
        """A task; with `at`, its value is in the memory of that worker."""
        holder = self.scheduler.workers.get(at)
        task = self.scheduler.tasks[key] = Thing(
            key=key,
            state="memory" if at else "waiting",
            priority=(0, 1, place),
            dependencies={self.scheduler.tasks[name] for name in inputs},
            waiters=set(),
            who_has={holder} if holder else set(),
            processing_on=None,
            group=Thing(name=key.partition("-")[0]),
        )
        for name in inputs:
            self.scheduler.tasks[name].waiters.add(task)
        if holder:
            holder.has_what.add(task)

    def move(self, key: str, finish: str, worker: str | None = None) -> None:
        self.scheduler.tasks[key].processing_on = self.scheduler.workers.get(worker)
        self.announcer.transition(key, "any", finish)

    def news(self) -> dict[str, list[Any]]:
        """Whatever is due leaves now: what each worker was told, consumers by name only."""
        calls, self.calls = self.calls, []
        for action, *details in calls:
            action(*details)
        sent, self.sent = self.sent, []
        assert all(message["op"] == TO_WORKER for _, message in sent)
        return {worker: [(entry[0], *entry[3:]) for entry in message["news"]] for worker, message in sent}


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.add("a", at="w1")
    desk.add("b", at="w2")
    return desk


def test_a_submitted_task_is_announced_to_the_holders_of_its_inputs(desk: Desk) -> None:
    desk.add("sum", "a", "b")
    desk.move("sum", "waiting")

    assert desk.news() == {"w1": [("sum", ("a",))], "w2": [("sum", ("b",))]}


def test_a_task_submitted_while_its_input_is_being_made_is_announced_to_the_maker(desk: Desk) -> None:
    desk.add("sum", "a")
    desk.move("sum", "processing", "w1")
    desk.news()
    desk.add("mean", "sum")
    desk.move("mean", "waiting")

    assert desk.news() == {"w1": [("mean", ("sum",))]}


def test_a_task_that_starts_brings_its_readers_and_its_inputs_from_elsewhere(desk: Desk) -> None:
    desk.add("sum", "a", "b")
    desk.add("mean", "sum")
    desk.move("sum", "processing", "w1")

    assert desk.news() == {"w1": [("mean", ("sum",)), ("sum", ("b",))]}


def test_holders_of_its_inputs_hear_that_a_task_runs_elsewhere(desk: Desk) -> None:
    desk.add("sum", "a", "b")
    desk.move("sum", "waiting")
    desk.news()
    desk.move("sum", "processing", "w2")
    due = desk.announcer.outboxes["w1"].news

    assert due == [("sum", True)]


@pytest.mark.parametrize("finish", ["memory", "erred", "released", "forgotten"])
def test_a_consumer_that_is_over_is_over_for_all_who_knew_it(desk: Desk, finish: str) -> None:
    desk.add("sum", "a")
    desk.move("sum", "waiting")
    desk.news()
    desk.move("sum", finish)
    desk.move("sum", finish)

    assert desk.news() == {"w1": [("sum",)]}
    assert desk.announcer.notified == {}


def test_news_of_one_moment_leave_in_one_message_in_their_order(desk: Desk) -> None:
    desk.add("x", "a")
    desk.add("y", "a")
    for key, finish in (("x", "waiting"), ("y", "waiting"), ("x", "memory")):
        desk.move(key, finish)

    assert len(desk.calls) == 1
    assert desk.news() == {"w1": [("x", ("a",)), ("y", ("a",)), ("x",)]}


def test_a_worker_that_says_hello_hears_everything_it_holds(desk: Desk) -> None:
    desk.add("sum", "a")
    desk.announcer.handle_message("w1", "ours", "hello")

    assert desk.news() == {"w1": [("sum", ("a",))]}


def test_a_question_is_answered_even_if_there_is_nothing_to_tell(desk: Desk) -> None:
    desk.add("sum", "b")
    desk.announcer.handle_message("w1", "ours", "ask", ["a", "b", "unknown"])
    desk.announcer.handle_message("w2", "ours", "ask", ["a"])

    assert desk.news() == {"w1": [("sum", ("b",))], "w2": []}


def test_lerc_hears_of_whole_groups_and_of_what_moves_in_them() -> None:
    desk = Desk(follows_peers=True)
    desk.add("a", at="w1")
    desk.add("b", at="w2")
    desk.add("sum", "b", "a")
    desk.move("sum", "waiting")

    assert desk.news() == {"w1": [("sum", ("a", "b"))], "w2": [("sum", ("a", "b"))]}
    desk.announcer.handle_message("w1", "ours", "lost", ["a"])
    for action, *details in desk.calls:
        action(*details)
    assert [(worker, message["moved"]) for worker, message in desk.sent] == [("w1", []), ("w2", [("a", True)])]


def test_a_group_of_very_many_is_announced_one_by_one() -> None:
    desk = Desk(follows_peers=True)
    names = [f"part-{number}" for number in range(MAX_PEERS + 1)]
    for name in names:
        desk.add(name, at="w1")
    desk.add("sum", *names)
    desk.move("sum", "waiting")

    assert sorted(desk.news()["w1"]) == sorted(("sum", (name,)) for name in names)


def test_positions_follow_priorities_and_of_equals_the_last_submitted_is_first(desk: Desk) -> None:
    announcer = desk.announcer
    ordered = [(-1, 9, 9), (0, 1, 0), (0, 1, 1), (0, 2, 0), (1, 1, 0)]
    positions = [announcer._position(priority) for priority in ordered]
    first = announcer._position((0, 1, 0))
    announcer.update_graph(desk.scheduler)

    assert positions == sorted(positions)
    assert announcer._position((0, 1, 0)) < first < announcer._position((0, 1, 1))


def test_a_policy_of_recency_needs_no_announcement() -> None:
    desk = Desk(uses_table=False)
    desk.add("a", at="w1")
    desk.add("sum", "a")
    desk.move("sum", "waiting")
    desk.announcer.handle_message("w1", "ours", "ask", ["a"])

    assert desk.news() == {"w1": []}


def test_who_has_left_is_told_nothing_and_the_door_closes_behind_the_last(desk: Desk) -> None:
    desk.announcer.stop()
    desk.announcer.handle_message("w1", "ours", "bye")
    is_open = FROM_WORKER in desk.scheduler.stream_handlers
    desk.announcer.remove_worker(desk.scheduler, "w2")
    desk.announcer.handle_message("w2", "ours", "bye")

    assert is_open
    assert FROM_WORKER not in desk.scheduler.stream_handlers
    assert [(worker, message.get("is_bye")) for worker, message in desk.sent] == [("w1", True), ("w2", True)]


def test_a_late_word_of_an_earlier_installation_is_ignored(desk: Desk) -> None:
    desk.add("sum", "a")
    for said in ("bye", "ask", "hello"):
        desk.announcer.handle_message("w1", "earlier", said, ["a"])

    assert (desk.sent, desk.calls) == ([], [])
    assert set(desk.announcer.outboxes) == {"w1", "w2"}


def test_a_door_that_the_next_installation_has_opened_stays_open(desk: Desk) -> None:
    following = Announcer("furthest_next_use", uses_table=True, follows_peers=False)
    desk.announcer.stop()
    desk.scheduler.plugins[NAME] = following
    asyncio.run(following.start(desk.scheduler))
    for worker in ("w1", "w2"):
        desk.announcer.handle_message(worker, "ours", "bye")

    assert desk.scheduler.stream_handlers[FROM_WORKER] == following.handle_message


def test_when_announcing_fails_every_worker_is_sent_back_to_stock(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk.add("sum", "a")
    monkeypatch.setattr(desk.announcer, "_announce", None)
    desk.move("sum", "waiting")
    desk.move("sum", "waiting")

    assert sorted(worker for worker, message in desk.sent if message["is_failed"]) == ["w1", "w2"]
    assert len(caplog.records) == 1


def test_stages_of_forgotten_groups_are_forgotten(desk: Desk) -> None:
    for number in range(200):
        desk.add(f"task{number}-x", "a")
        desk.move(f"task{number}-x", "waiting")

    assert len(desk.announcer._stages) < 100
