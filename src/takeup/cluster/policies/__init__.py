"""All schedulers by name. To add one: its rules in a file here, a line below, a test, a row in the domain's README.

A plain name is a scheduler as the GFS evaluation ran it; `..._published` is what its own paper says.
"""

from takeup.cluster.contract import NoQuota, QuotaSource
from takeup.cluster.policies.baselines import (
    CHRONUS,
    CHRONUS_PUBLISHED,
    FGD,
    FGD_PUBLISHED,
    FIFO,
    FIFO_STRICT,
    KAI,
    KUBE,
    KUEUE,
    LYRA,
    LYRA_PUBLISHED,
    SLURM,
    YARN_CS,
    YARN_CS_PUBLISHED,
)
from takeup.cluster.policies.gfs import (
    GFS,
    GFS_ARTIFACT,
    GFS_NOTICE,
    GFS_PROMISED,
    GFS_PUBLISHED,
    GFS_PUBLISHED_SIMPLE_PLACE,
    GFS_PUBLISHED_SIMPLE_PREEMPT,
    GFS_SIMPLE_PLACE,
    GFS_SIMPLE_PREEMPT,
)
from takeup.cluster.policies.rule_based import RuleBasedScheduler
from takeup.cluster.scheduling.rules import SchedulerRules
from takeup.errors import UnknownName

__all__ = ["POLICIES", "RuleBasedScheduler", "find_policy"]

POLICIES: dict[str, SchedulerRules] = {
    "fifo": FIFO,
    "fifo_strict": FIFO_STRICT,
    "yarn_cs": YARN_CS,
    "yarn_cs_published": YARN_CS_PUBLISHED,
    "chronus": CHRONUS,
    "chronus_published": CHRONUS_PUBLISHED,
    "lyra": LYRA,
    "lyra_published": LYRA_PUBLISHED,
    "fgd": FGD,
    "fgd_published": FGD_PUBLISHED,
    "kube": KUBE,
    "kueue": KUEUE,
    "slurm": SLURM,
    "kai": KAI,
    "gfs": GFS,
    "gfs_notice": GFS_NOTICE,
    "gfs_promised": GFS_PROMISED,
    "gfs_published": GFS_PUBLISHED,
    "gfs_simple_place": GFS_SIMPLE_PLACE,
    "gfs_simple_preempt": GFS_SIMPLE_PREEMPT,
    "gfs_published_simple_place": GFS_PUBLISHED_SIMPLE_PLACE,
    "gfs_published_simple_preempt": GFS_PUBLISHED_SIMPLE_PREEMPT,
    "gfs_artifact": GFS_ARTIFACT,
}


def find_policy(name: str, quota_source: QuotaSource | None = None, is_exact: bool = True) -> RuleBasedScheduler:
    """A fresh scheduler; those that use no quota never ask the source.

    `is_exact`: when it decides for a real engine, victims of gangs are the best that a solver finds in time.
    """
    if name not in POLICIES:
        raise UnknownName("cluster policy", name, POLICIES)
    return RuleBasedScheduler(name, POLICIES[name], quota_source or NoQuota(), is_exact)
