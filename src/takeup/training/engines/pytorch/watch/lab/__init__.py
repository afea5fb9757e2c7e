"""The laboratory of the watcher: real ranks over Gloo with the hook, and an artificially slow rank or link.

jobs.py      jobs and their records
launch.py    starts the program below, with a timeout
program.py   imports PyTorch once, and forks the ranks of each job in sequence
loops.py     training loops of a rank: DDP, FSDP2, a pipeline
slowness.py  links that are slow below the hook; outside.py: SIGSTOPped ranks and rate-limited veth links
"""

from __future__ import annotations

from takeup.training.engines.pytorch.watch.lab.jobs import JobRecord, SlowPeriod, WatchedJob
from takeup.training.engines.pytorch.watch.lab.launch import run_jobs

__all__ = ["WatchedJob", "JobRecord", "SlowPeriod", "run_jobs"]
