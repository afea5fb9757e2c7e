"""What is kept of an image in every step is made before the first one, and is what the scheduler would say then."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.stock import ENGINE_MARKS
from takeup.serving.diffusion.engine.sampling import SCHEDULERS, new_scheduler, set_steps
from takeup.serving.diffusion.engine.tiny import tiny
from takeup.serving.editing.masked.initial_latents import BlendingScheduler, noised

pytestmark = ENGINE_MARKS
SHAPE = (1, 4, 8, 8)


def drawn(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def stepped(scheduler: Any, prediction: torch.Tensor, timestep: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = scheduler.step(prediction, timestep, latents, return_dict=False)[0]
    return made


@pytest.mark.parametrize("skipped", [0, 2])
@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_outside_the_mask_every_step_leaves_what_the_scheduler_would_make_of_the_image(name: str, skipped: int) -> None:
    plain = new_scheduler(tiny("takeup/tiny-sdxl"), name)
    timesteps = set_steps(plain, 6, torch.device("cpu"))[skipped:]
    if hasattr(plain, "set_begin_index"):
        plain.set_begin_index(skipped)
    clean, noise = drawn(0), drawn(1)
    blended = BlendingScheduler(deepcopy(plain), timesteps, clean, noise, torch.zeros(SHAPE))
    latents = drawn(2)
    for number, timestep in enumerate(timesteps):
        stepped(plain, drawn(3), timestep, latents)
        ours = blended.step(drawn(3), timestep, latents)[0]
        is_last = number + 1 == len(timesteps)
        expected = clean if is_last else noised(plain, clean, noise, timesteps[number + 1])
        assert torch.equal(ours, expected)


def test_inside_the_mask_it_is_the_scheduler() -> None:
    plain = new_scheduler(tiny("takeup/tiny-sdxl"), "euler")
    timesteps = set_steps(plain, 4, torch.device("cpu"))
    blended = BlendingScheduler(deepcopy(plain), timesteps, drawn(0), drawn(1), torch.ones(SHAPE))

    assert torch.equal(
        blended.step(drawn(3), timesteps[0], drawn(2))[0], stepped(plain, drawn(3), timesteps[0], drawn(2))
    )
