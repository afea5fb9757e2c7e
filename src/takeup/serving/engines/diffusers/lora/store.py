"""In-memory cache of LoRAs: a loader that wraps a loader.

LoRAs stay cached until the memory is full; then the policy selects the victim, but never a LoRA that a request still
uses. The policy receives the *queue*: the LoRAs in use, then those of the waiting requests, in order.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future

from takeup.errors import BadInput
from takeup.serving.contract import CachePolicy
from takeup.serving.engines.diffusers.lora.changes import Lora
from takeup.serving.engines.diffusers.lora.loaders import LoraLoader


class LoraStore:
    """Caches LoRAs up to `capacity_bytes`. A LoRA in use is kept even above the capacity.

    `ahead` are the LoRAs of the waiting requests, set by the owner of the queue.
    """

    def __init__(self, loader: LoraLoader, make_policy: Callable[[], CachePolicy], capacity_bytes: int) -> None:
        if capacity_bytes <= 0:
            raise BadInput(f"a store of {capacity_bytes} bytes keeps nothing; give a size above zero")
        self._loader, self._policy, self._capacity_bytes = loader, make_policy(), capacity_bytes
        self._lock = threading.RLock()
        self._kept: dict[str, Future[Lora]] = {}
        self._users: Counter[str] = Counter()
        self.num_loads = 0
        self.ahead: Sequence[tuple[Hashable, ...]] = ()

    @property
    def names(self) -> frozenset[str]:
        """LoRAs that are loaded or loading."""
        return frozenset(self._kept)

    @property
    def size_bytes(self) -> int:
        """Memory of the loaded LoRAs."""
        return sum(one.result().size_bytes for one in self._kept.values() if _is_good(one))

    def load(self, name: str) -> Future[Lora]:
        with self._lock:
            if name not in self._kept:
                self._kept[name] = self._loader.load(name)
                self.num_loads += 1
            self._users[name] += 1
            self._policy.used(name)
            answer = self._kept[name]
        answer.add_done_callback(lambda done: self._arrived(name, done))
        return answer

    def release(self, name: str) -> None:
        with self._lock:
            self._users[name] -= 1
            self._shrink()

    def forget(self, name: str) -> None:
        """Invalidate a LoRA whose file changed or was removed: current users keep theirs, the next request reloads."""
        with self._lock:
            if self._kept.pop(name, None) is not None:
                self._policy.left(name)

    def close(self) -> None:
        self._loader.close()

    def _arrived(self, name: str, answer: Future[Lora]) -> None:
        with self._lock:
            if not _is_good(answer) and self._kept.get(name) is answer:
                self.forget(name)  # so that the next request tries again
            self._shrink()

    def _shrink(self) -> None:
        while self.size_bytes > self._capacity_bytes:
            idle = [name for name, one in self._kept.items() if not self._users[name] and one.done()]
            if not idle:
                return
            queue = (*((name,) for name in self._kept if self._users[name]), *self.ahead)
            self.forget(str(self._policy.victim(idle, queue)))


def _is_good(answer: Future[Lora]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None
