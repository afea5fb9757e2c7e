"""State of a running edit: tokens to compute, the template it reads or records, and the measured staleness."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from takeup.serving.diffusion.contract import DenoisingRun
from takeup.serving.editing.contract import EditReport
from takeup.serving.editing.masked.tokens import MAP, NORM, Grid, Mode, Page, grids_of, token_mask
from takeup.serving.editing.templates.template import PageReader, Template, TemplateKey, TemplateRecorder

# A scalar still being computed on the device: reading it does not wait for work enqueued after it ---------------------

cuda: Any = torch.cuda  # torch.cuda functions are not annotated


class PendingScalar:
    """Copies a scalar to pinned host memory asynchronously; an event marks completion."""

    def __init__(self, number: torch.Tensor) -> None:
        self._event: Any = cuda.Event() if number.is_cuda else None
        self._number = number
        if self._event is not None:
            self._number = torch.empty((), dtype=number.dtype, pin_memory=True)
            self._number.copy_(number, non_blocking=True)
            self._event.record()

    @property
    def is_there(self) -> bool:
        return self._event is None or bool(self._event.query())

    @property
    def value(self) -> float:
        """The number; blocks until it has been copied."""
        if self._event is not None:
            self._event.synchronize()
        return float(self._number)


# Staleness of cached activations: some tokens outside the mask are computed too, and compared with the cache ----------

CheckedTokens = Mapping[int, torch.Tensor]
"""Tokens that are looked at, by the number of tokens of their grid: numbers in the flattened batch."""


def checked_tokens(computed: torch.Tensor, watched: torch.Tensor, num_levels: int, rows: slice) -> CheckedTokens:
    """Per grid, tokens of an edit in these rows that are `watched` and that the edit itself does not need."""
    size = (computed.shape[0], computed.shape[1])
    return {grid[0] * grid[1]: _of_grid(computed, watched, grid, rows) for grid in grids_of(size, num_levels)}


def _of_grid(computed: torch.Tensor, watched: torch.Tensor, grid: Grid, rows: slice) -> torch.Tensor:
    only = token_mask(watched, grid) & ~token_mask(computed, grid)
    tokens = only.flatten().nonzero().flatten()
    first = torch.arange(rows.start, rows.stop, device=tokens.device)[:, None] * (grid[0] * grid[1])
    return (first + tokens).flatten()


def cached_values(kept: Page, watched: CheckedTokens, num_front: int = 0) -> torch.Tensor:
    """Cached activations of these tokens: before a call those of the template, after it the recomputed ones.

    Tensors longer than a grid have `num_front` tokens before those of the image.
    """
    found = []
    for name, one in kept.items():
        if not name.endswith((MAP, NORM)):
            image = one if one.shape[1] in watched else one[:, num_front:]
            found.append(image.flatten(2).flatten(0, 1)[watched[image.shape[1]]].flatten())
    return torch.cat(found)


def stale_error(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """L2 norm of the difference, relative to the L2 norm of the cached values."""
    gone, size = (torch.linalg.vector_norm(one.float()) for one in (after.float() - before.float(), before))
    error: torch.Tensor = gone / size.clamp(min=1e-10)
    return error


SLOT = "edit"


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
