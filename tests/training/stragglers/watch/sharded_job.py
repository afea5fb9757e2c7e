"""A job of two ranks for tests: eight equal layers, sharded by FSDP2 or in stock 1F1B; rank 1 is slow from the start.

`torchrun ... sharded_job.py fsdp|1f1b NUM_STEPS`
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, SLOW_S, USUAL_S = 32, 0.015, 0.002


class Layer(nn.Module):
    """A linear layer that takes a known time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        time.sleep(SLOW_S if dist.get_rank() == 1 else USUAL_S)
        moved: torch.Tensor = torch.tanh(self.linear(data))
        return moved


def sharded(num_steps: int) -> None:
    model = nn.Sequential(*[Layer() for _ in range(8)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(num_steps):
        optimizer.zero_grad()
        torch.autograd.backward(model(torch.ones(4, WIDTH)).sum())
        optimizer.step()


def staged(num_steps: int) -> None:
    rank = dist.get_rank()
    model = nn.Sequential(*[Layer() for _ in range(2)])
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.ones(8, WIDTH)
    for _ in range(num_steps):
        optimizer.zero_grad()
        schedule.step(data) if rank == 0 else schedule.step(target=data)
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    {"fsdp": sharded, "1f1b": staged}[sys.argv[1]](int(sys.argv[2]))
    dist.destroy_process_group()
