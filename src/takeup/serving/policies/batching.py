"""Batching: which requests share a network call in the next step.

Requests are *compatible* when their inputs have the same shapes and they use the same weights; the engine marks this
with an equal `bucket`. Their progress does not matter: every row has a separate timestep.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from takeup.errors import BadInput
from takeup.serving.traffic import Candidate


@dataclass(frozen=True, slots=True)
class Grouping:
    """One call per bucket, split at `max_rows` rows; ordered by earliest deadline, then by request number."""

    max_rows: int = 16

    def __post_init__(self) -> None:
        if self.max_rows < 2:
            raise BadInput(f"max_rows is {self.max_rows}; a request with guidance has two rows, so give at least 2")

    def __call__(self, candidates: Sequence[Candidate]) -> list[tuple[int, ...]]:
        """The request numbers of each call."""
        buckets: dict[Hashable, list[Candidate]] = {}
        for candidate in sorted(candidates, key=lambda one: (one.deadline_s, one.number)):
            buckets.setdefault(candidate.bucket, []).append(candidate)
        return [call for members in buckets.values() for call in self._pieces(members)]

    def _pieces(self, members: Sequence[Candidate]) -> list[tuple[int, ...]]:
        pieces: list[list[int]] = []
        free_rows = 0
        for member in members:
            if member.num_rows > free_rows or not pieces:
                pieces.append([])
                free_rows = self.max_rows
            pieces[-1].append(member.number)
            free_rows -= member.num_rows
        return [tuple(piece) for piece in pieces]


def one_by_one(candidates: Sequence[Candidate]) -> list[tuple[int, ...]]:
    """One call per request: slower, but every image is bit-identical to one generated without other requests."""
    return [(candidate.number,) for candidate in sorted(candidates, key=lambda one: one.number)]
