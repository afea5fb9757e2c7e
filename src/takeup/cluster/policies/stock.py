"""What stock systems do today when a high-priority job does not fit.

`KUBE`: kube-scheduler's default preemption: the node with the fewest victims, then the one whose victims started last;
the longest-running job is spared first. `KUEUE`: the last admitted job is evicted first, until the job fits; then
victims that are not needed are spared. `SLURM`: preempt/qos with the youngest first. `KAI`: the same, but a job is
protected in its first minutes.
"""

from __future__ import annotations

from takeup.cluster.fleet.rules import FEWEST, NEWEST, TRY_SMALLER, SchedulerRules

KUBE = SchedulerRules(high_failure=TRY_SMALLER, spot_failure=TRY_SMALLER, victims=FEWEST, uses_quota=True)
KUEUE = SchedulerRules(victims=NEWEST, uses_quota=True)
SLURM = SchedulerRules(high_failure=TRY_SMALLER, spot_failure=TRY_SMALLER, victims=NEWEST, uses_quota=True)
KAI = SLURM._replace(min_runtime_s=600.0)
