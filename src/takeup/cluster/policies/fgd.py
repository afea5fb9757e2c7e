"""FGD: place where the GPUs that a typical request cannot use grow the least.

Weng et al., ATC 2023. The evaluation of GFS counted `f - floor(f / m)` unusable GPUs for a request of m, the paper
`f - m * floor(f / m)`, in a scheduler that backfills behind a job that does not fit. Evictions are those of the
evaluation: on the node that is fragmented least, oldest first.
"""

from __future__ import annotations

from takeup.cluster.fleet.rules import FRAGMENT, FRAGMENT_ARTIFACT, FRAGMENT_NODE, TRY_SMALLER, SchedulerRules

FGD = SchedulerRules(score=FRAGMENT_ARTIFACT, victims=FRAGMENT_NODE, straight=True, uses_quota=True)
FGD_PUBLISHED = FGD._replace(score=FRAGMENT, straight=False, high_failure=TRY_SMALLER, spot_failure=TRY_SMALLER)
