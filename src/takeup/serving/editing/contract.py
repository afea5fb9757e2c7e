"""The parameters of an edit, in addition to its request. Read this first; then `masked`."""

from dataclasses import dataclass
from typing import Any

from takeup.errors import BadInput


@dataclass(frozen=True, slots=True)
class EditRequest:
    """Image, mask of the same size (white: change; None: everywhere), and strength (the share of steps that are run).

    If a template is more stale than `max_error`, steps compute all tokens. `exact` edits neither read nor record one.
    Templates are specific to `tenant` and to the noise of `noise_seed`; `template` is their id, for callers that store
    it. The first `shared_steps` run without the LoRAs of the request, so their activations are valid for any LoRAs.
    """

    image: Any
    mask: Any = None
    strength: float = 1.0
    max_error: float | None = None
    exact: bool = False
    tenant: str = ""
    noise_seed: int = 0
    template: str | None = None
    shared_steps: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.strength <= 1:
            raise BadInput(f"the strength is {self.strength:g}; give a share of the steps above 0, at most 1")
        if self.shared_steps < 0:
            raise BadInput(
                f"shared_steps is {self.shared_steps}; give how many steps are made without LoRAs, from 0 up"
            )
        if self.max_error is not None and not self.max_error >= 0:
            raise BadInput(f"the bound of the error is {self.max_error:g}; give a share from zero up, or none")
