"""The LoRAs of one simulated instance: in the memory of its device, in that of its host, or far away.

What a running request uses cannot leave. If nothing else is there, the device holds more than its size for a while, as
the store of the real engine does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

from takeup.errors import BadInput
from takeup.serving.contract import CachePolicy

Queue = Sequence[tuple[Hashable, ...]]


@dataclass(frozen=True, slots=True)
class Tiers:
    """LoRA capacity of device and host, the eviction policy, and seconds to load from host to device."""

    make_policy: Callable[[], CachePolicy]
    num_device: int = 10
    num_host: int = 0
    host_load_s: float = 0.0

    def __post_init__(self) -> None:
        if self.num_device < 1 or self.num_host < 0 or self.host_load_s < 0:
            raise BadInput(
                f"found room for {self.num_device} LoRAs on the device and {self.num_host} on the host, "
                f"{self.host_load_s:g} s apart; give at least 1, 0 and 0"
            )


class LoraResidency:
    """What is where, and when what is on its way will be there."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._device, self._host = tiers.make_policy(), tiers.make_policy()
        self._ready_s: dict[Hashable, float] = {}
        self._on_host: set[Hashable] = set()
        self._users: Counter[Hashable] = Counter()

    @property
    def names(self) -> Collection[Hashable]:
        """What is on the device, or on its way there."""
        return self._ready_s.keys()

    def use(self, lora: Hashable, load_s: float, now_s: float, queue: Queue) -> tuple[bool, float]:
        """Whether it must be loaded, and when it will be there; `load_s` is how long it takes from far away."""
        self._users[lora] += 1
        is_load = lora not in self._ready_s
        if is_load:
            self._shrink(queue, 1)
            self._ready_s[lora] = now_s + (self._tiers.host_load_s if lora in self._on_host else load_s)
            self._keep_on_host(lora, queue)
        self._device.used(lora)
        return is_load, max(now_s, self._ready_s[lora])

    def release(self, loras: Sequence[Hashable], queue: Queue) -> None:
        """A request is over, and needs them no longer."""
        self._users.subtract(loras)
        self._shrink(queue, 0)

    def _shrink(self, queue: Queue, num_wanted: int) -> None:
        while len(self._ready_s) + num_wanted > self._tiers.num_device:
            idle = [lora for lora in self._ready_s if not self._users[lora]]
            if not idle:
                return
            victim = self._device.victim(idle, queue)
            del self._ready_s[victim]
            self._device.left(victim)

    def _keep_on_host(self, lora: Hashable, queue: Queue) -> None:
        if not self._tiers.num_host:
            return
        if lora not in self._on_host and len(self._on_host) == self._tiers.num_host:
            victim = self._host.victim(self._on_host, queue)
            self._on_host.remove(victim)
            self._host.left(victim)
        self._on_host.add(lora)
        self._host.used(lora)
