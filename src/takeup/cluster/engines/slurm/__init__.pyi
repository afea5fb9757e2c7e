from takeup.cluster.engines.slurm.commands import Slurm as Slurm
from takeup.cluster.engines.slurm.commands import SlurmDown as SlurmDown
from takeup.cluster.engines.slurm.engine import SlurmEngine as SlurmEngine
from takeup.cluster.engines.slurm.engine import StaleState as StaleState
from takeup.cluster.engines.slurm.rows import QosClasses as QosClasses
