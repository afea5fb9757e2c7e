"""CPU contention: slow because the cores of a machine do other work; looks like a slow device and a slow link.

A rank that is ready to run and does not get a core computes late, sends late and receives late. The OS reports how
long it waited. If that grew by enough of the rank's extra compute time, it explains a slow rank, whether or not others
waited, and no rank is blamed. A message over a link needs cores at all its ranks, one after the other: the link is not
blamed if the waiting of these ranks together grew by at least the extra message time. But with a slow link, the waiting
summed over all threads of these ranks can exceed the loss. Waiting for a core delays only those messages that find none
free, and a slow link delays all of them: if most of the excess is also present in the fastest messages, it is the link.

If there is no suspect, it suffices that the waiting of all ranks together grew by enough of the loss: in a pipeline,
ranks wait for each other. Waiting because a rank's own CPU quota is exhausted does not count; that is a slow rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from takeup.training.model.slowdowns import SlowdownEvent, Suspect

LEAST_EXPLAINED_BY_CORES = 0.5  # share of the lost iteration time, or of the rank's extra compute time
LEAST_FOR_ALL = 0.5  # a link is slow if the fastest messages have this share of the mean excess


def blame_cpu_contention(event: SlowdownEvent, more_waiting_s: Mapping[int, float]) -> SlowdownEvent:
    """The event, blamed on cores if core waiting per iteration grew by enough; `more_waiting_s` is by rank."""
    lost_s, together_s = event.after_s - event.before_s, sum(more_waiting_s.values())
    if event.suspects:
        is_explained = all(_is_explained_by_cores(suspect, more_waiting_s, lost_s) for suspect in event.suspects)
    else:
        is_explained = together_s >= LEAST_EXPLAINED_BY_CORES * lost_s
    if not event.is_slow or lost_s <= 0 or not is_explained:
        return event
    reason = (
        f"ready to run but without a core for {1e3 * together_s:.4g} ms more in an iteration, all ranks together; "
        f"it lost {1e3 * lost_s:.4g} ms"
    )
    ranks = tuple(rank for rank, more_s in sorted(more_waiting_s.items()) if more_s > 0)
    return replace(event, suspects=(Suspect("host", ranks, event.factor, 0.0, reason),))


def _is_explained_by_cores(suspect: Suspect, more_waiting_s: Mapping[int, float], lost_s: float) -> bool:
    """Whether a suspect only seems slow because ranks wait for cores."""
    there_s = sum(more_waiting_s.get(rank, 0.0) for rank in suspect.ranks)
    longer_s = suspect.excess_s or lost_s  # if unknown, the whole loss
    if suspect.kind == "link" and suspect.least_s >= LEAST_FOR_ALL * longer_s:
        return False
    return there_s >= (1.0 if suspect.kind == "link" else LEAST_EXPLAINED_BY_CORES) * longer_s
