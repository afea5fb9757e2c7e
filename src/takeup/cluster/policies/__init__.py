"""All schedulers by name. To add one: its rules in a file here, a line below, a test, a row in the domain's README.

`yarn_cs`, `chronus`, `lyra` and `fgd` are as the GFS evaluation ran them, and `..._published` as their own papers say.
Stock systems are at their defaults, without a quota; `...+quota` adds ours.
"""

from takeup.cluster.contract import NoQuota, QuotaSource
from takeup.cluster.policies import baselines, gfs
from takeup.cluster.policies.rule_based import RuleBasedScheduler
from takeup.cluster.scheduling.rules import SchedulerRules
from takeup.core import lazy

POLICIES: dict[str, SchedulerRules] = {
    "fifo": baselines.FIFO,
    "fifo_strict": baselines.FIFO_STRICT,
    "easy": baselines.EASY,
    "srtf": baselines.SRTF,
    "yarn_cs": baselines.YARN_CS,
    "yarn_cs_published": baselines.YARN_CS_PUBLISHED,
    "chronus": baselines.CHRONUS,
    "chronus_published": baselines.CHRONUS_PUBLISHED,
    "lyra": baselines.LYRA,
    "lyra_published": baselines.LYRA_PUBLISHED,
    "fgd": baselines.FGD,
    "fgd_published": baselines.FGD_PUBLISHED,
    "high_first": baselines.HIGH_FIRST,
    "kube": baselines.KUBE,
    "kueue": baselines.LAST_ADMITTED,
    "kueue_cohort": baselines.KUEUE_COHORT,
    "kueue_strict": baselines.KUEUE_STRICT,
    "slurm": baselines.LAST_ADMITTED,
    "kai": baselines.LAST_ADMITTED,
    "kube+quota": baselines.KUBE_QUOTA,
    "slurm+quota": baselines.SLURM_QUOTA,
    "gfs": gfs.GFS,
    "gfs_notice": gfs.GFS_NOTICE,
    "gfs_promised": gfs.GFS_PROMISED,
    "gfs_published": gfs.GFS_PUBLISHED,
    "gfs_simple_place": gfs.GFS_SIMPLE_PLACE,
    "gfs_simple_preempt": gfs.GFS_SIMPLE_PREEMPT,
    "gfs_published_simple_place": gfs.GFS_PUBLISHED_SIMPLE_PLACE,
    "gfs_published_simple_preempt": gfs.GFS_PUBLISHED_SIMPLE_PREEMPT,
}


def find_policy(name: str, quota_source: QuotaSource | None = None) -> RuleBasedScheduler:
    """A fresh scheduler; those that use no quota never ask the source."""
    rules = lazy.find_policy("cluster", name, POLICIES, SchedulerRules._fields)
    return RuleBasedScheduler(name, rules, quota_source or NoQuota())
