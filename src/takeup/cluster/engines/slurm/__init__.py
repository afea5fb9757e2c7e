"""Slurm as an engine: a controller alongside a stock Slurm, through its command-line programs."""

from takeup.cluster.engines.slurm.commands import Slurm, SlurmDown
from takeup.cluster.engines.slurm.engine import SlurmEngine, StaleState, control
from takeup.cluster.engines.slurm.snapshot import QosClasses

__all__ = ["QosClasses", "Slurm", "SlurmDown", "SlurmEngine", "StaleState", "control"]
