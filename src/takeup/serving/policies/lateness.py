"""How many steps an image may be denoised without its LoRAs while they are loaded: the bound K.

"Katz: Efficient Workflow Serving for Diffusion Models with Many Adapters", USENIX ATC 2025, section 6. The first steps
determine the layout, later ones the style: with and without a LoRA the latents stay similar for a while and then
diverge. K is the last step until which they are similar. It is measured for a base model and a LoRA on runs of full
length; for a run that starts later, or is short, the bound is smaller.
"""

from __future__ import annotations

from collections.abc import Sequence

from takeup.errors import BadInput

FEW_STEPS = 8
"""Models distilled to so few steps (LCM, Turbo, schnell) decide the style in the first one."""


USUAL_BOUND, PROFILED_STEPS = 10, 50
"""The bound K that Katz was evaluated with; a measured one for a LoRA is better."""


def measured_bound(similarities: Sequence[float], least: float = 0.99) -> int:
    """K from the cosine similarity of the latents with and without the LoRA after each step.

    It is the number of steps after which all similarities so far are at least `least`.
    """
    if not 0 < least <= 1:
        raise BadInput(f"the least similarity is {least:g}; give a number above 0, at most 1")
    for step, similarity in enumerate(similarities):
        if not similarity >= least:  # also true for NaN
            return step
    return len(similarities)


def bound_for(bound: int, profiled_steps: int, num_steps: int, strength: float = 1.0) -> int:
    """K for a run of `num_steps`, from the `bound` of one of `profiled_steps`.

    `strength` below 1 (image-to-image) skips the first steps, and they are subtracted from the bound. At least one
    step remains after K, because a LoRA that arrives after the last step has no effect.
    """
    if not 0 <= strength <= 1:
        raise BadInput(f"the strength is {strength:g}; give a share from 0 to 1")
    if num_steps <= FEW_STEPS:
        return 0
    scaled = bound * num_steps // max(1, profiled_steps)
    skipped = num_steps - int(num_steps * strength)
    return max(0, min(scaled - skipped, num_steps - skipped - 1))


def usual_bound(num_steps: int, strength: float = 1.0) -> int:
    """The default K for a LoRA without a measured bound."""
    return bound_for(USUAL_BOUND, PROFILED_STEPS, num_steps, strength)
