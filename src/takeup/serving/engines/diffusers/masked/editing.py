"""State of a running edit: tokens to compute, the template it reads or records, and the measured staleness."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import torch

from takeup.serving.engines.diffusers.masked.awaited import PendingScalar
from takeup.serving.engines.diffusers.masked.call import Mode
from takeup.serving.engines.diffusers.masked.tokens import grids_of, token_mask
from takeup.serving.engines.diffusers.runs import DenoisingRun
from takeup.serving.engines.templates.keys import TemplateKey
from takeup.serving.engines.templates.templates import PageReader, Template, TemplateRecorder

SLOT = "edit"


@dataclass(frozen=True, slots=True)
class EditReport:
    """Statistics of an edit.

    `stale_error`: relative error of the template's keys and values for sampled tokens outside the mask, in the worst
    check; None if nothing was checked. It includes `packing_error`. `plain_steps` were computed without the LoRAs of
    the request.
    """

    from_template: bool
    mask_share: float
    computed_share: float
    stale_error: float | None
    packing_error: float
    num_whole_steps: int
    plain_steps: int = 0


@dataclass(slots=True, eq=False)
class EditState:
    """`mask`: tokens of the finest grid that may change. Without a key nothing is cached: everything is computed.

    `found` is the template looked up when the edit was prepared. The first `num_shared` steps do not depend on the
    LoRAs: they are read from the template `shared`, if there is one, else stored under `shared_key` for other edits.
    """

    key: TemplateKey | None
    mask: torch.Tensor
    max_error: float | None = None
    found: Template | None = None
    num_shared: int = 0
    shared_key: TemplateKey | None = None
    shared: Template | None = None
    template: Template | None = None
    reader: PageReader | None = None
    recorder: TemplateRecorder | None = None
    computed: torch.Tensor | None = None
    watched: torch.Tensor | None = None
    """Tokens that an edit needs, and with those that are looked at for errors."""
    share: float = 1.0
    errors: list[float] = field(default_factory=list)
    awaited: list[tuple[PendingScalar, int]] = field(default_factory=list)
    computed_shares: list[float] = field(default_factory=list)
    num_whole_left: int = 0
    num_refreshed: int = 0
    number: int = field(default_factory=count().__next__)
    """Its own, never that of another edit."""

    @property
    def mode(self) -> Mode:
        """Mode of the next step: record, masked, or off (all tokens)."""
        if self.recorder is not None and self.recorder.num_pages == len(self.computed_shares):
            return "record"
        is_known = self.template is not None and len(self.computed_shares) < self.template.num_steps
        return "masked" if is_known and not self.num_whole_left else "off"

    @property
    def keys(self) -> list[TemplateKey]:
        """Keys of all templates that it reads or records."""
        return [one for one in (self.key, self.shared_key) if one is not None]

    def use(self, template: Template) -> None:
        """Use the template: compute tokens that may change, and those that it does not contain."""
        self.template, self.reader = template, PageReader(template, self.mask.device)
        self.computed = self.watched = self.mask | ~template.known.to(self.mask.device)
        self.share = float(self.computed.float().mean())

    def watch(self, share: float, seed: int, num_levels: int) -> None:
        """Also compute `share` of the other tokens, the same in all steps, to check staleness."""
        assert self.computed is not None
        self.watched = with_sample(self.computed, share, seed, num_levels)
        self.share = float(self.watched.float().mean())

    def checked(self, error: torch.Tensor, num_steps: int) -> None:
        """Queue a measured error; if above `max_error`, the next `num_steps` steps compute all tokens."""
        self.awaited.append((PendingScalar(error), num_steps))

    def settle(self, *, waits: bool = False) -> None:
        """Process errors that are available by now; if `waits`, block for all of them."""
        while self.awaited and (waits or self.awaited[0][0].is_there):
            error, num_steps = self.awaited.pop(0)
            self.errors.append(error.value)
            if self.max_error is not None and error.value > self.max_error:
                self.num_whole_left = num_steps
                self.num_refreshed += num_steps

    def stepped(self, computed_share: float) -> None:
        """Count a completed step and the share of tokens it computed."""
        self.computed_shares.append(computed_share)
        self.num_whole_left = max(0, self.num_whole_left - 1)

    def report(self) -> EditReport:
        """Statistics so far; blocks for pending errors."""
        self.settle(waits=True)
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


def edit_state_of(run: DenoisingRun) -> EditState | None:
    """The editing state of a run, or None if it is no edit."""
    editing: EditState | None = run.extras.get(SLOT)
    return editing


def active_edit(run: DenoisingRun) -> EditState:
    """The editing state of a run that is an edit."""
    editing = edit_state_of(run)
    assert editing is not None
    return editing


def with_sample(computed: torch.Tensor, share: float, seed: int, num_levels: int = 1) -> torch.Tensor:
    """The computed tokens and a sample of the others, at least one if there are any; deterministic for a seed.

    Whole tokens of the coarsest grid that has others are sampled: scattered fine tokens would not get fewer on coarser
    grids.
    """
    for level in reversed(range(num_levels if share else 0)):
        grid = grids_of((computed.shape[0], computed.shape[1]), level + 1)[-1]
        others = (~token_mask(computed, grid)).flatten().nonzero().flatten()
        if len(others):
            return computed | _spread(_some(others, share, seed), grid, 2**level, computed)
    return computed


def _some(others: torch.Tensor, share: float, seed: int) -> torch.Tensor:
    count = max(1, round(share * len(others)))
    chosen = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))[:count]
    return others[chosen.to(others.device)]


def _spread(chosen: torch.Tensor, grid: tuple[int, int], scale: int, like: torch.Tensor) -> torch.Tensor:
    """Mask on the finest grid of tokens chosen on a coarse grid."""
    coarse = torch.zeros(grid[0] * grid[1], dtype=torch.bool, device=like.device)
    coarse[chosen] = True
    fine = coarse.view(grid).repeat_interleave(scale, 0).repeat_interleave(scale, 1)
    return fine[: like.shape[0], : like.shape[1]]
