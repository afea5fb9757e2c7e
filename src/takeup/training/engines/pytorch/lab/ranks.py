"""What one rank of a trial does: build its stage, run the iterations, and say what it saw."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.pipelining import Schedule1F1B
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from takeup.training.engines.pytorch.adapter import actions_of
from takeup.training.engines.pytorch.adaptive import AdaptiveSchedule
from takeup.training.engines.pytorch.lab.faults import faulty, wires_of
from takeup.training.engines.pytorch.lab.stages import (
    PacedStage,
    gradients_of,
    make_batch,
    make_module,
    reference_gradients,
)
from takeup.training.engines.pytorch.lab.trials import Trial
from takeup.training.model import Profile, Schedule

__all__ = ["Seen", "run_rank"]


@dataclass(frozen=True, slots=True)
class Seen:
    """What one rank saw: its iterations by a clock that all ranks share, and how it ended up."""

    starts_s: tuple[float, ...] = ()
    ends_s: tuple[float, ...] = ()
    gradient_error: float = 0.0
    order: str = ""
    changed_after: tuple[int, ...] = ()
    delegated: tuple[int, ...] = ()
    measured: Profile | None = None
    pauses_s: tuple[float, ...] = ()
    swaps_s: tuple[float, ...] = ()


def run_rank(trial: Trial, rank: int, store: Path) -> Seen:
    """Join the others, and train."""
    torch.set_num_threads(1)
    num_ranks, timeout = trial.truth.num_stages, timedelta(seconds=trial.timeout_s)
    joined = FileStore(str(store), num_ranks)
    dist.init_process_group("gloo", store=joined, rank=rank, world_size=num_ranks, timeout=timeout)
    module = make_module(rank)
    schedule = _schedule_of(trial, PacedStage(trial.truth.stages[rank], module, rank, num_ranks, torch.device("cpu")))
    with faulty(wires_of(trial.truth, rank)):
        seen = _train(trial, rank, module, schedule)
    dist.destroy_process_group()
    return seen


def _schedule_of(trial: Trial, stage: PacedStage) -> Any:
    count, loss = trial.truth.num_microbatches, torch.nn.functional.mse_loss
    if trial.runtime == "stock_1f1b":
        return Schedule1F1B(stage, count, loss)
    if trial.runtime == "stock":
        runtime = _PipelineScheduleRuntime([stage], count, loss_fn=loss)  # type: ignore[no-untyped-call]
        runtime._prepare_schedule_with_comms(actions_of(Schedule.from_csv(trial.order)))
        return runtime
    options: dict[str, Any] = {"planner": trial.planner, "every": trial.every, "timeout_s": trial.timeout_s}
    adaptive = AdaptiveSchedule(stage, count, loss, **options)
    if trial.order:
        adaptive.use(Schedule.from_csv(trial.order))
    return adaptive


def _train(trial: Trial, rank: int, module: torch.nn.Module, schedule: Any) -> Seen:
    starts_s, ends_s = [], []
    for iteration in range(trial.num_iterations):
        module.zero_grad()
        inputs, targets = make_batch(iteration, trial.truth.num_microbatches)
        step = _step_of(rank, trial.truth.num_stages, schedule, inputs, targets)
        dist.barrier()
        starts_s.append(time.monotonic())
        step()
        ends_s.append(time.monotonic())
    error = _error(gradients_of(module), reference_gradients(rank, trial.num_iterations - 1, trial.truth))
    return replace(_found_by(schedule), starts_s=tuple(starts_s), ends_s=tuple(ends_s), gradient_error=error)


def _found_by(schedule: Any) -> Seen:
    """What an adaptive schedule knows of itself."""
    if not isinstance(schedule, AdaptiveSchedule):
        return Seen()
    return Seen(
        order=schedule.schedule.to_csv(),
        changed_after=tuple(change.iteration for change in schedule.changes),
        delegated=tuple(sorted(schedule.delegated)),
        measured=schedule.profile,
        pauses_s=tuple(schedule.pauses_s),
        swaps_s=tuple(schedule.swaps_s),
    )


def _step_of(
    rank: int, num_ranks: int, schedule: Any, inputs: torch.Tensor, targets: torch.Tensor
) -> Callable[[], object]:
    if rank == 0:
        return partial(schedule.step, inputs)
    return partial(schedule.step, target=targets, losses=[]) if rank == num_ranks - 1 else partial(schedule.step)


def _error(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest gradient."""
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    return max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True)) / largest
