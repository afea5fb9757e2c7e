"""First denoising step of an image-to-image run, from its strength."""

from __future__ import annotations

from takeup.errors import BadInput
from takeup.serving.engines.diffusers.runs import DenoisingRun


def skip_steps(run: DenoisingRun, strength: float) -> int:
    """Drop the first steps of the run; return their number. Call before adding noise, which reads the begin index."""
    first = _num_skipped(run, strength)
    if hasattr(run.scheduler, "set_begin_index"):
        run.scheduler.set_begin_index(first)
    run.timesteps = run.timesteps[first:]
    return first


def _num_skipped(run: DenoisingRun, strength: float) -> int:
    num_steps = run.request.num_steps
    if hasattr(run.scheduler, "scale_noise"):  # flow-matching pipelines round the other way
        return int(num_steps - num_steps * strength)
    made = min(int(num_steps * strength), num_steps)
    if made < 1:
        raise BadInput(f"a strength of {strength:g} leaves none of {num_steps} steps; give a larger one, or more steps")
    return (num_steps - made) * int(getattr(run.scheduler, "order", 1))
