"""State that the hooks of a network share during a call: which tokens are computed, and cached values of the rest.

How it works. Tokens interact only through keys and values. So a network can compute a subset of its tokens, if

    the subset is *taken* (gathered) where tokens enter the blocks,
    keys and values of the other tokens are *filled* in, and
    the output of the blocks is filled in too,

with the activations of a run in which all tokens were computed (`record`). Each filled tensor has a name. Every row of
the batch has a separate subset. Shorter rows are padded by repeating a token: it is computed twice, to the same value,
and written to the same index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

Mode = Literal["off", "record", "masked"]


@dataclass(frozen=True, slots=True)
class TokenIndices:
    """Indices of the computed tokens of one grid: per row of the batch, and in the flattened batch."""

    by_row: torch.Tensor
    num_tokens: int
    flat: torch.Tensor

    @classmethod
    def of(cls, by_row: torch.Tensor, num_tokens: int) -> TokenIndices:
        """`by_row`: token indices for every row of the batch."""
        first = torch.arange(len(by_row), device=by_row.device)[:, None] * num_tokens
        return cls(by_row, num_tokens, (by_row + first).flatten())

    def after(self, num_front: int) -> TokenIndices:
        """The same tokens after `num_front` tokens that are all computed."""
        front = torch.arange(num_front, device=self.by_row.device).expand(len(self.by_row), -1)
        return TokenIndices.of(torch.cat([front, self.by_row + num_front], dim=1), num_front + self.num_tokens)


@dataclass(slots=True, eq=False)
class HookState:
    """Shared by all hooks of a network. `places` is keyed by tokens per grid; `kept` is modified in place."""

    mode: Mode = "off"
    places: Mapping[int, TokenIndices] = field(default_factory=dict)
    kept: Mapping[str, torch.Tensor] = field(default_factory=dict)
    recorded: dict[str, torch.Tensor] = field(default_factory=dict)
    num_front: int = 0
    """Text tokens in front of those of the image, in networks that have both in one sequence."""
    made: dict[str, object] = field(default_factory=dict)
    """What all blocks of a call share; forgotten with the places it was made for."""

    def take(self, tokens: torch.Tensor) -> torch.Tensor:
        """Gather the tokens to compute; all of them unless masked."""
        if self.mode != "masked":
            return tokens
        places = self.places[tokens.shape[1]]
        taken = tokens.reshape(-1, tokens.shape[-1]).index_select(0, places.flat)
        return taken.view(len(tokens), -1, tokens.shape[-1])

    def fill(self, name: str, tokens: torch.Tensor, num_front: int = 0) -> torch.Tensor:
        """Scatter computed tokens into the cached ones. The first `num_front` are always computed, never cached."""
        if self.mode == "off":
            return tokens
        if self.mode == "record":
            self.recorded[name] = tokens[:, num_front:].detach()
            return tokens
        return self._filled(self.kept[name], tokens, num_front)

    def turns(self, table: tuple[torch.Tensor, torch.Tensor], num_front: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotary embeddings of the computed tokens, per row of the batch, from a table of all positions."""
        if "turns" not in self.made:
            places = self._behind(len(table[0]) - num_front, num_front)
            self.made["turns"] = tuple(part[places.by_row] for part in table)
        found = self.made["turns"]
        assert isinstance(found, tuple)
        return found[0], found[1]

    def _filled(self, kept: torch.Tensor, tokens: torch.Tensor, num_front: int) -> torch.Tensor:
        places = self._behind(kept.shape[1] - num_front, num_front)
        rows = kept.view(kept.shape[0] * kept.shape[1], -1)
        rows.index_copy_(0, places.flat, tokens.reshape(len(places.flat), -1))
        return kept

    def _behind(self, num_tokens: int, num_front: int) -> TokenIndices:
        """Indices after `num_front` tokens; computed once per call and shared by all blocks."""
        if not num_front:
            return self.places[num_tokens]
        if "behind" not in self.made:
            self.made["behind"] = self.places[num_tokens].after(num_front)
        found = self.made["behind"]
        assert isinstance(found, TokenIndices)
        return found
