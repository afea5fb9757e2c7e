"""A job of one rank or two that reduces again and again, and prints what comes out: `reducing_job.py STEPS STEP_S`.

It needs no more of PyTorch than groups of processes, so that it starts soon. A sum of two is the same in any order.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

WIDTH = 64


def part_of(rank: int, step: int) -> torch.Tensor:
    """What a rank adds in a step."""
    return torch.arange(step, step + WIDTH, dtype=torch.float64).sin() * (rank + 1)


def digest_of(num_steps: int, reduced: Callable[[int], torch.Tensor]) -> str:
    """Of what comes out, bit for bit."""
    total = torch.zeros(WIDTH, dtype=torch.float64)
    for step in range(num_steps):
        total = 0.9 * total + reduced(step)
    return hashlib.sha256(total.numpy().tobytes()).hexdigest()


def main(num_steps: int, step_s: float) -> None:
    """Be one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    def reduced(step: int) -> torch.Tensor:
        time.sleep(step_s)
        part = part_of(dist.get_rank(), step)
        dist.all_reduce(part)
        return part

    digest = digest_of(num_steps, reduced)
    if dist.get_rank() == 0:
        print(f"digest {digest}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
