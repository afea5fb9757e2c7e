"""Where residuals enter a U-Net: before each up block.

Nothing in the first half depends on a ControlNet. Residuals are numbered in decoder order: 0 belongs to the mid block,
1 to the last skip, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Source = Callable[[int, torch.Tensor], torch.Tensor]
"""The residual of this number, in the shape of the tensor it is added to."""


def num_residuals(network: Any) -> int:
    """How many residuals a U-Net takes."""
    return 1 + sum(len(block.resnets) for block in network.up_blocks)


@contextmanager
def residuals_added(network: Any, source: Source, at_seam: Callable[[], None] | None = None) -> Iterator[None]:
    """Inside, calls of the network add the residuals of `source`; `at_seam` is called before the first one is added."""
    hooks = []
    first = 1
    for number, block in enumerate(network.up_blocks):
        numbers = range(first, first + len(block.resnets))
        hook = _adding(source, numbers, at_seam if number == 0 else None, with_middle=number == 0)
        hooks.append(block.register_forward_pre_hook(hook, with_kwargs=True))
        first = numbers.stop
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _adding(source: Source, numbers: range, at_seam: Callable[[], None] | None, with_middle: bool) -> Any:
    def add(block: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if at_seam is not None:
            at_seam()
        skips = list(named["res_hidden_states_tuple"])
        for place, number in enumerate(numbers, start=1):  # skips are used from the last to the first
            skips[-place] = skips[-place] + source(number, skips[-place])
        named["res_hidden_states_tuple"] = tuple(skips)
        if with_middle:
            named["hidden_states"] = named["hidden_states"] + source(0, named["hidden_states"])
        return args, named

    return add
