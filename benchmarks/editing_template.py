"""How small a template gets on the activations of a run, and how wrong: eight bits, and every so many steps only."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch

from takeup.serving.engines.diffusers.masked.flat import flatten
from takeup.serving.engines.templates.packing import weights_between

__all__ = ["STRIDES", "Packing"]

STRIDES = (1, 2, 3, 4)


@dataclass
class _Step:
    """Keys and values of a step, all tensors one behind the other: as they are, and out of eight bits."""

    raw: torch.Tensor
    packed: torch.Tensor
    sizes: list[int]
    packed_bytes: int

    @classmethod
    def of(cls, page: dict[str, torch.Tensor]) -> _Step:
        kept = {name: one for name, one in page.items() if name.endswith((".k", ".v"))}
        whole, scales = flatten(kept)
        raw = torch.cat([one.flatten() for one in kept.values()])
        packed_bytes = whole.numel() + scales.numel() * scales.element_size()
        return cls(raw, (whole * scales.to(raw.dtype)).flatten(), [one.numel() for one in kept.values()], packed_bytes)


@dataclass
class Packing:
    """Told every step of a run in turn. Errors are root mean squares relative to the size of a tensor, the worst."""

    num_steps: int
    errors: dict[int, float] = field(default_factory=lambda: dict.fromkeys(STRIDES, 0.0))
    raw_bytes: int = 0
    packed_bytes: dict[int, int] = field(default_factory=lambda: dict.fromkeys(STRIDES, 0))
    _last: deque[_Step] = field(default_factory=lambda: deque(maxlen=max(STRIDES) + 1))

    def add(self, step: int, page: dict[str, torch.Tensor]) -> None:
        """The next step."""
        self._last.append(_Step.of(page))
        newest = self._last[-1]
        self.raw_bytes += newest.raw.numel() * newest.raw.element_size()
        for stride in STRIDES:
            if step % stride == 0 or step == self.num_steps - 1:
                self.packed_bytes[stride] += newest.packed_bytes
                self._compare(step, stride)

    def ratio(self, stride: int) -> float:
        """How many times smaller than keys and values as they are."""
        return self.raw_bytes / self.packed_bytes[stride]

    def _compare(self, step: int, stride: int) -> None:
        """The steps since the last one that was kept, with what would be guessed of them."""
        num_since = (step % stride or stride) if step else 1
        for back in range(num_since):
            sources = weights_between(step - back, stride, self.num_steps)
            parts = [weight * self._last[source - step - 1].packed for source, weight in sources]
            guessed = parts[0] if len(parts) == 1 else parts[0] + parts[1]
            self.errors[stride] = max(self.errors[stride], _worst(guessed, self._last[-1 - back]))


def _worst(guessed: torch.Tensor, true: _Step) -> float:
    gone = _sizes(guessed.float() - true.raw.float(), true.sizes)
    return float((gone / _sizes(true.raw.float(), true.sizes).clamp(min=1e-12)).max())


def _sizes(numbers: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    return torch.stack([part.norm() for part in numbers.split(sizes)])
