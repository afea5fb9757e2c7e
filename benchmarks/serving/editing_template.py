"""How small a template gets on the activations of a run, and how wrong: each tensor, and what is edited with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from benchmarks.serving.editing_network import Bench
from takeup.serving.editing.masked.hooks import MaskingHooks
from takeup.serving.editing.masked.tokens import working_copy
from takeup.serving.editing.templates.packing import PagePacker, error_of, unpack_page

BUDGETS = (0.02, 0.05, 0.1, 0.2)
RAW_BYTES = 2
"""Of a key or value as it is: half precision, whatever the run computes in."""
Page = dict[str, torch.Tensor]


@dataclass
class _Way:
    """One budget: how it packs, what it made of the last page, and sums so far."""

    packer: PagePacker
    known: Page = field(default_factory=dict)
    num_bytes: int = 0
    errors: list[float] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)


class Packing:
    """Told every step of a run in turn; keys and values only. With `keeps`, what is unpacked stays at hand.

    Templates do not keep the first `num_front` tokens, those of the text.
    """

    def __init__(self, num_front: int = 0, *, keeps: bool = False, budgets: Sequence[float] = BUDGETS) -> None:
        self.ways = {budget: _Way(PagePacker(budget)) for budget in budgets}
        self.raw_bytes, self._num_front, self._keeps = 0, num_front, keeps

    def add(self, page: Page) -> None:
        """The next step."""
        raw = {name: one[:, self._num_front :] for name, one in page.items() if name.endswith((".k", ".v"))}
        self.raw_bytes += RAW_BYTES * sum(one.numel() for one in raw.values())
        for way in self.ways.values():
            packed = way.packer.add(raw)
            way.num_bytes += sum(one.size_bytes for one in packed.values())
            way.known = unpack_page(packed, way.known)
            way.errors += [error_of({name: way.known[name]}, {name: one}) for name, one in raw.items()]
            if self._keeps:
                way.pages.append(page | {name: self._with_room(one) for name, one in way.known.items()})

    def _with_room(self, kept: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(kept[:, : self._num_front]), kept], dim=1)

    def ratio(self, budget: float) -> float:
        """How many times smaller than keys and values as they are."""
        return self.raw_bytes / self.ways[budget].num_bytes

    def usual(self, budget: float) -> float:
        """The mean error of a tensor in a step."""
        errors = self.ways[budget].errors
        return sum(errors) / len(errors)

    def worst(self, budget: float) -> float:
        """The error of the worst tensor in any step."""
        return max(self.ways[budget].errors)


@torch.no_grad()
def edited(bench: Bench, pages: Sequence[Page], share: float = 0.1) -> torch.Tensor:
    """The last prediction of an edit that was made with these pages of a template; the same noise every time."""
    torch.manual_seed(1)
    inputs, hooks = bench.inputs(), MaskingHooks(bench.network, convolutions=bench.name == "sdxl")
    call = hooks.call
    made: list[torch.Tensor] = []

    def play(step: int) -> torch.Tensor:
        call.mode, call.made, call.places = "masked", {}, bench.places([share])
        call.num_front = inputs["encoder_hidden_states"].shape[1] if hooks.fronted else 0
        call.kept = working_copy(pages[step])
        made.append(bench.predict(**inputs))
        return made[-1]

    bench.loop(inputs, play)
    hooks.remove()
    return made[-1]
