"""A job of one rank or two that reduces again and again, and prints what comes out: `reducing_job.py STEPS STEP_S`.

It needs no more of PyTorch than groups of processes, so that it starts soon. A sum of two is the same in any order.
Ranks meet at the file REDUCING_MEETING, if there is such a variable: a port that is free now may be taken a moment
later. With REDUCING_GATE they make their last step once that file is there, and until then steps that do not count; so
a job cannot be over before its test has done to it what it wants.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WIDTH = 64
GATE, MEETING = "REDUCING_GATE", "REDUCING_MEETING"


def part_of(rank: int, step: int) -> torch.Tensor:
    """What a rank adds in a step."""
    return torch.arange(step, step + WIDTH, dtype=torch.float64).sin() * (rank + 1)


def digest_of(num_steps: int, reduced: Callable[[int], torch.Tensor]) -> str:
    """Of what comes out, bit for bit."""
    total = torch.zeros(WIDTH, dtype=torch.float64)
    for step in range(num_steps):
        total = 0.9 * total + reduced(step)
    return hashlib.sha256(total.numpy().tobytes()).hexdigest()


def meeting() -> dict[str, Any]:
    """Where ranks meet, if it is a file."""
    if MEETING not in os.environ:
        return {}
    ranks = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    return {"init_method": f"file://{os.environ[MEETING]}", **ranks}


def wait_at_the_gate(step_s: float) -> None:
    """Until it is open; all ranks hear of it in the same step."""
    seen = torch.zeros(WIDTH, dtype=torch.float64)
    while GATE in os.environ and not seen.any():
        time.sleep(step_s)
        seen.fill_(Path(os.environ[GATE]).exists())
        dist.all_reduce(seen)


def main(num_steps: int, step_s: float) -> None:
    """Be one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", **meeting())

    def reduced(step: int) -> torch.Tensor:
        if step == num_steps - 1:
            wait_at_the_gate(step_s)
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
