"""What an add-on does in the step loop: hold a request back, tell requests apart, and act around a network call."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from takeup.serving.engines.diffusers.runs import Rows, Run

__all__ = ["AddOn"]


class AddOn(Protocol):
    """LoRAs, ControlNets. The engine asks all its add-ons before every step."""

    def joined(self, run: Run) -> None:
        """The request enters the loop; refuse it by raising."""

    def is_ready(self, run: Run) -> bool:
        """Whether the request may make its next step now; if not, the others go on without it."""

    def plan(self, runs: Sequence[Run]) -> None:
        """These make a step now; said before they are asked for their buckets."""

    def bucket(self, run: Run) -> Hashable:
        """Equal for requests that can share a call as far as this add-on goes."""

    def around(self, rows: Rows) -> AbstractContextManager[None]:
        """Entered right before the network call for `rows`, left right after it."""

    def left(self, run: Run) -> None:
        """The request is over, for whatever reason."""
