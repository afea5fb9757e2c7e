"""A throughput log in memory: its samples, its measurements, and the sessions of a player that reported them."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from takeup.core.arrays import Floats

OUTAGE_SHARE = 0.05  # of the mean rate; a long sample below it is an outage
GAP_S, GAP_SAMPLES = 30.0, 20.0  # a sample that lasts longer, and this many times the median, is a gap in the log


@dataclass(frozen=True, slots=True, eq=False)
class PlayedSession:
    """A session that a player reports: content and download time of its segments (nan if unknown), and its stalls."""

    name: str
    content_s: Floats
    took_s: Floats
    num_stalls: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the session can be played again and compared with its stalls."""
        return self.num_stalls is not None and bool(np.isfinite(self.content_s + self.took_s).all())


@dataclass(frozen=True, slots=True, eq=False)
class ThroughputLog:
    """Samples of one or several measurements, one after the other; `starts` are the places where one begins.

    `form` says as what the file was read, with units.
    """

    name: str
    durations_s: Floats
    rates_bps: Floats
    starts: tuple[int, ...] = (0,)
    form: str = ""
    sessions: tuple[PlayedSession, ...] = ()

    @property
    def duration_s(self) -> float:
        return float(self.durations_s.sum())

    @property
    def mean_bps(self) -> float:
        return float(self.durations_s @ self.rates_bps / self.durations_s.sum())

    def per_second(self) -> list[Floats]:
        """The mean rate of every whole second, one array for each measurement."""
        bounds = [*self.starts, len(self.rates_bps)]
        spans = [slice(begin, end) for begin, end in pairwise(bounds)]
        return [_per_second(self.durations_s[span], self.rates_bps[span]) for span in spans]


def _per_second(durations_s: Floats, rates_bps: Floats) -> Floats:
    times_s = np.concatenate(([0.0], np.cumsum(durations_s)))
    bits = np.concatenate(([0.0], np.cumsum(durations_s * rates_bps)))
    return np.diff(np.interp(np.arange(math.floor(times_s[-1]) + 1), times_s, bits))


def split_at_gaps(log: ThroughputLog) -> ThroughputLog:
    """A sample across a gap lasts as long as the others, and the next one begins a new measurement.

    For logs of moments: nothing says that the link kept its rate until the next one. A link that stood still did.
    """
    if len(log.rates_bps) == 0:
        return log
    usual_s = median_s(log.durations_s)
    works = log.rates_bps > OUTAGE_SHARE * log.rates_bps.mean()
    gaps = np.flatnonzero(works & (log.durations_s > max(GAP_S, GAP_SAMPLES * usual_s)))
    if len(gaps) == 0:
        return log
    durations_s = log.durations_s.copy()
    durations_s[gaps] = usual_s
    starts = sorted({*log.starts, *(int(gap) + 1 for gap in gaps if gap + 1 < len(durations_s))})
    form = f"{log.form}; {len(gaps)} gaps in time left out"
    return replace(log, durations_s=durations_s, starts=tuple(starts), form=form)


def quantiles(values: Floats, shares: Floats) -> Floats:
    """As `np.quantile`, which imports masked arrays for a tenth of a second."""
    return np.interp(shares * (len(values) - 1), np.arange(len(values)), np.sort(values))


def median_s(durations_s: Floats) -> float:
    """The median; one second if there is none."""
    return float(quantiles(durations_s, np.array([0.5]))[0]) if len(durations_s) else 1.0


def joined(name: str, pieces: list[tuple[Floats, Floats]], form: str) -> ThroughputLog:
    """Durations and rates of several measurements as one log."""
    durations_s, rates_bps = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    starts = np.concatenate(([0], np.cumsum([len(each) for each, _ in pieces])))[:-1]
    return ThroughputLog(name, durations_s, rates_bps, tuple(starts.tolist()), form)
