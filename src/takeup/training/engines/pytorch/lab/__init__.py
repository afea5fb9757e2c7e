"""The laboratory: real ranks over Gloo, with links and stages that are slow on purpose.

trials.py    what to try, and what came of it
launch.py    starts the program below, and never waits for ever
program.py   imports PyTorch once, and forks the ranks of one trial after the other
ranks.py     what a rank does
stages.py    a small transformer, whose operations take as long as the trial says
faults.py    messages that arrive late; nothing leads from here to whoever plans
network.py   networks of their own for ranks, with cables of little bandwidth; where this process may make them
"""

from __future__ import annotations

from takeup.training.engines.pytorch.lab.launch import run_trials
from takeup.training.engines.pytorch.lab.trials import Outcome, Trial

__all__ = ["Outcome", "Trial", "run_trials"]
