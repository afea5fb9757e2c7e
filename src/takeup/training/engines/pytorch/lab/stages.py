"""A small transformer in stages, whose operations have prescribed durations.

The computation is real but tiny, so that gradients can be compared; for the rest of its duration an operation sleeps.
Four ranks then need only one core, and their wall-clock times are still real.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage

from takeup.training.model.pipeline import Profile, Stage

WIDTH, NUM_HEADS, LENGTH = 16, 2, 4
BULK_LENGTH = 512  # for bandwidth-limited links
BULK_BYTES = BULK_LENGTH * WIDTH * 8
SEED = 5


class _Layer(torch.nn.Module):
    """A transformer layer on the first tokens; the others pass through unchanged and only enlarge messages."""

    def __init__(self) -> None:
        super().__init__()
        self._layer = torch.nn.TransformerEncoderLayer(
            WIDTH, NUM_HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, dtype=torch.float64
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Apply the layer to the first `LENGTH` tokens and pass the others through."""
        if tokens.shape[1] == LENGTH:
            return self._layer(tokens)  # type: ignore[no-any-return]
        return torch.cat([self._layer(tokens[:, :LENGTH]), tokens[:, LENGTH:]], dim=1)


def make_module(stage: int) -> torch.nn.Module:
    """The layer of a stage, the same in every process; in double precision, so that rounding does not hide errors."""
    torch.manual_seed(SEED + stage)
    return _Layer()


def make_batch(iteration: int, num_microbatches: int, length: int = LENGTH) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of an iteration, one row for each micro-batch."""
    generator = torch.Generator().manual_seed(SEED + 1000 * iteration)
    shape = (num_microbatches, length, WIDTH)
    inputs, targets = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return inputs, targets


def gradients_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """Gradients of the module's parameters, where present."""
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def reference_gradients(stage: int, iteration: int, truth: Profile, length: int = LENGTH) -> list[torch.Tensor]:
    """Gradients of one stage, computed in a single process without a pipeline."""
    modules = [make_module(number) for number in range(truth.num_stages)]
    inputs, targets = make_batch(iteration, truth.num_microbatches, length)
    loss = torch.nn.functional.mse_loss(torch.nn.Sequential(*modules)(inputs), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    return gradients_of(modules[stage])


class PacedStage(PipelineStage):  # type: ignore[misc, unused-ignore]
    """A stage whose operations take the given times, or their compute time if that is longer."""

    def __init__(self, pace: Stage, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pace = pace

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Run F with its prescribed duration."""
        return _paced(self._pace.forward_s, partial(super().forward_one_chunk, *arguments, **named))

    def backward_one_chunk(self, *arguments: Any, full_backward: bool = True, **named: Any) -> Any:
        """Run I with its prescribed duration, or B with that of I plus W."""
        pace_s = self._pace.backward_s + (self._pace.weight_s if full_backward else 0.0)
        named["full_backward"] = full_backward
        return _paced(pace_s, partial(super().backward_one_chunk, *arguments, **named))

    def backward_weight_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Run W with its prescribed duration."""
        return _paced(self._pace.weight_s, partial(super().backward_weight_one_chunk, *arguments, **named))


def _paced(pace_s: float, compute: Callable[[], Any]) -> Any:
    start_s = time.perf_counter()
    result = compute()
    time.sleep(max(0.0, pace_s - (time.perf_counter() - start_s)))
    return result
