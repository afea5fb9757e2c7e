"""Cached activations of templates as input of a call: the rows of its requests concatenated, in a private copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

MAP, NORM, ROWS, OUT = ".map", ".norm", ".x", "out"
"""How names end under which inputs of convolutions, norms and blocks are kept; the name of the network's answer."""
PLACED = (MAP, NORM, ".k", ".v", OUT)
"""How names end of what recorded calls have places for, to which it can be copied from anywhere."""

Page = Mapping[str, torch.Tensor]
"""What one step of a template left, by name."""


def working_copy(page: Page, fronted: frozenset[str] = frozenset(), num_front: int = 0) -> dict[str, torch.Tensor]:
    """A copy that a call may write to, with space for `num_front` text tokens before the names in `fronted`.

    Maps and norms are read-only, so they are shared with the template.
    """
    return {
        name: kept if name.endswith((MAP, NORM)) else _with_front(kept, num_front if name in fronted else 0)
        for name, kept in page.items()
    }


def stacked(
    pages: Sequence[Page], fronted: frozenset[str] = frozenset(), num_front: int = 0
) -> dict[str, torch.Tensor]:
    """Working copy of the pages of several templates, concatenated along the batch."""
    together = {name: torch.cat([page[name] for page in pages]) for name in pages[0]}
    return working_copy(together, fronted, num_front) if num_front or len(pages) == 1 else together


def copy_named(page: Page, into: Page) -> None:
    """Copy all tensors of a page that `into` has a buffer for; each side must have a single dtype."""
    both = [name for name in into if name in page]
    if both:
        torch._foreach_copy_([into[name] for name in both], [page[name] for name in both], non_blocking=True)


def _with_front(kept: torch.Tensor, num_front: int) -> torch.Tensor:
    if not num_front:
        return kept.clone(memory_format=torch.contiguous_format)
    room = kept.new_empty((len(kept), num_front + kept.shape[1], *kept.shape[2:]))
    room[:, num_front:] = kept
    return room
