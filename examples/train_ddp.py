"""Train a small model on several ranks with DDP, in micro-batches whose shares may change while it trains.

    takeup training watch -- torchrun --nproc-per-node 4 examples/train_ddp.py

A micro-batch takes a while without needing a core, so that a small machine has room for several ranks. Without torchrun
there is one rank, for a few steps.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from takeup.training.engines.pytorch.watch import Batches

NUM_MICROBATCHES, ROWS, WIDTH = 16, 4, 32


def compute(time_s: float) -> None:
    """Stands for the work of a real model."""
    time.sleep(time_s)


def make_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of the whole job, the same on all ranks."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(NUM_MICROBATCHES * ROWS, WIDTH, generator=generator, dtype=torch.float64)
    return inputs, inputs.sum(1, keepdim=True).sin()


def train(num_steps: int, microbatch_s: float) -> float:
    """Train, and return the last loss over the whole batch."""
    torch.manual_seed(1)
    layers = (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1))
    model = DistributedDataParallel(torch.nn.Sequential(*layers).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    share = Batches(model, NUM_MICROBATCHES)
    total = torch.zeros(1, dtype=torch.float64)
    for step in range(num_steps):
        optimizer.zero_grad()
        total.zero_()
        for inputs, targets in share.of(make_batch(step)):
            compute(microbatch_s)
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            torch.autograd.backward(loss * share.weight)
            total += loss.detach() / NUM_MICROBATCHES
        optimizer.step()
    dist.all_reduce(total)
    return float(total)


def main() -> None:
    """One rank."""
    parser = argparse.ArgumentParser(description="Train a small model with DDP.")
    parser.add_argument("--steps", type=int, help="300, or 20 without torchrun")
    parser.add_argument("--microbatch-ms", type=float, default=5.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    num_steps = options.steps or (300 if dist.is_torchelastic_launched() else 20)
    loss = train(num_steps, options.microbatch_ms / 1e3)
    if dist.get_rank() == 0:
        print(f"{num_steps} steps, {dist.get_world_size()} ranks, loss {loss:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
