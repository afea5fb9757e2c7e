"""LoRAs stay in memory for the next request, as the policy says, and never leave while they are used."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")

import torch

from takeup.errors import BadInput
from takeup.serving.diffusion.addons.lora.loading import LoraStore
from takeup.serving.diffusion.addons.lora.weights import Lora
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES

pytestmark = pytest.mark.engine


class Shelf:
    """A loader that gives LoRAs of ten bytes at once, later, or never."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.closed = False

    def load(self, name: str) -> Future[Lora]:
        self.asked.append(name)
        answer: Future[Lora] = Future()
        if name.startswith("bad"):
            answer.set_exception(BadInput("damaged"))
        elif not name.startswith("late"):
            answer.set_result(Lora(name, torch.zeros(10, dtype=torch.uint8), {}))
        return answer

    def release(self, name: str) -> None:
        raise AssertionError("the store keeps what it has")

    def close(self) -> None:
        self.closed = True


def stored(capacity_bytes: int = 20, policy: str = "lru") -> tuple[LoraStore, Shelf]:
    shelf = Shelf()
    return LoraStore(shelf, ADAPTER_POLICIES[policy], capacity_bytes), shelf


def use(store: LoraStore, *names: str) -> None:
    for name in names:
        store.load(name)
        store.release(name)


def test_what_was_loaded_is_not_loaded_again() -> None:
    store, shelf = stored()
    first, again = store.load("a").result(), store.load("a").result()

    assert first is again
    assert (shelf.asked, store.num_loads) == (["a"], 1)


def test_when_the_memory_is_full_the_policy_says_who_leaves() -> None:
    store, shelf = stored()
    use(store, "a", "b", "a", "c")

    assert store.names == {"a", "c"}
    assert store.size_bytes == 20
    use(store, "b")
    assert shelf.asked == ["a", "b", "c", "b"]


def test_another_policy_keeps_others() -> None:
    store, _ = stored(policy="lfu")
    use(store, "a", "a", "b", "c")

    assert "a" in store.names


def test_what_is_used_stays_even_if_there_is_too_much_of_it() -> None:
    store, _ = stored()
    for name in "abc":
        store.load(name)

    assert store.names == {"a", "b", "c"}
    store.release("b")
    assert store.names == {"a", "c"}


def test_two_users_must_both_release() -> None:
    store, _ = stored(capacity_bytes=5)
    store.load("a")
    store.load("a")
    store.release("a")

    assert store.names == {"a"}
    store.release("a")
    assert store.names == set()


def test_a_lora_that_failed_is_tried_again() -> None:
    store, shelf = stored()
    for _ in range(2):
        with pytest.raises(BadInput, match="damaged"):
            store.load("bad").result()
        store.release("bad")

    assert shelf.asked == ["bad", "bad"]
    assert store.names == set()


def test_a_lora_that_is_on_its_way_is_awaited_not_ordered_twice() -> None:
    store, shelf = stored()
    first, second = store.load("late"), store.load("late")

    assert first is second
    assert (shelf.asked, store.size_bytes) == (["late"], 0)
    first.set_result(Lora("late", torch.zeros(10, dtype=torch.uint8), {}))
    assert store.size_bytes == 10


def test_a_forgotten_lora_is_loaded_anew_and_users_keep_theirs() -> None:
    store, shelf = stored()
    old = store.load("a").result()
    store.forget("a")
    store.forget("a")
    new = store.load("a").result()
    store.release("a")
    store.release("a")

    assert old is not new
    assert shelf.asked == ["a", "a"]
    assert store.names == {"a"}


def test_closing_closes_the_loader_behind_it() -> None:
    store, shelf = stored()
    store.close()

    assert shelf.closed


def test_a_store_for_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="keeps nothing"):
        stored(capacity_bytes=0)
