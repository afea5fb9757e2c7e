"""Processor sharing with a clock that the test turns."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from support.dash.links import ProcessorSharing


def sharing(rate: float = 1000.0, quantum: int = 10, pause_s: float = 0.0) -> ProcessorSharing[str]:
    return ProcessorSharing(rate, quantum, pause_s)


def dealt(link: ProcessorSharing[str], until_s: float, step_s: float = 0.001, from_s: float = 0.0) -> Counter[str]:
    """Who got how much, asking every `step_s`."""
    got: Counter[str] = Counter()
    for step in range(round((until_s - from_s) / step_s) + 1):
        for sender, num_bytes in link.dequeue(from_s + step * step_s):
            got[sender] += num_bytes
    return got


def test_one_sender_gets_the_whole_rate() -> None:
    link = sharing()
    link.enqueue("a", 10_000, 0.0)

    assert abs(dealt(link, 2.0)["a"] - 2000) <= 10


def test_senders_share_equally_at_every_moment() -> None:
    link = sharing()
    for name in "abc":
        link.enqueue(name, 10_000, 0.0)

    for until_s in (0.1, 0.5, 1.0):
        got = dealt(link, until_s)
        assert max(got.values()) - min(got.values()) <= 10


def test_who_is_done_leaves_the_rate_to_the_others() -> None:
    link = sharing()
    link.enqueue("short", 100, 0.0)
    link.enqueue("long", 10_000, 0.0)

    got = dealt(link, 1.0)

    assert got["short"] == 100
    assert abs(got["long"] - 900) <= 10


def test_who_is_gone_gets_nothing_more() -> None:
    link = sharing()
    link.enqueue("a", 10_000, 0.0)
    link.enqueue("b", 10_000, 0.0)
    link.drop("a")
    link.drop("nobody")

    got = dealt(link, 1.0)

    assert got["a"] == 0
    assert abs(got["b"] - 1000) <= 10


def test_a_late_call_makes_up_for_lost_time() -> None:
    link = sharing()
    link.enqueue("a", 10_000, 0.0)

    assert abs(sum(num_bytes for _, num_bytes in link.dequeue(3.0)) - 3000) <= 10


def test_time_without_demand_is_lost() -> None:
    link = sharing(pause_s=0.1)
    link.enqueue("a", 10, 0.0)
    list(link.dequeue(0.0))
    link.enqueue("a", 10_000, 5.0)

    assert list(link.dequeue(5.0)) == [("a", 10)]


def test_a_late_link_makes_up_for_it_also_when_the_next_request_follows_at_once() -> None:
    link = sharing(pause_s=0.02)
    link.enqueue("a", 100, 0.0)
    list(link.dequeue(1.0))  # due long ago
    link.enqueue("a", 10_000, 1.01)

    assert abs(sum(num_bytes for _, num_bytes in link.dequeue(1.01)) - 910) <= 10


def test_asking_twice_adds_up() -> None:
    link = sharing()
    link.enqueue("a", 30, 0.0)
    link.enqueue("a", 25, 0.0)

    assert dealt(link, 1.0) == {"a": 55}


def test_nothing_is_due_when_nobody_waits() -> None:
    link = sharing()
    due_before = link.due_s
    link.enqueue("a", 20, 1.0)
    due_while_waiting = link.due_s
    list(link.dequeue(2.0))

    assert (due_before, due_while_waiting, link.due_s) == (None, 1.0, None)


def test_the_next_quantum_is_due_when_the_last_one_is_through() -> None:
    link = sharing(rate=100.0, quantum=10)
    link.enqueue("a", 1000, 0.0)

    assert list(link.dequeue(0.0)) == [("a", 10)]
    assert link.due_s == 0.1


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 500), st.floats(0, 2)), min_size=1, max_size=30),
    st.integers(1, 50),
)
def test_everyone_gets_exactly_what_was_asked_and_never_above_the_rate(
    requests: list[tuple[str, int, float]], quantum: int
) -> None:
    link = ProcessorSharing[str](1000.0, quantum, 0.0)
    wanted: Counter[str] = Counter()
    got: Counter[str] = Counter()
    for name, num_bytes, at_s in sorted(requests, key=lambda request: request[2]):
        for sender, given_bytes in link.dequeue(at_s):
            got[sender] += given_bytes
        assert got.total() <= 1000.0 * at_s + quantum + 1e-6
        link.enqueue(name, num_bytes, at_s)
        wanted[name] += num_bytes
    got += dealt(link, 20.0, step_s=0.5, from_s=2.0)

    assert got == wanted
