"""The ranks of a tiny pipeline over Gloo, as a program: `pipeline_ranks.py FOLDER SCENARIO,... ...`.

Scenarios that are joined by a comma are one job; its ranks write what they found to FOLDER/SCENARIO,.../RANK.json. A
name that ends with .py is a program that all ranks run, as with torchrun.

Importing PyTorch takes seconds, so it is imported once, and the ranks are forks.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.pipelining import PipelineStage, schedules

from takeup.errors import TakeupError
from takeup.training.engines.pytorch import AdaptiveSchedule
from takeup.training.model import Link, Profile
from takeup.training.policies import find_policy

NUM_RANKS, NUM_MICROBATCHES, WIDTH = 4, 8, 6
SLOW_LINK, DELAY_S, OP_S = {2, 3}, 0.06, 0.004
ORDERS = ("one_f_one_b", "gpipe", "zb_h1", "zb_h2", "adaptra", "adaptra_as_published")


def make_modules() -> list[torch.nn.Module]:
    """The same stages in every process."""
    torch.manual_seed(5)
    return [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)).double()
        for _ in range(NUM_RANKS)
    ]


def make_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of an iteration."""
    generator = torch.Generator().manual_seed(100 + step)
    shape = (2 * NUM_MICROBATCHES, WIDTH)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))  # type: ignore[return-value]


def reference(rank: int, step: int) -> list[torch.Tensor]:
    """Gradients of the stage of this rank, computed by one process without any pipeline."""
    modules = make_modules()
    inputs, targets = make_batch(step)
    torch.nn.functional.mse_loss(torch.nn.Sequential(*modules)(inputs), targets).backward()  # type: ignore[no-untyped-call]
    return [parameter.grad for parameter in modules[rank].parameters() if parameter.grad is not None]


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


class Late:
    """A send that begins later; messages keep their order."""

    def __init__(self) -> None:
        self._works: SimpleQueue[Any] = SimpleQueue()

    def wait(self) -> None:
        self._works.get().wait()

    def send(self, due_s: float, begin: Callable[[], list[Any]]) -> None:
        time.sleep(max(0.0, due_s - time.monotonic()))
        for work in begin():
            self._works.put(work)


def slow_down(rank: int) -> None:
    """From now on messages over the slow link take longer, in both directions, without keeping anybody waiting."""
    plain, line = schedules._batch_p2p, SimpleQueue[Any]()

    def carry() -> None:
        while True:
            late, due_s, begin = line.get()
            late.send(due_s, begin)

    def batch(ops: list[Any], desc: str | None = None) -> list[Any]:
        if not ops or ops[0].op is not dist.isend or {rank, ops[0].peer} != SLOW_LINK:
            return plain(ops, desc)
        late = Late()
        line.put((late, time.monotonic() + DELAY_S, partial(plain, ops, desc)))
        return [late]

    Thread(target=carry, daemon=True).start()
    setattr(schedules, "_batch_p2p", batch)  # noqa: B010


def error_of(rank: int, step: int, module: torch.nn.Module, pipeline: AdaptiveSchedule) -> float:
    """Run one iteration; the largest difference of a gradient from the reference."""
    module.zero_grad()
    inputs, targets = make_batch(step)
    losses: list[torch.Tensor] = []
    if rank == 0:
        pipeline.step(inputs)
    elif rank == NUM_RANKS - 1:
        pipeline.step(target=targets, losses=losses)
    else:
        pipeline.step()
    found = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    return max(float((a - b).abs().max()) for a, b in zip(found, reference(rank, step), strict=True))


def make_pipeline(rank: int, module: torch.nn.Module, stage: type = PipelineStage, **options: Any) -> AdaptiveSchedule:
    made = stage(module, rank, NUM_RANKS, torch.device("cpu"))
    return AdaptiveSchedule(made, NUM_MICROBATCHES, torch.nn.functional.mse_loss, **options)


