"""How small a template gets on the activations of a run, and how wrong: eight bits, and every so many steps only."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch

from takeup.serving.engines.templates.packing import PackedTensor, pack, unpack, weights_between

__all__ = ["STRIDES", "Packing"]

STRIDES = (1, 2, 3)


@dataclass
class _Step:
    """Keys and values of a step: as they are, and in eight bits."""

    raw: dict[str, torch.Tensor]
    packed: dict[str, PackedTensor]

    @classmethod
    def of(cls, page: dict[str, torch.Tensor]) -> _Step:
        raw = {name: one for name, one in page.items() if name.endswith((".k", ".v"))}
        return cls(raw, {name: pack(one, exact=False) for name, one in raw.items()})


@dataclass
class Packing:
    """Told every step of a run in turn. Errors are root mean squares relative to the size of a tensor.

    `worst`: of any tensor in any step. `usual`: the mean over all of them.
    """

    num_steps: int
    worst: dict[int, float] = field(default_factory=lambda: dict.fromkeys(STRIDES, 0.0))
    usual: dict[int, float] = field(default_factory=lambda: dict.fromkeys(STRIDES, 0.0))
    raw_bytes: int = 0
    packed_bytes: dict[int, int] = field(default_factory=lambda: dict.fromkeys(STRIDES, 0))
    _last: deque[_Step] = field(default_factory=lambda: deque(maxlen=max(STRIDES) + 1))

    def add(self, step: int, page: dict[str, torch.Tensor]) -> None:
        """The next step."""
        self._last.append(_Step.of(page))
        newest = self._last[-1]
        self.raw_bytes += sum(one.numel() * one.element_size() for one in newest.raw.values())
        for stride in STRIDES:
            if step % stride == 0 or step == self.num_steps - 1:
                self.packed_bytes[stride] += sum(one.size_bytes for one in newest.packed.values())
                self._compare(step, stride)

    def ratio(self, stride: int) -> float:
        """How many times smaller than keys and values as they are."""
        return self.raw_bytes / self.packed_bytes[stride]

    def _compare(self, step: int, stride: int) -> None:
        """The steps since the last one that was kept, with what would be guessed of them."""
        num_since = (step % stride or stride) if step else 1
        for back in range(num_since):
            sources = weights_between(step - back, stride, self.num_steps)
            weighted = [(self._last[source - step - 1].packed, weight) for source, weight in sources]
            errors = _errors(weighted, self._last[-1 - back].raw)
            self.worst[stride] = max(self.worst[stride], float(errors.max()))
            self.usual[stride] += float(errors.mean()) / self.num_steps


def _errors(weighted: list[tuple[dict[str, PackedTensor], float]], raw: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of every tensor."""
    found = []
    for name, true in raw.items():
        gone = true.float()
        size = gone.norm().clamp(min=1e-12)
        for page, weight in weighted:
            gone = gone - weight * unpack(page[name]).float()
        found.append(gone.norm() / size)
    return torch.stack(found)
