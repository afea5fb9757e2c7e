"""State of a running edit: tokens to compute, the template it reads or records, and its estimated error."""

from dataclasses import dataclass, field
from itertools import count

import torch

from takeup.serving.diffusion.contract import DenoisingRun
from takeup.serving.editing.contract import EditReport
from takeup.serving.editing.masked.tokens import Mode
from takeup.serving.editing.templates.template import PageReader, Template, TemplateKey, TemplateRecorder

# Errors: a masked step is now and then computed whole too, and what was predicted inside the mask is compared ---------
#
# How it works. The difference of the two predictions, relative to the whole one, is measured before the step is
# accepted; the whole prediction is then used. `PIXEL_ERROR` makes an upper estimate of the final difference of pixels
# of it: factor and power, fitted to edits with the models of `takeup.scenes` such that 92 % of the true errors lie
# below. `benchmarks/serving/scene_quality.py` fits them, and tells the coverage on other images, masks and prompts.

PIXEL_ERROR: dict[str, tuple[float, float]] = {
    "UNet2DConditionModel": (0.09, 0.54),
    "FluxTransformer2DModel": (0.047, 0.54),
}
USUAL_PIXEL_ERROR = (0.09, 0.54)


@dataclass(frozen=True, slots=True)
class ErrorChecks:
    """How many steps are checked, evenly spread: `count`, or `bounded` with the first one if there is a `max_error`."""

    count: int = 1
    bounded: int = 4

    def steps(self, num_steps: int, is_bounded: bool) -> frozenset[int]:
        """The steps that are checked."""
        if is_bounded:
            return frozenset(num_steps * one // self.bounded for one in range(self.bounded))
        return frozenset(num_steps * (2 * one + 1) // (2 * self.count) for one in range(self.count))


def relative_error(masked: torch.Tensor, whole: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """L2 norm of the difference inside the mask, relative to that of the whole prediction there."""
    inside = whole.float() * mask
    gone: torch.Tensor = torch.linalg.vector_norm(masked.float() * mask - inside)
    size: torch.Tensor = torch.linalg.vector_norm(inside).clamp(min=1e-10)
    return gone / size


SLOT = "edit"


@dataclass(slots=True, eq=False)
class EditState:
    """`mask`: tokens of the finest grid that may change. Without a key nothing is cached: everything is computed.

    `pixels` has the mask of the latents, and the factor and the power of `PIXEL_ERROR`. `found` is the template
    looked up when the edit was prepared.
    """

    key: TemplateKey | None
    mask: torch.Tensor
    max_error: float | None = None
    found: Template | None = None
    template: Template | None = None
    reader: PageReader | None = None
    recorder: TemplateRecorder | None = None
    pixels: tuple[torch.Tensor, tuple[float, float]] | None = None
    computed: torch.Tensor | None = None
    share: float = 1.0
    checks: frozenset[int] = frozenset()
    errors: list[torch.Tensor] = field(default_factory=list)
    tried: torch.Tensor | None = None
    """The masked prediction of a step that is being checked."""
    computed_shares: list[float] = field(default_factory=list)
    extra_share: float = 0.0
    is_whole: bool = False
    was_masked: bool = False
    number: int = field(default_factory=count().__next__)
    """Its own, never that of another edit."""

    @property
    def mode(self) -> Mode:
        """Mode of the next step: record, masked, or off (all tokens)."""
        if self.recorder is not None and self.recorder.num_pages == len(self.computed_shares):
            return "record"
        is_known = self.template is not None and len(self.computed_shares) < self.template.num_steps
        return "masked" if is_known and self.tried is None and not self.is_whole else "off"

    def use(self, template: Template, checks: ErrorChecks) -> None:
        """Use the template: compute tokens that may change, and those that it does not contain."""
        self.template, self.reader = template, PageReader(template, self.mask.device)
        self.computed = self.mask | ~template.known.to(self.mask.device)
        self.share = float(self.computed.float().mean())
        self.checks = checks.steps(template.num_steps, self.max_error is not None)

    def accepts(self, prediction: torch.Tensor) -> bool:
        """Whether the step is made with this prediction; a masked one that is checked is computed whole first."""
        if self.tried is not None:
            assert self.pixels is not None
            self._compared(relative_error(self.tried, prediction, self.pixels[0]))
            self.tried = None
        elif self.was_masked and len(self.computed_shares) - 1 in self.checks:
            self.tried = prediction
            self.extra_share += self.computed_shares.pop()
            return False
        return True

    def _compared(self, error: torch.Tensor) -> None:
        """Keep the error, or compute everything from here on if it would break the bound."""
        if self.max_error is not None and self._estimate(float(error)) > self.max_error:
            self.is_whole = True
        else:
            self.errors.append(error)

    def _estimate(self, error: float) -> float:
        assert self.pixels is not None
        factor, power = self.pixels[1]
        return float(min(1.0, factor * error**power))

    def stepped(self, computed_share: float, was_masked: bool) -> None:
        """Count a call and the share of tokens it computed."""
        self.computed_shares.append(computed_share)
        self.was_masked = was_masked

    def report(self) -> EditReport:
        """Statistics so far."""
        shares = self.computed_shares or [1.0]
        return EditReport(
            from_template=self.template is not None,
            mask_share=float(self.mask.float().mean()),
            computed_share=(sum(shares) + self.extra_share) / len(shares),
            error=self._error(),
            packing_error=self.template.error if self.template is not None else 0.0,
            num_whole_steps=sum(share == 1.0 for share in shares),
        )

    def _error(self) -> float | None:
        """The estimate of the worst check; 0 if the bound made every step compute all tokens."""
        if self.errors:
            return self._estimate(max(float(error) for error in self.errors))
        return 0.0 if self.is_whole and all(share == 1.0 for share in self.computed_shares) else None


def edit_state_of(run: DenoisingRun) -> EditState | None:
    """The editing state of a run, or None if it is no edit."""
    editing: EditState | None = run.extras.get(SLOT)
    return editing


def active_edit(run: DenoisingRun) -> EditState:
    """The editing state of a run that is an edit."""
    editing = edit_state_of(run)
    assert editing is not None
    return editing
