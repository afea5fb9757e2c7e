"""Stock scripts in which rank 2 is slow from the first step: `torchrun ... slow_start_jobs.py fsdp2|hf|1f1b NUM_STEPS`.

With FSDP2 and the HF Trainer its data loader is slow; in a pipeline it collects garbage in every step. Own work is
mostly sleep, so that ranks do not wait for cores.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader, Dataset

WIDTH, WORK_S, SLOW_S = 64, 0.03, 0.05
RANK = int(os.environ["RANK"])
HELD: list[Any] = []


class Samples(Dataset[torch.Tensor]):
    """Samples that take rank 2 long to load."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLOW_S if RANK == 2 else 0.0)
        return {"data": torch.ones(WIDTH)}


class Working(nn.Module):
    """A layer whose forward takes some time, and garbage on rank 2 if asked for; it returns its output or its loss."""

    def __init__(self, *, collects: bool = False, is_loss: bool = False) -> None:
        super().__init__()
        self.layer, self.collects, self.is_loss = nn.Linear(WIDTH, WIDTH), collects, is_loss

    def forward(self, data: torch.Tensor) -> Any:
        time.sleep(WORK_S / 4 if self.collects else WORK_S)
        if self.collects and RANK == 2:
            gc.collect()
        out = self.layer(data)
        return {"loss": out.square().mean()} if self.is_loss else out


def fsdp2(num_steps: int) -> None:
    """Two sharded layers and a loader."""
    model = nn.Sequential(Working(), nn.Linear(WIDTH, WIDTH))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Samples(num_steps), batch_size=1):
        optimizer.zero_grad()
        torch.autograd.backward(model(batch["data"]).square().mean())
        optimizer.step()


def hf(num_steps: int) -> None:
    """The HF Trainer."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=os.environ["OUT"],
        max_steps=num_steps,
        use_cpu=True,
        per_device_train_batch_size=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model=Working(is_loss=True), args=arguments, train_dataset=Samples(4 * num_steps)).train()


def one_f_one_b(num_steps: int) -> None:
    """A stage for each rank, four micro-batches, the stock schedule."""
    if RANK == 2:
        HELD.extend([[] for _ in range(250_000)])  # what the collector has to look through
    stage_module = Working(collects=True)
    stage = PipelineStage(stage_module, RANK, dist.get_world_size(), torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer, data = torch.optim.SGD(stage_module.parameters(), lr=0.01), torch.ones(4, WIDTH)
    for _ in range(num_steps):
        optimizer.zero_grad()
        inputs: dict[str, Any] = {"target": data} if dist.get_world_size() - 1 == RANK else {}
        schedule.step(*[data] * (RANK == 0), **inputs)
        optimizer.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] != "hf":  # the Trainer does it itself
        dist.init_process_group("gloo")
    {"fsdp2": fsdp2, "hf": hf, "1f1b": one_f_one_b}[sys.argv[1]](int(sys.argv[2]))
    dist.barrier()
    dist.destroy_process_group()
