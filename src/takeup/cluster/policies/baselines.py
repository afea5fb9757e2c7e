"""Rules of the baselines: FIFO, YARN-CS, Chronus, Lyra, FGD, and stock kube-scheduler, Kueue, Slurm and KAI."""

from takeup.cluster.scheduling import rules
from takeup.cluster.scheduling.rules import SchedulerRules

# First in, first out: one queue for all jobs, no quota, no evictions --------------------------------------------------
#
# `FIFO` serves jobs in order of arrival, and backfills past one that does not fit now. `FIFO_STRICT` never backfills: a
# gang as large as the pool then drains it first.

FIFO_STRICT = SchedulerRules(one_queue=True)
FIFO = FIFO_STRICT._replace(high_failure=rules.TRY_SMALLER)

# `EASY` keeps nodes for the first job that does not fit: others pass it only if they end before it can start, by their
# time limits (in replays exact ones). `SRTF` is a bound: it knows how long jobs last, and every five minutes those with
# the least time left run, at no cost.

EASY = FIFO._replace(reserves=True)
SRTF = FIFO._replace(high_order=rules.BY_SHORTEST, spot_order=rules.BY_SHORTEST, lease_s=300.0)


# YARN's Capacity Scheduler: strict queues, best fit blind to the kinds of jobs ----------------------------------------
#
# As GFS evaluated it (Duan et al., ASPLOS 2026), a high-priority job goes straight to the node with the fewest GPUs
# that could be freed, and evicts the oldest runs there. As published, it looks for idle GPUs first, and evicts the
# youngest, and an application that does not fit now does not block those behind it.

YARN_CS = SchedulerRules(victims=rules.TIGHTEST, straight=True, uses_quota=True)
YARN_CS_PUBLISHED = SchedulerRules(
    high_failure=rules.TRY_SMALLER, spot_failure=rules.TRY_SMALLER, victims=rules.NEWEST, uses_quota=True
)


# Chronus: leases instead of evictions. Every 20 minutes all jobs are put back and placed again, high priority first
#
# Gao et al., SoCC 2021, as GFS evaluated it: each job pays 120 s at the end of each lease. As published, a lease that
# is renewed costs nothing, and only a job that had to wait pays when it comes back. A spot run is a success every 300
# s.

CHRONUS = SchedulerRules(
    high_order=rules.BY_SIZE,
    spot_order=rules.BY_SIZE,
    high_failure=rules.TRY_SMALLER,
    spot_failure=rules.TRY_SMALLER,
    period_s=300.0,
    lease_s=1200.0,
    lease_overhead_s=120.0,
)
CHRONUS_PUBLISHED = CHRONUS._replace(lease_moved_only=True)


# Lyra: evict where preemption costs least, a GPU of a job with n GPUs counting 1/n ------------------------------------
#
# Li et al., EuroSys 2023. As published, GPUs of the largest jobs go first, so that few jobs are touched. The evaluation
# of GFS sorted them the other way round, smallest jobs first, and let all spot jobs wait behind one that does not fit.

LYRA = SchedulerRules(
    high_order=rules.BY_SIZE,
    spot_order=rules.BY_SIZE,
    high_failure=rules.TRY_SMALLER,
    victims=rules.SMALLEST_FIRST,
    uses_quota=True,
)
LYRA_PUBLISHED = LYRA._replace(victims=rules.LARGEST_FIRST, spot_failure=rules.TRY_SMALLER)


# FGD: place where the GPUs that a typical request cannot use grow the least -------------------------------------------
#
# Weng et al., ATC 2023. The evaluation of GFS counted `f - floor(f / m)` unusable GPUs for a request of m, the paper
# `f - m * floor(f / m)`, in a scheduler that backfills behind a job that does not fit. Evictions are those of the
# evaluation: on the node that is fragmented least, oldest first.

FGD = SchedulerRules(score=rules.FRAGMENT_ARTIFACT, victims=rules.FRAGMENT_NODE, straight=True, uses_quota=True)
FGD_PUBLISHED = FGD._replace(
    score=rules.FRAGMENT, straight=False, high_failure=rules.TRY_SMALLER, spot_failure=rules.TRY_SMALLER
)


# Stock systems at their defaults when a high-priority job does not fit: none of them has a quota for spot jobs --------
#
# `KUBE`: kube-scheduler's default preemption: the node with the fewest victims, then the one whose victims started
# last; the longest-running job is spared first. `LAST_ADMITTED`: the last admitted job is evicted first, until the job
# fits; then victims that are not needed are spared. In one pool with one queue for each kind of jobs that is what Kueue
# (BestEffortFIFO), Slurm (preempt/qos, youngest_first) and KAI (minRuntime 0) do. `KUEUE_STRICT` is Kueue's StrictFIFO.
# The same with a quota are comparisons of ours. `HIGH_FIRST` serves high-priority jobs first and evicts no job.

KUBE = SchedulerRules(high_failure=rules.TRY_SMALLER, spot_failure=rules.TRY_SMALLER, victims=rules.FEWEST)
LAST_ADMITTED = KUBE._replace(victims=rules.NEWEST)
KUEUE_STRICT = SchedulerRules(victims=rules.NEWEST)
KUEUE_COHORT = LAST_ADMITTED._replace(high_share=0.5)
KUBE_QUOTA = KUBE._replace(uses_quota=True)
SLURM_QUOTA = LAST_ADMITTED._replace(uses_quota=True)
HIGH_FIRST = KUBE._replace(victims=rules.NOBODY)
