"""Slow because the cores of a machine do other work: neither a slow device nor a slow link, though it looks like both.

A rank that is ready to run and does not get a core computes late, sends late and receives late. The system knows for
how long it waited. If that grew by enough of what the rank computes for longer, it explains a slow rank, whether or not
others waited, and nobody is blamed. What crosses a link needs cores at all ranks there, one after the other: it is not
the link if together these waited longer by all that messages took longer. But what all threads of these ranks waited
can add up to more than was lost where a slow link is the reason. To wait for a core delays only those messages that
find none free, and a slow link delays all of them: if most of it is what even the fastest messages took longer, it is
the link.

Where nobody was to blame anyway, it is enough if all ranks together waited longer by enough of what was lost: in a
pipeline one waits for the other. To wait because a quota of one's own is spent does not count, that is a slow rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from takeup.training.model.slowdowns import Event, Suspect

__all__ = ["blamed_on_cores"]

LEAST_EXPLAINED = 0.5  # of what an iteration lost, or a rank computes for longer
LEAST_FOR_ALL = 0.5  # of what messages take longer, if it is the link: so much longer even the fastest take


def blamed_on_cores(event: Event, more_waiting_s: Mapping[int, float]) -> Event:
    """The event, blamed on cores if the time for which ranks wait for one in an iteration grew by enough; by rank."""
    lost_s, together_s = event.after_s - event.before_s, sum(more_waiting_s.values())
    if event.suspects:
        is_explained = all(_is_explained(suspect, more_waiting_s, lost_s) for suspect in event.suspects)
    else:
        is_explained = together_s >= LEAST_EXPLAINED * lost_s
    if not event.is_slow or lost_s <= 0 or not is_explained:
        return event
    reason = (
        f"ready to run but without a core for {1e3 * together_s:.4g} ms more in an iteration, all ranks together; "
        f"it lost {1e3 * lost_s:.4g} ms"
    )
    ranks = tuple(rank for rank, more_s in sorted(more_waiting_s.items()) if more_s > 0)
    return replace(event, suspects=(Suspect("host", ranks, event.factor, 0.0, reason),))


def _is_explained(suspect: Suspect, more_waiting_s: Mapping[int, float], lost_s: float) -> bool:
    """Whether a suspect only seems slow because ranks wait for cores."""
    there_s = sum(more_waiting_s.get(rank, 0.0) for rank in suspect.ranks)
    longer_s = suspect.excess_s or lost_s  # where it is not known, all of it
    if suspect.kind == "link" and suspect.least_s >= LEAST_FOR_ALL * longer_s:
        return False
    return there_s >= (1.0 if suspect.kind == "link" else LEAST_EXPLAINED) * longer_s
