"""What the same arrivals would experience on an ideal link, which shares its rate exactly at every moment."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from support.dash.engine import Downloads, VideoSession, Visit
from takeup.core.arrays import Floats

# Chance is the same on both sides, so a difference to what players lived through comes from the transport alone.
#
# How it works. Everyone under way receives equally fast, so one curve serves all: the content that a video would have
# received by some time, had it been under way from the beginning. A video is through when the curve has risen by its
# length since it came.


def ideal_arrivals_s(visits: Sequence[Visit], speed: float, step_s: float) -> list[tuple[Floats, Floats]]:
    """For each visit the times since its request, and the content in total by then, in steps of `step_s` of content.

    Visits are in order of their requests.
    """
    times_s, curve_s, begins_s = _received_curve(visits, speed)
    arrivals = []
    for (requested_s, length_s), begin_s in zip(visits, begins_s, strict=True):
        contents_s = np.append(np.arange(step_s, length_s, step_s), length_s)
        arrivals.append((np.interp(begin_s + contents_s, curve_s, times_s) - requested_s, contents_s))
    return arrivals


def _received_curve(visits: Sequence[Visit], speed: float) -> tuple[list[float], list[float], list[float]]:
    """The corners of the curve, and where each visit stepped onto it."""
    times_s, curve_s, begins_s = [visits[0][0]], [0.0], []
    ends_s: list[float] = []  # where on the curve those under way are through

    def rise_until(time_s: float) -> None:
        while ends_s and (through_at_s := times_s[-1] + (ends_s[0] - curve_s[-1]) * len(ends_s) / speed) <= time_s:
            times_s.append(through_at_s)
            curve_s.append(heapq.heappop(ends_s))
        if time_s < math.inf:  # without active downloads the curve does not matter
            curve_s.append(curve_s[-1] + (time_s - times_s[-1]) * speed / max(1, len(ends_s)))
            times_s.append(time_s)

    for requested_s, length_s in visits:
        rise_until(requested_s)
        begins_s.append(curve_s[-1])
        heapq.heappush(ends_s, curve_s[-1] + length_s)
    rise_until(math.inf)
    return times_s, curve_s, begins_s


def on_ideal_link(downloads: Downloads, step_s: float = 0.05) -> Downloads:
    """The same arrivals on a link that shares its rate exactly; the difference is due to the transport alone."""
    times = ideal_arrivals_s(downloads.visits, downloads.speed, step_s)
    arrivals = dict(zip(downloads.visits, times, strict=True))
    sessions = [session if session.blocked else _ideal(session, arrivals) for session in downloads.sessions]
    return replace(downloads, sessions=tuple(sessions))


def _ideal(session: VideoSession, arrivals: dict[Visit, tuple[Floats, Floats]]) -> VideoSession:
    times_s, contents_s = arrivals[session.requested_s, session.length_s]
    return replace(session, times_s=times_s, contents_s=contents_s)
