"""Stock scripts in which rank 2 is slow from the first step: `torchrun ... slow_start_jobs.py fsdp2|hf|1f1b NUM_STEPS`.

Its data loader is slow. Own work is mostly sleep, so that ranks do not wait for cores.
"""

from __future__ import annotations

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
NUM_STAGES, NUM_MICROBATCHES = 4, 4
RANK = int(os.environ["RANK"])


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
    """A layer whose forward takes some time; it returns its output or its loss."""

    def __init__(self, *, is_loss: bool = False, work_s: float = WORK_S) -> None:
        super().__init__()
        self.layer, self.is_loss, self.work_s = nn.Linear(WIDTH, WIDTH), is_loss, work_s

    def forward(self, data: torch.Tensor) -> Any:
        time.sleep(self.work_s)
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


def one_f_one_b(num_steps: int) -> None:
    """A stage on every rank; all ranks read the loader, and the first and the last use its batches."""
    model = Working(work_s=WORK_S / NUM_MICROBATCHES)
    stage = PipelineStage(model, RANK, NUM_STAGES, torch.device("cpu"))
    schedule = Schedule1F1B(stage, NUM_MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Samples(num_steps), batch_size=1):
        optimizer.zero_grad()
        data = batch["data"].expand(NUM_MICROBATCHES, WIDTH)
        inputs = (data,) if RANK == 0 else ()
        schedule.step(*inputs, target=data if RANK == NUM_STAGES - 1 else None)
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] != "hf":  # the Trainer does it itself
        dist.init_process_group("gloo")
    {"fsdp2": fsdp2, "hf": hf, "1f1b": one_f_one_b}[sys.argv[1]](int(sys.argv[2]))
    dist.barrier()
    dist.destroy_process_group()
