"""An edit on its way: which tokens it computes, the template it uses or fills, how wrong the template seems to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import torch

from takeup.serving.engines.diffusers.masked.call import Mode
from takeup.serving.engines.templates.keys import TemplateKey
from takeup.serving.engines.templates.templates import Reader, Recorder, Template

__all__ = ["SLOT", "EditReport", "Editing", "sampled"]

SLOT = "edit"


@dataclass(frozen=True, slots=True)
class EditReport:
    """What an edit did.

    `stale_error`: how far keys and values of sampled tokens outside the mask were from those of the template, as a
    share of their size, in the worst check; None if nothing was checked. `packing_error` is part of it. `plain_steps`
    were made without the LoRAs of the request.
    """

    from_template: bool
    mask_share: float
    computed_share: float
    stale_error: float | None
    packing_error: float
    num_whole_steps: int
    plain_steps: int = 0


@dataclass(slots=True, eq=False)
class Editing:
    """`mask`: tokens of the finest grid that may change. Without a key nothing is kept: everything is computed.

    `found` is the template as it was when the edit was prepared. The first `num_shared` steps are those of every edit
    with other LoRAs: `shared` has them, if there is one, else they are kept under `shared_key` for the others.
    """

    key: TemplateKey | None
    mask: torch.Tensor
    max_error: float | None = None
    found: Template | None = None
    num_shared: int = 0
    shared_key: TemplateKey | None = None
    shared: Template | None = None
    template: Template | None = None
    reader: Reader | None = None
    recorder: Recorder | None = None
    computed: torch.Tensor | None = None
    usual_share: float = 1.0
    errors: list[float] = field(default_factory=list)
    computed_shares: list[float] = field(default_factory=list)
    num_whole_left: int = 0
    num_refreshed: int = 0
    number: int = field(default_factory=count().__next__)
    """Its own, never that of another edit."""

    @property
    def mode(self) -> Mode:
        """How the next step is made."""
        if self.recorder is not None and self.recorder.num_pages == len(self.computed_shares):
            return "record"
        is_known = self.template is not None and len(self.computed_shares) < self.template.num_steps
        return "masked" if is_known and not self.num_whole_left else "off"

    @property
    def keys(self) -> list[TemplateKey]:
        """Of all that it uses or fills."""
        return [one for one in (self.key, self.shared_key) if one is not None]

    def use(self, template: Template) -> None:
        """Compute what may change, and what the template does not know."""
        self.template, self.reader = template, Reader(template)
        self.computed = self.mask | ~template.known.to(self.mask.device)
        self.usual_share = float(self.computed.float().mean())

    def checked(self, error: float, num_steps: int) -> None:
        """Above the bound, the next steps are made whole."""
        self.errors.append(error)
        if self.max_error is not None and error > self.max_error:
            self.num_whole_left = num_steps
            self.num_refreshed += num_steps

    def stepped(self, computed_share: float) -> None:
        """A step is done."""
        self.computed_shares.append(computed_share)
        self.num_whole_left = max(0, self.num_whole_left - 1)

    def report(self) -> EditReport:
        """What was done so far."""
        shares = self.computed_shares or [1.0]
        return EditReport(
            from_template=self.template is not None,
            mask_share=float(self.mask.float().mean()),
            computed_share=sum(shares) / len(shares),
            stale_error=max(self.errors) if self.errors else None,
            packing_error=self.template.error if self.template is not None else 0.0,
            num_whole_steps=sum(share == 1.0 for share in shares),
            plain_steps=self.num_shared,
        )


def sampled(computed: torch.Tensor, share: float, seed: int) -> torch.Tensor:
    """The computed tokens and some of the others, at least one: the same for the same seed."""
    others = (~computed).flatten().nonzero().flatten()
    if not len(others) or not share:
        return computed
    count = max(1, round(share * len(others)))
    chosen = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))[:count]
    more = computed.clone().flatten()
    more[others[chosen.to(others.device)]] = True
    return more.view_as(computed)
