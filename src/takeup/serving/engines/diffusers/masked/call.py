"""What the hooks in a network know about the call they are in: which tokens are computed, what is kept of the rest.

How it works. Tokens meet only where keys and values do. So a network computes some of its tokens only, if

    tokens are *taken* where they enter the blocks,
    keys and values that belong to the others are *filled* in, and
    what leaves the blocks is filled in too,

with the activations of a run in which all tokens were computed (`record`). A name stands for each place of filling.
Every row of the batch has tokens of its own. Rows with fewer than the others repeat one of them: it is computed twice,
to the same value, and written to the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

__all__ = ["Call", "Mode", "Places"]

Mode = Literal["off", "record", "masked"]


@dataclass(frozen=True, slots=True)
class Places:
    """Tokens of one grid that are computed: for each row of the batch, and as rows of the flattened batch."""

    by_row: torch.Tensor
    num_tokens: int
    flat: torch.Tensor

    @classmethod
    def of(cls, by_row: torch.Tensor, num_tokens: int) -> Places:
        """`by_row`: a row of token numbers for every row of the batch."""
        first = torch.arange(len(by_row), device=by_row.device)[:, None] * num_tokens
        return cls(by_row, num_tokens, (by_row + first).flatten())

    def after(self, num_front: int) -> Places:
        """The same behind so many tokens that are all computed."""
        front = torch.arange(num_front, device=self.by_row.device).expand(len(self.by_row), -1)
        return Places.of(torch.cat([front, self.by_row + num_front], dim=1), num_front + self.num_tokens)


@dataclass(slots=True, eq=False)
class Call:
    """Shared by all hooks of a network. `places` by the number of tokens of the grid; `kept` is changed in place."""

    mode: Mode = "off"
    places: Mapping[int, Places] = field(default_factory=dict)
    kept: Mapping[str, torch.Tensor] = field(default_factory=dict)
    recorded: dict[str, torch.Tensor] = field(default_factory=dict)
    num_front: int = 0
    """Text tokens in front of those of the image, in networks that have both in one sequence."""
    made: dict[str, object] = field(default_factory=dict)
    """What all blocks of a call share; forgotten with the places it was made for."""

    def take(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens that are computed, of all."""
        if self.mode != "masked":
            return tokens
        places = self.places[tokens.shape[1]]
        taken = tokens.reshape(-1, tokens.shape[-1]).index_select(0, places.flat)
        return taken.view(len(tokens), -1, tokens.shape[-1])

    def fill(self, name: str, tokens: torch.Tensor, num_front: int = 0) -> torch.Tensor:
        """All tokens, of those that are computed. The first `num_front` always are, and are never kept."""
        if self.mode == "off":
            return tokens
        if self.mode == "record":
            self.recorded[name] = tokens[:, num_front:].detach()
            return tokens
        return self._filled(self.kept[name], tokens, num_front)

    def turns(self, table: tuple[torch.Tensor, torch.Tensor], num_front: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a table with a row for every position, those of the computed tokens, for each row of the batch."""
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

    def _behind(self, num_tokens: int, num_front: int) -> Places:
        """Made once for all blocks of a call."""
        if not num_front:
            return self.places[num_tokens]
        if "behind" not in self.made:
            self.made["behind"] = self.places[num_tokens].after(num_front)
        found = self.made["behind"]
        assert isinstance(found, Places)
        return found
