"""The laboratory: real ranks over Gloo, with artificially slowed links and stages.

trials.py    trials and their outcomes
launch.py    starts the program below, with a timeout
program.py   imports PyTorch once, and forks the ranks of each trial in sequence
ranks.py     the training loop of one rank
stages.py    a small transformer, whose operation durations are set by the trial
faults.py    delayed messages; the planner has no access to these delays
network.py   network namespaces for ranks with low-bandwidth veth links; needs the privileges to create them
"""

from __future__ import annotations

from takeup.training.engines.pytorch.lab.launch import run_trials
from takeup.training.engines.pytorch.lab.trials import LabTrial, TrialOutcome

__all__ = ["TrialOutcome", "LabTrial", "run_trials"]
