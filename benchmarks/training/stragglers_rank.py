"""Runs a training script as it is, and notes when it steps: `torchrun ... stragglers_rank.py SCRIPT ARGUMENTS...`.

For stragglers_restart.py, which says by the environment where to write, and in which network every process is. A file
has the process, its rank and when it began; then when each step of an optimizer ended; at last a digest of the weights.
The network is entered after the ranks have met: connections to the store of torchrun stay where they were made.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER, NETWORKS = "NOTED_STEPS", "NETWORKS_OF_RANKS"


def main() -> None:
    """Note the steps of the script."""
    place, began_s = int(os.environ["LOCAL_RANK"]), time.monotonic()
    path = Path(os.environ[FOLDER], f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{place}")
    with path.open("w", buffering=1, encoding="utf-8") as file:
        file.write(f"{os.getpid()} {os.environ['RANK']} {began_s}\n")
        optimizers = note_steps(lambda: file.write(f"{time.monotonic()}\n"))
        if os.environ.get(NETWORKS):
            join_after_meeting(os.environ[NETWORKS].split(",")[place])
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
        file.write(f"{digest(optimizers[0])}\n")


def note_steps(note: Callable[[], object]) -> list[Any]:
    """Call this after every step of an optimizer; those that step are listed."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    found: list[Any] = []

    def stepped(optimizer: Any, *_: Any) -> None:
        found[:] = found or [optimizer]
        note()

    register_optimizer_step_post_hook(stepped)
    return found


def digest(optimizer: Any) -> str:
    """Of all weights, bit for bit."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in weights)).hexdigest()


def join_after_meeting(network: str) -> None:
    """Meet the other ranks as ever, and then be in another network."""
    from support.pipeline_lab.network import enter_namespace

    module: Any = import_module("torch.distributed.distributed_c10d")
    plain = module.rendezvous

    def rendezvous(*arguments: Any, **named: Any) -> Iterator[Any]:
        for met in plain(*arguments, **named):
            enter_namespace(network)
            yield met

    module.rendezvous = rendezvous


if __name__ == "__main__":
    main()
