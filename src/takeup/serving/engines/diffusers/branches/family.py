"""A family of which each rank computes one branch: the negative one on rank 0, the positive one on rank 1.

A request with two guidance branches has one row on each rank. Both rows are concatenated in `guide`, and the family's
own formula is applied, so rescaling etc. is the same as in one process. Then both ranks make the same scheduler step
with the same random numbers, and no latents are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from takeup.errors import BadInput
from takeup.serving.engines.diffusers.branches.exchange import Exchange
from takeup.serving.engines.diffusers.families import Family
from takeup.serving.engines.diffusers.runs import BatchRows, DenoisingRun
from takeup.serving.model import Request

SLOT = "branches"


class OneBranch:
    """Wraps `family` and computes one of its branches."""

    def __init__(self, family: Family, exchange: Exchange) -> None:
        self._family, self._exchange = family, exchange
        self.pipeline: Any = family.pipeline
        self.encoding: AbstractContextManager[Any] = family.encoding
        self.predict: Callable[[BatchRows], torch.Tensor] = family.predict
        self.decode: Callable[[DenoisingRun], torch.Tensor] = family.decode

    @property
    def network(self) -> Any:
        return self._family.network

    def prepare(self, request: Request) -> DenoisingRun:
        """The same on both ranks, except for the branch."""
        if request.guess_mode:
            raise BadInput("guess mode lets ControlNets act on one branch only; leave it out, or use one rank")
        run = self._family.prepare(request)
        run.extras[SLOT] = run.num_rows
        run.inputs = self._mine(run.inputs)
        return run

    def encode(self, request: Request) -> dict[str, torch.Tensor]:
        """The inputs of this rank's branch."""
        return self._mine(self._family.encode(request))

    def guide(self, run: DenoisingRun, prediction: torch.Tensor) -> torch.Tensor:
        """Guide with the predictions of both ranks."""
        both = self._exchange.both(prediction) if run.extras[SLOT] == 2 else prediction
        return self._family.guide(run, both)

    def _mine(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        rank = self._exchange.rank
        return {name: tensor[rank : rank + 1] if len(tensor) == 2 else tensor for name, tensor in inputs.items()}
