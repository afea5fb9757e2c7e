"""The interface of editing: an edit in addition to its request, its report, and the editor. Read this first.

An editor prepares a run for the step engine, and may modify the decoded image, both outside the step loop. To act
inside the loop, it provides add-ons. `masked` has the editor that reuses cached activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from takeup.errors import BadInput

if TYPE_CHECKING:  # processes that only forward edits must not import the networks
    import torch

    from takeup.serving.diffusion.contract import AddOn, DenoisingRun
    from takeup.serving.model import Request


@dataclass(frozen=True, slots=True)
class EditRequest:
    """Image, mask of the same size (white: change; None: everywhere), and strength (the share of steps that are run).

    Where the error would exceed `max_error`, steps compute all tokens. `exact` edits neither read nor record one.
    Templates are specific to `tenant` and to the noise of `noise_seed`; `template` is their id, for callers that store
    it.
    """

    image: Any
    mask: Any = None
    strength: float = 1.0
    max_error: float | None = None
    exact: bool = False
    tenant: str = ""
    noise_seed: int = 0
    template: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.strength <= 1:
            raise BadInput(f"the strength is {self.strength:g}; give a share of the steps above 0, at most 1")
        if self.max_error is not None and not self.max_error >= 0:
            raise BadInput(f"the bound of the error is {self.max_error:g}; give a value from zero up, or none")


@dataclass(frozen=True, slots=True)
class EditReport:
    """Statistics of an edit.

    `error`: upper estimate of the root mean square difference of pixels inside the mask, from 0 to 1, from the edit
    that computes everything; None if nothing was checked. `packing_error`: relative error of compressed activations.
    """

    from_template: bool
    mask_share: float
    computed_share: float
    error: float | None
    packing_error: float
    num_whole_steps: int


class Editor(Protocol):
    """Turns an edit into a run."""

    @property
    def add_ons(self) -> Sequence[AddOn]:
        """Its add-ons in the step loop."""

    def prepare(self, request: Request, edit: EditRequest) -> DenoisingRun:
        """As `prepare` of the family, from an image."""

    def finish(self, edit: EditRequest, image: torch.Tensor) -> torch.Tensor:
        """The decoded image (values from 0 to 1, channels first, one row) as it is answered."""

    def report(self, run: DenoisingRun) -> EditReport:
        """What was done."""

    def forget(self, template: str) -> None:
        """Delete all that is cached of this image."""

    def close(self) -> None:
        """Free all resources."""
