"""Score slowdown detectors on streams with known ground truth, by the published metrics and the standard ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from takeup.core.seeds import Streams
from takeup.training.traces.slowdowns import SITES, IterationStream, SlowdownSite, draw_stream

WARM_UP = 40  # warm-up iterations that are ignored for every detector
SOONEST, LATEST = -5, 25  # an alarm within this many iterations of a change is a true positive

Alarm = tuple[int, bool]  # the iteration of the alarm, and whether it says slower
Alarms = Callable[[IterationStream], Sequence[Alarm]]


def draw_streams(
    part: str, num_jobs: int, *, seed: int = 0, num_iterations: int = 3000, hit: bool | None = None
) -> list[IterationStream]:
    """Draw jobs of all sites with the frequencies of the study; parts with different names share no draw."""
    weights = np.cumsum([site.num_jobs for site in SITES])
    return [_job(Streams(seed).child(part).stream(str(n)), weights, num_iterations, hit) for n in range(num_jobs)]


def _job(
    random: np.random.Generator, weights: npt.NDArray[np.int64], num_iterations: int, hit: bool | None
) -> IterationStream:
    site: SlowdownSite = SITES[int(np.searchsorted(weights, random.uniform(0, weights[-1]), side="right"))]
    return draw_stream(random, site, num_iterations, is_hit=hit)


@dataclass(frozen=True, slots=True)
class DetectionScore:
    """Counts per job (the published metric) and per change (the standard one), and delays in iterations."""

    num_hit: int
    num_healthy: int
    num_missed_jobs: int
    num_blamed_jobs: int
    num_found: int
    num_missed: int
    num_false: int
    num_iterations: int
    delays: tuple[int, ...]

    @property
    def accuracy(self) -> float:
        """Share of jobs classified correctly as slow or healthy."""
        return 1 - (self.num_missed_jobs + self.num_blamed_jobs) / max(1, self.num_hit + self.num_healthy)

    @property
    def published_fpr(self) -> float:
        """False positives / (healthy jobs + false positives): the denominator of the published tables."""
        return self.num_blamed_jobs / max(1, self.num_healthy + self.num_blamed_jobs)

    @property
    def published_fnr(self) -> float:
        """False negatives / (slow jobs + false negatives), as in the published tables."""
        return self.num_missed_jobs / max(1, self.num_hit + self.num_missed_jobs)

    @property
    def precision(self) -> float:
        """Share of alarms that are correct."""
        return self.num_found / max(1, self.num_found + self.num_false)

    @property
    def recall(self) -> float:
        """Share of changes that are detected."""
        return self.num_found / max(1, self.num_found + self.num_missed)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.num_found / max(1, 2 * self.num_found + self.num_false + self.num_missed)

    @property
    def delay(self) -> float | None:
        """Median detection delay in iterations; None if nothing was detected."""
        return float(median(self.delays)) if self.delays else None

    @property
    def false_alarms(self) -> float:
        """False alarms per ten thousand iterations."""
        return 1e4 * self.num_false / max(1, self.num_iterations)


def score_of(alarms: Alarms, streams: Sequence[IterationStream]) -> DetectionScore:
    """Run a detector over all streams and count."""
    hit = healthy = missed_jobs = blamed_jobs = found = missed = false = 0
    delays: list[int] = []
    for stream in streams:
        given = _since_slow([alarm for alarm in alarms(stream) if alarm[0] >= WARM_UP])
        pairs, wrong = _matched(stream.truth, given)
        onsets = [truth for truth, _ in pairs if truth[1]]
        is_hit = any(slower for _, slower in stream.truth)
        hit, healthy = hit + is_hit, healthy + (not is_hit)
        missed_jobs += is_hit and not onsets
        blamed_jobs += not is_hit and any(slower for _, slower in wrong)
        found, missed, false = found + len(pairs), missed + len(stream.truth) - len(pairs), false + len(wrong)
        delays += [alarm[0] - truth[0] for truth, alarm in pairs]
    num_iterations = sum(len(stream.iterations_s) for stream in streams)
    return DetectionScore(hit, healthy, missed_jobs, blamed_jobs, found, missed, false, num_iterations, tuple(delays))


def _since_slow(given: Sequence[Alarm]) -> list[Alarm]:
    """Drop recovery alarms before the first slow one: they mark the end of a long warm-up."""
    first = next((place for place, (_, slower) in enumerate(given) if slower), len(given))
    return list(given[first:])


def _matched(truth: Sequence[Alarm], given: Sequence[Alarm]) -> tuple[list[tuple[Alarm, Alarm]], list[Alarm]]:
    """Matched pairs of change and alarm, and alarms without a change."""
    left, pairs = list(given), list[tuple[Alarm, Alarm]]()
    for change in truth:
        fits = [a for a in left if a[1] == change[1] and SOONEST <= a[0] - change[0] <= LATEST]
        if fits:
            left.remove(fits[0])
            pairs.append((change, fits[0]))
    return pairs, left
