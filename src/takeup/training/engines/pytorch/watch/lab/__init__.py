"""The laboratory of watching: real ranks over Gloo with the hook in them, and one of them or a link slow on purpose.

jobs.py      what to run, and what came of it
launch.py    starts the program below, and never waits for ever
program.py   imports PyTorch once, and forks the ranks of one job after the other
loops.py     what a rank does: DDP, FSDP2, a pipeline
slowness.py  links that are slow below the hook; outside.py: ranks that are stopped, and cables that are thin
"""

from __future__ import annotations

from takeup.training.engines.pytorch.watch.lab.jobs import Job, Recorded, Slow
from takeup.training.engines.pytorch.watch.lab.launch import run_jobs

__all__ = ["Job", "Recorded", "Slow", "run_jobs"]
