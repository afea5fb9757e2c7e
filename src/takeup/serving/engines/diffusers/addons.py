"""Add-on interface of the step loop: delay a request, split requests into buckets, act around a network call."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from takeup.serving.engines.diffusers.runs import BatchRows, DenoisingRun


class AddOn(Protocol):
    """LoRAs, ControlNets. The engine calls every add-on before each step."""

    def joined(self, run: DenoisingRun) -> None:
        """The request enters the loop; raise to reject it."""

    def is_ready(self, run: DenoisingRun) -> bool:
        """Whether the request can make its next step now; if not, the other requests proceed without it."""

    def plan(self, runs: Sequence[DenoisingRun]) -> None:
        """These requests make a step now; called before `bucket`."""

    def bucket(self, run: DenoisingRun) -> Hashable:
        """Equal for requests that can share a network call as far as this add-on is concerned."""

    def around(self, rows: BatchRows) -> AbstractContextManager[None]:
        """Context manager around the network call for `rows`."""

    def left(self, run: DenoisingRun) -> None:
        """The request has ended, for whatever reason."""
