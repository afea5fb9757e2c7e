"""Similarity of latents with and without LoRAs after each step, from which the bound K of a LoRA is derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import torch

from takeup.errors import BadInput
from takeup.serving.diffusion.addons.lora.targets import layers_of
from takeup.serving.diffusion.addons.lora.weights import LoraSet, PatchedWeights
from takeup.serving.diffusion.contract import Family
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.model import Request


def measure_similarities(family: Family, loras: LoraSet, requests: Sequence[Request]) -> list[float]:
    """The cosine of the latents after each step, mean over `requests`, which all have the same number of steps.

    Requires exclusive use of the pipeline: its weights are patched temporarily, text encoders included.
    """
    if not requests or len({one.num_steps for one in requests}) > 1:
        raise BadInput("latents are compared step by step; give requests, all with the same number of steps")
    plain = [replace(one, loras=()) for one in requests]
    without = [_latents(family, one) for one in plain]
    with PatchedWeights(layers_of(family.pipeline)).using(loras):
        patched = [_latents(family, one) for one in plain]
    pairs = [[_cosine(*two) for two in zip(*one, strict=True)] for one in zip(without, patched, strict=True)]
    return [fmean(step) for step in zip(*pairs, strict=True)]


def _latents(family: Family, request: Request) -> list[torch.Tensor]:
    """The latents after every step."""
    engine = StepEngine(family.pipeline, deterministic=True)
    ticket = engine.submit(request)
    latents = []
    while not ticket.is_over:
        engine.advance()
        latents.append(ticket.run.latents)
    ticket.result()
    return latents


def _cosine(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(first.flatten().double(), second.flatten().double(), dim=0))
