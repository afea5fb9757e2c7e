"""Train a small model on several ranks with DDP, in micro-batches whose shares may change while it trains.

    takeup training watch -- torchrun --nproc-per-node 4 examples/train_ddp.py

A micro-batch takes a while without needing a core, so that a small machine has room for several ranks. Without torchrun
there is one rank, for a few steps. With --checkpoint FILE it can be restarted, and goes on where it was.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from takeup.training.stragglers.watch.batches import Batches

NUM_MICROBATCHES, ROWS = 16, 4


def compute(time_s: float) -> None:
    """Stands for the work of a real model."""
    time.sleep(time_s)


def make_batch(step: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of the whole job, the same on all ranks."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(NUM_MICROBATCHES * ROWS, width, generator=generator, dtype=torch.float64)
    return inputs, inputs.sum(1, keepdim=True).sin()


class Training:
    """A model, its optimizer, and how far they are."""

    def __init__(self, width: int, is_exact: bool, checkpoint: Path | None) -> None:
        torch.manual_seed(1)
        layers = (torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
        # After the first step DDP adds gradients up in another order, unless it must expect that some are not used.
        self.model = DistributedDataParallel(torch.nn.Sequential(*layers).double(), find_unused_parameters=is_exact)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.num_steps = 0
        self.width = width
        self.checkpoint = checkpoint
        if checkpoint is not None and checkpoint.exists():
            weights, self.num_steps = torch.load(checkpoint)
            self.model.load_state_dict(weights)

    def save(self) -> None:
        """Write the checkpoint, on one rank."""
        if self.checkpoint is not None and dist.get_rank() == 0:
            torch.save((self.model.state_dict(), self.num_steps), self.checkpoint)

    def run(self, num_steps: int, microbatch_s: float) -> float:
        """Train until so many steps are done, and return the last loss over the whole batch."""
        share = Batches(self.model, NUM_MICROBATCHES, save=self.save if self.checkpoint is not None else None)
        total = torch.zeros(1, dtype=torch.float64)
        while self.num_steps < num_steps:
            self.optimizer.zero_grad()
            total.zero_()
            for inputs, targets in share.of(make_batch(self.num_steps, self.width)):
                compute(microbatch_s)
                loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
                torch.autograd.backward(loss * share.weight)
                total += loss.detach() / NUM_MICROBATCHES
            self.optimizer.step()
            self.num_steps += 1
        dist.all_reduce(total)
        return float(total)


def main() -> None:
    """One rank."""
    parser = argparse.ArgumentParser(description="Train a small model with DDP.")
    parser.add_argument("--steps", type=int, help="300, or 20 without torchrun")
    parser.add_argument("--microbatch-ms", type=float, default=5.0)
    parser.add_argument("--width", type=int, default=32, help="of the model")
    parser.add_argument("--exact", action="store_true", help="let a restart change not even a bit")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="where to save, and to go on from")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    num_steps = options.steps or (300 if dist.is_torchelastic_launched() else 20)
    loss = Training(options.width, options.exact, options.checkpoint).run(num_steps, options.microbatch_ms / 1e3)
    if dist.get_rank() == 0:
        print(f"{num_steps} steps, {dist.get_world_size()} ranks, loss {loss:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
