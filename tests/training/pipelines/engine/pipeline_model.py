"""The tiny pipeline that real ranks train in tests: its stages, its data, and its gradients by a single process."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage

NUM_RANKS, NUM_MICROBATCHES, WIDTH, OP_S = 4, 8, 6, 0.004


def make_modules(count: int = NUM_RANKS) -> list[torch.nn.Module]:
    """The same stages in every process."""
    torch.manual_seed(5)
    return [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)).double()
        for _ in range(count)
    ]


def make_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of an iteration."""
    generator = torch.Generator().manual_seed(100 + step)
    shape = (2 * NUM_MICROBATCHES, WIDTH)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))  # type: ignore[return-value]


def reference(stage: int, step: int, num_stages: int = NUM_RANKS) -> list[torch.Tensor]:
    """Gradients of a stage, computed by one process without any pipeline."""
    modules = make_modules(num_stages)
    inputs, targets = make_batch(step)
    torch.nn.functional.mse_loss(torch.nn.Sequential(*modules)(inputs), targets).backward()  # type: ignore[no-untyped-call]
    return gradients_of(modules[stage])


def gradients_of(module: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def largest_difference(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True))


class SleepingStage(PipelineStage):  # type: ignore[misc, unused-ignore]
    """Operations that take a while without needing a core."""

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        time.sleep(OP_S)
        return super().forward_one_chunk(*arguments, **named)

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        time.sleep(OP_S)
        return super().backward_one_chunk(*arguments, **named)

    def backward_weight_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        time.sleep(OP_S)
        return super().backward_weight_one_chunk(*arguments, **named)
