"""Tiny training jobs of four ranks in common forms of parallelism: `python step_jobs.py FOLDER NUM_STEPS KIND...`.

PyTorch is imported once and the ranks of each job are forked. A job of kind K is watched into FOLDER/K.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from takeup.training.stragglers.watch.hook import FOLDER, install

NUM_RANKS, WIDTH, NUM_LAYERS = 4, 16, 4
Step = Callable[[], object]


def layers(number: int = NUM_LAYERS) -> nn.Sequential:
    """Equal layers, so that buckets, shards and messages are of one size."""
    torch.manual_seed(1)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(number)])


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def trained(model: Any, num_microbatches: int = 1) -> Step:
    """A step of a model that needs no more than forward, backward and an optimizer."""
    optimizer = sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(num_microbatches):
            torch.autograd.backward(model(torch.ones(4, WIDTH)).sum())
        optimizer.step()

    return step


def ddp() -> Step:
    """Equal buckets, one reduction for each layer."""
    return trained(nn.parallel.DistributedDataParallel(layers(), bucket_cap_mb=WIDTH * (WIDTH + 1) * 4 / 2**20))


def accumulation() -> Step:
    """DDP that reduces once in three micro-batches."""
    model = nn.parallel.DistributedDataParallel(layers())
    optimizer = sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        with model.no_sync():
            for _ in range(2):
                torch.autograd.backward(model(torch.ones(4, WIDTH)).sum())
        torch.autograd.backward(model(torch.ones(4, WIDTH)).sum())
        optimizer.step()

    return step


def sharded(mesh: Any, *, reshard: bool | None = None) -> nn.Module:
    model = layers()
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh)
    return model


def fsdp2() -> Step:
    """A gather and a scatter for each of some equal layers."""
    return trained(sharded(init_device_mesh("cpu", (NUM_RANKS,))))


def fsdp2_accumulation() -> Step:
    """The same with three micro-batches, each of which gathers and scatters."""
    return trained(sharded(init_device_mesh("cpu", (NUM_RANKS,))), 3)


def hsdp() -> Step:
    """Shards within two ranks, replicas across."""
    return trained(sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))))


def zero3() -> Step:
    """Gathers of each layer in forward and backward and scatters of gradients by plain calls, as ZeRO-3 makes them."""
    model = layers()
    optimizer = sgd(model)
    shards = [torch.ones(WIDTH * WIDTH // NUM_RANKS) for _ in model]

    def step() -> None:
        optimizer.zero_grad()
        for shard in [*shards, *reversed(shards)]:
            dist.all_gather_into_tensor(torch.empty(WIDTH * WIDTH), shard)
        torch.autograd.backward(model(torch.ones(4, WIDTH)).sum())
        for shard in shards:
            dist.reduce_scatter_tensor(shard, torch.ones(WIDTH * WIDTH))
        optimizer.step()

    return step


def tensor_parallel() -> Step:
    """DTensor: two reductions for each block, reached through functional collectives."""
    mesh = init_device_mesh("cpu", (NUM_RANKS,))
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH)) for _ in range(3)])
    for block in model:
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return trained(model)


def functional_calls() -> Step:
    """Gradients reduced by functional collectives."""
    model = layers()
    optimizer, group = sgd(model), dist.group.WORLD
    assert group is not None

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(torch.ones(4, WIDTH)).sum())
        for each in model.parameters():
            assert each.grad is not None
            each.grad = functional.all_reduce(each.grad, "sum", group) / NUM_RANKS
        optimizer.step()

    return step


def staged(schedule_of: Any, num_chunks: int = 1) -> Step:
    rank, number = dist.get_rank(), NUM_RANKS * num_chunks
    models = [layers(1) for _ in range(num_chunks)]
    stages = [
        PipelineStage(model, rank + NUM_RANKS * chunk, number, torch.device("cpu"))
        for chunk, model in enumerate(models)
    ]
    schedule = schedule_of(stages if num_chunks > 1 else stages[0], 4, loss_fn=nn.functional.mse_loss)
    optimizer, data = sgd(nn.ModuleList(models)), torch.ones(8, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        schedule.step(*[data] * (rank == 0), **({"target": data} if rank == NUM_RANKS - 1 else {}))
        optimizer.step()

    return step


def experts() -> Step:
    """A mixture of experts: tokens to the ranks of their experts and back, and gradients of what is shared."""
    model = layers()
    optimizer = sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        tokens = model(torch.ones(NUM_RANKS, WIDTH))
        for _ in range(4):
            dist.all_to_all_single(torch.empty(NUM_RANKS, WIDTH), tokens.detach().contiguous())
        torch.autograd.backward(tokens.sum())
        for each in model.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()

    return step


JOBS: dict[str, Callable[[], Step]] = {
    "ddp": ddp,
    "accumulation": accumulation,
    "fsdp2": fsdp2,
    "fsdp2 accumulation": fsdp2_accumulation,
    "hsdp": hsdp,
    "zero3": zero3,
    "tensor parallel": tensor_parallel,
    "functional": functional_calls,
    "1f1b": lambda: staged(Schedule1F1B),
    "gpipe": lambda: staged(ScheduleGPipe),
    "interleaved": lambda: staged(ScheduleInterleaved1F1B, 2),
    "experts": experts,
}


# Frameworks that have a loop of their own -----------------------------------------------------------------------------


def accelerated(num_steps: int) -> None:
    """Accelerate with two micro-batches for each step."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    plain = layers()
    model, optimizer = accelerator.prepare(plain, sgd(plain))
    for _ in range(2 * num_steps):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(4, WIDTH)).sum())
            optimizer.step()
            optimizer.zero_grad()


class Summed(nn.Module):
    """A model as the HF Trainer expects it: it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()

    def forward(self, data: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layers(data).sum()}


def hf_trained(num_steps: int) -> None:
    """The HF Trainer, which logs and accumulates."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=os.environ[FOLDER],
        max_steps=num_steps,
        use_cpu=True,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=5,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model=Summed(), args=arguments, train_dataset=[{"data": torch.ones(WIDTH)}] * 64).train()


TRAINERS: dict[str, tuple[str, Callable[[int], None]]] = {  # and the package that each needs
    "accelerate": ("accelerate", accelerated),
    "hf trainer": ("transformers", hf_trained),
}


def be_rank(kind: str, rank: int, folder: Path, num_steps: int) -> None:
    """Train in this process, watched."""
    torch.set_num_threads(1)
    os.environ[FOLDER] = str(folder)
    install(folder)
    store = dist.FileStore(str(folder / "store"), NUM_RANKS)  # type: ignore[attr-defined]
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(NUM_RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # looked for, not used
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS)
    if kind in TRAINERS:
        TRAINERS[kind][1](num_steps)
    else:
        step = JOBS[kind]()
        for _ in range(num_steps):
            step()
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path, num_steps: int, kinds: list[str]) -> None:
    """All jobs, one after the other."""
    for module in {TRAINERS[kind][0] for kind in kinds if kind in TRAINERS}:
        import_module(module)
    gc.freeze()
    fork = multiprocessing.get_context("fork")
    for kind in kinds:
        place = folder / kind
        place.mkdir()
        ranks = [fork.Process(target=be_rank, args=(kind, rank, place, num_steps)) for rank in range(NUM_RANKS)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(60)
            rank.kill()
        (place / "codes").write_text(" ".join(str(rank.exitcode) for rank in ranks), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
