"""Slow because the cores of a machine do other work: neither a slow device nor a slow link, though it looks like both.

A rank that is ready to run and does not get a core computes late, sends late and receives late. The system knows for
how long it waited. If for most ranks that grew by enough of what iterations lost, it explains them, and nobody is
blamed; unless a rank computes for longer by much more than it waited. A single rank without a core is slow like any
other. Where nobody was to blame anyway, it is enough if all ranks together waited so much longer: in a pipeline one
waits for the other. What crosses a link needs cores at all ranks there, one after the other: it is not the link if
together these waited longer by all that was lost, and by all that messages took longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from takeup.training.model.slowdowns import Event, Suspect

__all__ = ["blamed_on_cores"]

LEAST_EXPLAINED = 0.5  # of what an iteration lost


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
    most_wait = median(more_waiting_s.values() or [0.0]) >= LEAST_EXPLAINED * lost_s
    there_s = sum(more_waiting_s.get(rank, 0.0) for rank in suspect.ranks)
    if suspect.kind == "link":
        return there_s >= suspect.excess_s and (most_wait or there_s >= lost_s)
    return most_wait and there_s >= LEAST_EXPLAINED * suspect.excess_s