def swaps(rank: int) -> dict[str, Any]:
    """Every order after the other, on the same pipeline."""
    module = make_modules()[rank]
    pipeline = make_pipeline(rank, module, every=1000)
    profile = Profile.uniform(NUM_RANKS, NUM_MICROBATCHES, 0.01, {1: Link(0.03)})
    errors = {"start": error_of(rank, 0, module, pipeline)}
    for step, name in enumerate(ORDERS, 1):
        pipeline.use(find_policy(name).plan(profile).schedule)
        errors[name] = error_of(rank, step, module, pipeline)
    smallest = min(float(gradient.abs().max()) for gradient in reference(rank, 0))
    return {"errors": errors, "smallest": smallest, "version": pipeline.version, "changes": len(pipeline.changes)}


def unsplit(rank: int) -> dict[str, Any]:
    """Modules whose backward is one operation; the pipeline looks for a better order after every iteration."""
    module = make_modules()[rank]
    pipeline = make_pipeline(rank, module, every=1, split=False, max_live=5)
    errors = [error_of(rank, step, module, pipeline) for step in range(3)]
    return {"errors": errors, "version": pipeline.version, "order": pipeline.schedule.to_csv()}


def adapts(rank: int) -> dict[str, Any]:
    """A link is slow, and nobody says so."""
    slow_down(rank)
    module = make_modules()[rank]
    pipeline = make_pipeline(rank, module, SleepingStage, every=2)
    before = pipeline.schedule.to_csv()
    errors = [error_of(rank, step, module, pipeline) for step in range(8)]
    return {
        "errors": errors,
        "version": pipeline.version,
        "changes": [change.iteration for change in pipeline.changes],
        "before": before,
        "order": pipeline.schedule.to_csv(),
        "delays_s": [link.delay_s for link in pipeline.profile.links],
        "forwards_s": [stage.forward_s for stage in pipeline.profile.stages],
    }


def disagrees(rank: int) -> dict[str, Any]:
    """One rank claims to have changed its schedule, to the one that all follow."""
    module = make_modules()[rank]
    pipeline = make_pipeline(rank, module, every=2)
    error_of(rank, 0, module, pipeline)
    if rank == 2:
        pipeline.use(pipeline.schedule)
    try:
        error_of(rank, 1, module, pipeline)
    except TakeupError as error:
        return {"refused": str(error)}
    return {"refused": ""}


def fails(rank: int) -> dict[str, Any]:
    """One rank breaks in the middle of an iteration."""
    module = make_modules()[rank]
    pipeline = make_pipeline(rank, module, every=2)
    error_of(rank, 0, module, pipeline)
    if rank == 2:
        module.register_forward_pre_hook(lambda *_: 1 / 0)
    return {"error": error_of(rank, 1, module, pipeline)}


SCENARIOS = {each.__name__: each for each in (swaps, unsplit, adapts, disagrees, fails)}


def run_rank(rank: int, folder: Path, scenarios: list[str]) -> None:
    """Join the others, run the scenarios one after the other, and write what came of them."""
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), NUM_RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS, timeout=timedelta(seconds=20))
    results = {name: SCENARIOS[name](rank) for name in scenarios}
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def run_program(rank: int, program: Path) -> None:
    """What a rank does that torchrun starts; the store is a file, since a port might be taken."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(NUM_RANKS)}
    join = partial(dist.init_process_group, store=FileStore(str(program.with_suffix(".store")), NUM_RANKS))
    setattr(dist, "init_process_group", partial(join, rank=rank, world_size=NUM_RANKS))  # noqa: B010
    with program.with_suffix(f".{rank}.out").open("w") as out, redirect_stdout(out):
        runpy.run_path(str(program))


def run_job(folder: Path, job: str) -> None:
    """Start the ranks of some scenarios or of a program, wait for them, and write down how they ended."""
    fork = multiprocessing.get_context("fork")
    if job.endswith(".py"):
        ranks = [fork.Process(target=run_program, args=(rank, Path(job))) for rank in range(NUM_RANKS)]
    else:
        ranks = [fork.Process(target=run_rank, args=(rank, folder, job.split(","))) for rank in range(NUM_RANKS)]
    folder.mkdir(exist_ok=True)
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    (folder / "codes.json").write_text(json.dumps([rank.exitcode for rank in ranks]))


def main(folder: Path, jobs: list[str]) -> None:
    """Run one job after the other, each in a folder of its name."""
    find_policy("adaptra").plan(Profile.uniform(NUM_RANKS, NUM_MICROBATCHES, 0.01))  # compiled once for all
    for job in jobs:
        run_job(folder / Path(job).stem, job)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
