"""The lazy heap gives the same victims as a scan over everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from takeup.caching.engines.dask.victim_order import StockReplay, VictimOrder

KEYS = st.integers(0, 5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["add", "discard", "touch", "pin", "unpin", "victim"]), KEYS, st.just(0)),
        st.tuples(st.just("rank"), KEYS, st.integers(0, 3)),
    ),
    max_size=80,
)


class Scanned:
    """The same order, found by looking at every key every time."""

    def __init__(self, ranks: dict[Hashable, int]) -> None:
        self.ranks = ranks
        self.stamps: dict[Hashable, int] = {}
        self.pins: Counter[Hashable] = Counter()
        self.now = 0

    def step(self, action: str, key: Hashable) -> None:
        self.now += 1
        if action == "add" or (action == "touch" and key in self.stamps):
            self.stamps[key] = self.now
        elif action == "discard":
            self.stamps.pop(key, None)
        elif action == "pin":
            self.pins[key] += 1
        elif action == "unpin" and self.pins[key]:
            self.pins[key] -= 1

    def victim(self) -> Hashable | None:
        free = [key for key in self.stamps if not self.pins[key]]
        return min(free, key=lambda key: (self.ranks[key], self.stamps[key]), default=None)


def apply(order: VictimOrder, scanned: Scanned, action: str, key: int, rank: int) -> None:
    if action == "rank":
        scanned.ranks[key] = rank
        order.changed(key)
    elif action in ("pin", "unpin"):
        if action == "pin" or scanned.pins[key]:
            (order.pin if action == "pin" else order.unpin)([key])
    elif action != "victim":
        getattr(order, action)(key)
    scanned.step(action, key)


@given(STEPS)
def test_every_victim_is_the_one_a_scan_would_find(steps: list[tuple[str, int, int]]) -> None:
    ranks: dict[Hashable, int] = dict.fromkeys(range(6), 0)
    order, scanned = VictimOrder(lambda key: (ranks[key],)), Scanned(ranks)
    for action, key, rank in steps:
        apply(order, scanned, action, key, rank)
        if action == "victim":
            assert order.victim() == scanned.victim()

    assert order.victim() == scanned.victim()
    assert len(order) == len(scanned.stamps)
    assert order.num_pinned == sum(count > 0 for count in scanned.pins.values())


def test_the_lowest_rank_leaves_first_and_ties_go_to_the_least_recent() -> None:
    ranks = {"a": 1, "b": 0, "c": 0}
    order = VictimOrder(lambda key: (ranks[str(key)],))
    for key in ranks:
        order.add(key)
    order.touch("b")

    assert order.victim() == "c"


def test_asking_twice_gives_the_same_victim_until_it_is_discarded() -> None:
    order = VictimOrder(lambda key: (0,))
    order.add("a")
    order.add("b")

    assert [order.victim(), order.victim()] == ["a", "a"]
    order.discard("a")
    assert order.victim() == "b"


def test_a_pinned_key_is_passed_over_and_comes_back() -> None:
    order = VictimOrder(lambda key: (0,))
    order.add("a")
    order.pin(["a"])

    assert order.victim() is None
    assert order.any_victim() == "a"
    order.unpin(["a"])
    assert order.victim() == "a"


def test_a_pin_may_come_before_the_value_and_outlast_it() -> None:
    order = VictimOrder(lambda key: (0,))
    order.pin(["a"])
    order.add("a")
    order.discard("a")
    order.add("a")

    assert order.victim() is None
    assert order.is_pinned("a")


def test_a_rank_is_computed_once_however_often_it_changed() -> None:
    asked: list[Hashable] = []

    def rank(key: Hashable) -> tuple[float, ...]:
        asked.append(key)
        return (0.0,)

    order = VictimOrder(rank)
    order.add("a")
    for _ in range(100):
        order.changed("a")
    order.victim()
    order.victim()

    assert asked == ["a"]


def test_stale_entries_are_cleared_away() -> None:
    ranks = {0: 0}
    order = VictimOrder(lambda key: (ranks[0],))
    order.add(0)
    for rank in range(1_000):
        ranks[0] = -rank
        order.changed(0)
        order.victim()

    assert len(order._heap) < 100


def test_when_all_ranks_drift_the_order_follows_within_a_few_victims() -> None:
    sign = [1]
    order = VictimOrder(lambda key: (sign[0] * int(str(key)),))
    for key in range(200):
        order.add(key)

    assert order.victim() == 0
    sign[0] = -1
    order.all_drifted()
    assert [order.victim() for _ in range(4)][-1] == 199
    assert sorted(order, key=str) == sorted(range(200), key=str)
    assert 100 in order


def test_a_long_backlog_is_worked_off_before_a_victim_is_needed() -> None:
    order = VictimOrder(lambda key: (int(str(key)),))
    for key in range(12_000):
        order.add(key)
    order.settle()

    assert len(order._changed) == 10_000
    assert order.victim() == 0


# What stock would have done -------------------------------------------------------------------------------------------


def test_the_replay_of_stock_writes_the_least_recent_value_at_every_eviction() -> None:
    stock = StockReplay(2.0)
    for key in "ababcab":
        stock.use(key, 1.0)

    # c pushes a out, a pushes b, b pushes c
    assert (stock.read_bytes, stock.written_bytes) == (2.0, 3.0)


def test_the_replay_of_stock_spills_when_the_process_does_and_forgets_what_is_deleted() -> None:
    stock = StockReplay(3.0)
    for key in "abc":
        stock.use(key, 1.0)
    stock.shrink_to(1.0)
    stock.forget("a")
    for key in "ab":
        stock.use(key, 1.0)

    assert (stock.read_bytes, stock.written_bytes) == (1.0, 2.0)
