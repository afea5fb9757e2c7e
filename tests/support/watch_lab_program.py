"""The program of the laboratory: `python -m support.watch_lab_program FOLDER`.

Importing PyTorch takes seconds, so it is imported once, and the ranks of each job are forked.
"""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from support.watch_lab import WatchedJob
from support.watch_lab_slowness import ExternalSlowness, SlowLinks
from takeup.training.pipelines.profile import Stage
from takeup.training.stragglers.watch.batches import Batches
from takeup.training.stragglers.watch.gloo_shutdown import keep_group_alive
from takeup.training.stragglers.watch.hook import FOLDER, install

# Training loops of a rank: small real models, real reductions and messages, mostly sleeping ---------------------------

WIDTH, ROWS, NUM_MICROBATCHES, MICROBATCHES_OF_RANK = 64, 8, 4, 10
MOST_WEIGHTS = 200
LOG_EVERY, BARRIER_EVERY, EVALUATE_EVERY = 10, 40, 50
PIECE_S = 0.004
ADAPTIVE_MICROBATCHES, NEVER = 12, 1_000_000
Step = Callable[[int], None]


def run_rank(
    job: WatchedJob, rank: int, store: Path, tell: Callable[[int], object] = lambda iteration: None
) -> dict[str, Any]:
    """Join the process group, train, and return iteration starts and results; `tell` receives each iteration."""
    torch.set_num_threads(1)
    timeout = timedelta(seconds=job.timeout_s)
    dist.init_process_group(
        "gloo", store=FileStore(str(store), job.num_ranks), rank=rank, world_size=job.num_ranks, timeout=timeout
    )
    torch.manual_seed(job.seed)
    step, parameters = LOOPS[job.kind](job, rank)
    links = SlowLinks(job, rank)
    starts_s, cpu_s = [], time.process_time()
    for iteration in range(job.num_iterations):
        starts_s.append(time.monotonic())
        links.iteration = iteration
        tell(iteration)
        step(iteration)
        if job.is_sporadic:
            _now_and_then(iteration)
    starts_s.append(time.monotonic())
    cpu_s = time.process_time() - cpu_s
    dist.barrier()
    weights = torch.cat([parameter.detach().flatten() for parameter in parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    for group in dist.distributed_c10d._world.pg_map:
        keep_group_alive(group)  # also without a watcher
    dist.destroy_process_group()
    return {"starts_s": starts_s, "result": digest, "weights": weights[:MOST_WEIGHTS].tolist(), "cpu_s": cpu_s}


def _now_and_then(iteration: int) -> None:
    """Occasional extra calls, which disturb the detection of iterations."""
    if iteration % LOG_EVERY == LOG_EVERY - 1:
        dist.broadcast(torch.zeros(3), 0)
    if iteration % BARRIER_EVERY == BARRIER_EVERY - 1:
        dist.barrier()
    if iteration % EVALUATE_EVERY == EVALUATE_EVERY - 1:
        for _ in range(3):
            dist.all_reduce(torch.zeros(7))


def _compute_s(job: WatchedJob, rank: int, iteration: int) -> float:
    """Compute time of this rank in this iteration, in seconds."""
    now = [slow for slow in job.slow if slow.first <= iteration < slow.last and rank in slow.ranks]
    return job.compute_s * max((slow.factor for slow in now if not slow.is_stopped), default=1.0)


def compute(job: WatchedJob, time_s: float) -> None:
    """Sleep; in short pieces if a rank is stopped periodically, as a stop during one long sleep costs nothing."""
    number = max(1, round(time_s / PIECE_S)) if any(slow.is_stopped for slow in job.slow) else 1
    for _ in range(number):
        time.sleep(time_s / number)


# DDP and FSDP ---------------------------------------------------------------------------------------------------------


def _model() -> torch.nn.Sequential:
    layers = (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1))


class PausedGradient(torch.autograd.Function):
    """A layer that takes time, in the forward and in the backward pass."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor, job: WatchedJob, time_s: float) -> torch.Tensor:
        """Sleep a third of the time."""
        context.job, context.time_s = job, time_s
        compute(job, time_s / 3)
        return inputs.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Sleep the rest of it."""
        compute(context.job, 2 * context.time_s / 3)
        return gradient, None, None


def _data_parallel(job: WatchedJob, rank: int, model: Any) -> tuple[Step, Callable[[], Iterator[Any]]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(job.seed + rank)

    def step(iteration: int) -> None:
        inputs = torch.randn(ROWS, WIDTH, generator=generator, requires_grad=True)
        optimizer.zero_grad()
        loss = model(PausedGradient.apply(inputs, job, 0.0)).square().mean()  # type: ignore[no-untyped-call]
        loss = PausedGradient.apply(loss, job, _compute_s(job, rank, iteration))  # type: ignore[no-untyped-call]
        loss.backward()
        dist.all_reduce(loss.detach().clone())
        optimizer.step()

    return step, model.parameters


def _ddp(job: WatchedJob, rank: int) -> tuple[Step, Callable[[], Iterator[Any]]]:
    model = torch.nn.parallel.DistributedDataParallel(_model(), bucket_cap_mb=0.02)
    return _data_parallel(job, rank, model)


def _batches(job: WatchedJob, rank: int) -> tuple[Step, Callable[[], Iterator[Any]]]:
    """DDP over a batch of the whole job, whose micro-batches are distributed by `Batches`."""
    model = torch.nn.parallel.DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    number = MICROBATCHES_OF_RANK * job.num_ranks
    share = Batches(model, number)

    def step(iteration: int) -> None:
        generator = torch.Generator().manual_seed(job.seed + iteration)
        optimizer.zero_grad()
        for inputs in share.of(torch.randn(number * ROWS, WIDTH, generator=generator)):
            compute(job, _compute_s(job, rank, iteration) / MICROBATCHES_OF_RANK)
            torch.autograd.backward(model(inputs).square().mean() * share.weight)
        optimizer.step()

    return step, model.parameters


def _fsdp(job: WatchedJob, rank: int) -> tuple[Step, Callable[[], Iterator[Any]]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (job.num_ranks,))
    model = _model()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    step, _ = _data_parallel(job, rank, model)
    return step, lambda: (each.to_local() for each in model.parameters())  # type: ignore[attr-defined]


# Pipelines ------------------------------------------------------------------------------------------------------------


def _pipeline(job: WatchedJob, rank: int) -> tuple[Step, Callable[[], Iterator[Any]]]:
    return _stages(job, rank, list(range(job.num_ranks)), None)


def _grid(job: WatchedJob, rank: int) -> tuple[Step, Callable[[], Iterator[Any]]]:
    """Two stages; rank 2 n + s is stage s of pipeline n."""
    stages = [dist.new_group([2 * n + s for n in range(job.num_ranks // 2)]) for s in range(2)]
    pipelines = [dist.new_group([2 * n, 2 * n + 1]) for n in range(job.num_ranks // 2)]
    first = rank - rank % 2
    step, parameters = _stages(job, rank, [first, first + 1], pipelines[rank // 2])

    def with_reduction(iteration: int) -> None:
        step(iteration)
        for parameter in parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=stages[rank % 2])

    return with_reduction, parameters


def _stages(job: WatchedJob, rank: int, ranks: list[int], group: Any) -> tuple[Step, Callable[[], Iterator[Any]]]:
    """One forward and one backward per micro-batch, over plain messages."""
    place = ranks.index(rank)
    before, after = ([*ranks, -1][place - 1] if place else -1), ([*ranks, -1][place + 1])
    layer = torch.nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)

    def step(iteration: int) -> None:
        optimizer.zero_grad()
        pace_s = _compute_s(job, rank, iteration) / NUM_MICROBATCHES
        held: list[tuple[torch.Tensor, torch.Tensor]] = []
        sends: list[Any] = []
        for _ in range(NUM_MICROBATCHES):
            inputs = torch.ones(job.num_rows, WIDTH, requires_grad=True)
            if before >= 0:
                with torch.no_grad():
                    dist.recv(inputs, before, group=group)
            compute(job, pace_s / 3)
            outputs = layer(inputs)
            held.append((inputs, outputs))
            if after >= 0:
                sends.append(dist.isend(outputs.detach(), after, group=group))
        for inputs, outputs in held:
            gradient = torch.ones(job.num_rows, WIDTH)
            if after >= 0:
                dist.recv(gradient, after, group=group)
            compute(job, 2 * pace_s / 3)
            torch.autograd.backward(outputs, gradient)
            if before >= 0 and inputs.grad is not None:
                sends.append(dist.isend(inputs.grad, before, group=group))
        for work in sends:
            work.wait()
        dist.all_reduce(torch.stack([each.grad.norm() for each in layer.parameters() if each.grad is not None]))
        optimizer.step()

    return step, layer.parameters


def _adaptive(job: WatchedJob, rank: int) -> tuple[Step, Callable[[], Iterator[Any]]]:
    """A small transformer in stages, with a schedule that is replanned only on request."""
    from support.pipeline_lab.program import PacedStage, make_batch, make_module
    from takeup.training.pipelines.engine.adaptive import AdaptiveSchedule

    operation_s = job.compute_s / (3 * ADAPTIVE_MICROBATCHES)
    module, last = make_module(rank), job.num_ranks - 1
    stage = PacedStage(Stage(*(operation_s,) * 3), module, rank, job.num_ranks, torch.device("cpu"))
    schedule = AdaptiveSchedule(stage, ADAPTIVE_MICROBATCHES, torch.nn.functional.mse_loss, every=NEVER)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def step(iteration: int) -> None:
        inputs, targets = make_batch(iteration, ADAPTIVE_MICROBATCHES, job.num_rows)
        optimizer.zero_grad()
        schedule.step(*([inputs] if rank == 0 else []), **({"target": targets, "losses": []} if rank == last else {}))
        optimizer.step()

    return step, module.parameters


LOOPS: dict[str, Callable[[WatchedJob, int], tuple[Step, Callable[[], Iterator[Any]]]]] = {
    "ddp": _ddp,
    "batches": _batches,
    "fsdp": _fsdp,
    "pipeline": _pipeline,
    "grid": _grid,
    "adaptive": _adaptive,
}


LOOK_EVERY_S = 0.02
NEEDED = {"fsdp": "torch.distributed.fsdp", "adaptive": "takeup.training.pipelines.engine.adaptive"}
GRACE_S = 5.0  # for the other ranks, after one has failed


def main(folder: Path) -> None:
    """Run all jobs; every rank writes its results to a file."""
    texts = (folder / "jobs").read_text("utf-8").splitlines()
    for module in ("torch._dynamo", *(NEEDED[kind] for kind in NEEDED if any(f'"{kind}"' in text for text in texts))):
        import_module(module)  # once for all ranks
    gc.freeze()  # else every rank would scan all imported objects in the middle of an iteration
    for number, text in enumerate(texts):
        place = folder / str(number)
        place.mkdir()
        _run(WatchedJob.from_json(text), place)
        (place / "over").touch()


def _run(job: WatchedJob, place: Path) -> None:
    fork, outside = multiprocessing.get_context("fork"), ExternalSlowness(job)
    iteration = fork.Value("q", 0, lock=False)
    ranks = [
        fork.Process(target=_rank_process, args=(job, rank, place, outside, iteration)) for rank in range(job.num_ranks)
    ]
    for rank in ranks:
        rank.start()
    until_s = time.monotonic() + job.timeout_s
    while any(rank.is_alive() for rank in ranks) and time.monotonic() < until_s:
        time.sleep(LOOK_EVERY_S)
        outside.at(iteration.value, [rank.pid or 0 for rank in ranks])
        if any(rank.exitcode for rank in ranks):
            until_s = min(until_s, time.monotonic() + GRACE_S)
    outside.close()
    for rank in ranks:
        rank.kill()
        rank.join()


def _rank_process(job: WatchedJob, rank: int, place: Path, outside: ExternalSlowness, iteration: Any) -> None:
    """Run one rank in this process; rank 0 publishes the current iteration."""
    outside.join(rank)
    if job.is_watched:
        os.environ[FOLDER] = str(place)
        install(place)
    seen = run_rank(job, rank, place / "store", partial(setattr, iteration, "value") if rank == 0 else lambda _: None)
    (place / f"{rank}.json").write_text(json.dumps(seen), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
