"""Causes, detection tables by both metrics, and iterations found in calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.core.report import Cell, Check, Column, Table
from takeup.core.seeds import Streams
from takeup.papers import Findings, Numbers
from takeup.papers.falcon.published import (
    period_by_autocorrelation,
    run_length_probabilities,
    sliding_window_alarms,
)
from takeup.papers.falcon.slowdowns import (
    SITES,
    IterationStream,
    SlowdownSite,
    draw_stream,
)
from takeup.training.stragglers.detect.change_points import ChangePointDetector
from takeup.training.stragglers.detect.kernels import RunPrior, initial_run_lengths
from takeup.training.stragglers.locate.matching import find_marker

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


# Detectors as published, for comparison: Bayesian online change points with verification, and a sliding window --------
#
# Read literally, the paper declares a change when the probability that the run length is zero exceeds 0.9; with a
# constant hazard that probability is the hazard, so it never does. Read in hindsight, a change is declared when the
# probability that the run began a few points ago exceeds 0.9. A change is verified if the means of the points before
# and after it differ by a tenth.

MOST_PUBLISHED_RUNS = 300


@dataclass(frozen=True, slots=True)
class OnlineChangePoints:
    """Bayesian online change points on logarithms; `is_literal` applies the rule as it is printed."""

    is_literal: bool = False
    verify: bool = True
    least_probability: float = 0.9
    num_after: int = 3
    hazard: float = 1 / 250
    spread: float = 0.03
    least_ratio: float = 0.1

    def alarms(self, times_s: Floats) -> list[Alarm]:
        logs = np.log(times_s)
        fresh, near = np.zeros((2, len(logs)))
        prior = RunPrior(float(np.median(logs[:20])), 0.1, 2.0, 2 * self.spread**2, self.hazard)
        run_length_probabilities(prior, initial_run_lengths(MOST_PUBLISHED_RUNS), logs, self.num_after, fresh, near)
        declared = np.flatnonzero((fresh if self.is_literal else near) >= self.least_probability)
        found, began = list[Alarm](), 0
        for point in declared.tolist():
            start = point - self.num_after + 1
            if start - began > self.num_after:
                ratio = verify_change(times_s, began, start, point + 1)
                began = start
                if not self.verify or abs(ratio) > self.least_ratio:
                    found.append((point, ratio > 0))
        return found


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """The median of the last few points against that of those before them: more than a tenth is a change."""

    num_now: int = 5
    num_before: int = 20
    least_ratio: float = 0.1

    def alarms(self, times_s: Floats) -> list[Alarm]:
        """All alarms of a stream; the window restarts after each."""
        slower = np.zeros(len(times_s), np.int64)
        sliding_window_alarms(times_s, self.num_now, self.num_before, self.least_ratio, slower)
        return [(int(point), bool(slower[point] > 0)) for point in np.flatnonzero(slower)]


def verify_change(times_s: Floats, began: int, start: int, end: int) -> float:
    """Mean of the points from `start` less that of the points before, as a share of the larger; signed."""
    before, after = times_s[began:start].mean(), times_s[start:end].mean()
    return float((after - before) / max(after, before))


# Tables --------------------------------------------------------------------------------------------------------------

CAUSES = ("none", "cpu_contention", "gpu_degradation", "network_congestion", "several")


def causes(expected: Numbers) -> Findings:
    """Number of jobs hit by each cause, and number of drawn jobs that are hit."""
    part, seed = expected["causes"], expected["setting"]["seed"]
    rows: list[tuple[Cell, ...]] = [(cause.replace("_", " "), *part[cause], *([None] * len(SITES))) for cause in CAUSES]
    checks, shares = [], []
    for site, num_jobs, num_healthy in zip(SITES, part["jobs"], part["none"], strict=True):
        random = Streams(seed).stream(f"causes {site.name}")
        hit = [bool(draw_stream(random, site, 300).truth) for _ in range(400)]
        theirs, ours = 100 * (1 - num_healthy / num_jobs), 100 * float(np.mean(hit))
        shares.append((theirs, ours))
        tolerance = part["tolerance_percent"]
        checks.append(Check.near(f"jobs that are hit, {site.name}", ours, theirs, tolerance, unit="%"))
    rows.append(("hit, in percent", *(theirs for theirs, _ in shares), *(ours for _, ours in shares)))
    names = part["sites"]
    columns = (
        Column("cause"),
        *(Column(f"{name}, paper", digits=1) for name in names),
        *(Column(f"{name}, drawn", digits=1) for name in names),
    )
    return Findings(tuple(checks), (Table("What jobs are hit by (Table 1)", columns, tuple(rows)),))


def printed_tables(expected: Numbers) -> Findings:
    """The printed rates recomputed from their counts, and what the standard definitions would give."""
    part = expected["detection"]
    rows: list[tuple[Cell, ...]] = []
    checks = []
    for number, what in enumerate(part["what"]):
        healthy, slow, fp, fn = (part[key][number] for key in ("healthy", "slow", "false_positives", "false_negatives"))
        ours = {
            "accuracy": 100 * (1 - (fp + fn) / (healthy + slow)),
            "fpr": 100 * fp / max(1, healthy + fp),
            "fnr": 100 * fn / max(1, slow + fn),
        }
        rows.append((what, *ours.values(), 100 * fp / healthy, 100 * fn / slow))
        checks += [
            Check.near(f"{what}, {name}", value, part[name][number], 0.06, unit="%") for name, value in ours.items()
        ]
    names = ("accuracy", "FPR, printed", "FNR, printed", "FPR, usual", "FNR, usual")
    columns = (Column("detector"), *(Column(name, "%", 2) for name in names))
    note = "printed: FP / (healthy + FP) and FN / (slow + FN); usual: FP / healthy and FN / slow"
    return Findings(tuple(checks), (Table("Detection as printed (Tables 4 and 5)", columns, tuple(rows), note),))


def our_alarms(stream: IterationStream) -> Sequence[Alarm]:
    """Our detector."""
    return [(change.declared, change.is_onset) for change in ChangePointDetector().see(stream.iterations_s)]


DETECTORS: dict[str, Callable[[IterationStream], Sequence[Alarm]]] = {
    "ours": our_alarms,
    "BOCD+V, as printed": lambda stream: OnlineChangePoints(is_literal=True).alarms(stream.iterations_s),
    "BOCD, in hindsight": lambda stream: OnlineChangePoints(verify=False, num_after=8).alarms(stream.iterations_s),
    "BOCD+V, in hindsight": lambda stream: OnlineChangePoints(num_after=8).alarms(stream.iterations_s),
    "sliding window": lambda stream: SlidingWindow().alarms(stream.iterations_s),
}


def drawn_jobs(expected: Numbers) -> Findings:
    """The same detectors and ours on drawn jobs, by both metrics."""
    setting, bar = expected["setting"], expected["detection_bar"]
    settings = {"seed": setting["seed"], "num_iterations": setting["num_iterations"]}
    streams = [
        *draw_streams("reproduction", setting["num_jobs"], **settings),
        *draw_streams("reproduction hit", setting["num_jobs"], hit=True, **settings),
    ]
    scores = {name: score_of(alarms, streams) for name, alarms in DETECTORS.items()}
    found, others = scores["ours"], [score.f1 for name, score in scores.items() if name != "ours"]
    checks = (
        Check.at_least("ours, accuracy over jobs", 100 * found.accuracy, bar["accuracy_percent"], unit="%"),
        Check.at_least("ours, precision", found.precision, bar["precision"]),
        Check.at_least("ours, recall", found.recall, bar["recall"]),
        Check.at_most("ours, median delay", found.delay, bar["delay"], unit="iterations"),
        Check.at_least("ours, F1 over the best of the others", found.f1 / max(others), 1.0, unit="times"),
        Check.at_most("alarms of the rule as printed", float(_num_alarms(scores["BOCD+V, as printed"])), 0.0),
    )
    return Findings(checks, (_score_table(scores, len(streams)),))


def _num_alarms(score: DetectionScore) -> int:
    return score.num_found + score.num_false


def _score_table(scores: dict[str, DetectionScore], num_jobs: int) -> Table:
    percents = ("accuracy", "FPR, printed form", "FNR, printed form")
    columns = (
        Column("detector"),
        *(Column(name, "%", 1) for name in percents),
        *(Column(name, digits=3) for name in ("precision", "recall", "F1")),
        Column("delay", "iterations", 1),
        Column("false alarms in 10,000", digits=2),
    )
    rows = tuple(
        (
            name,
            *(100 * share for share in (score.accuracy, score.published_fpr, score.published_fnr)),
            *(score.precision, score.recall, score.f1, score.delay, score.false_alarms),
        )
        for name, score in scores.items()
    )
    note = "accuracy and rates count jobs; precision, recall and F1 count changes, both onset and relief"
    return Table(f"Detection on {num_jobs} drawn jobs", columns, rows, note)


def iterations(expected: Numbers) -> Findings:
    """Number of iterations of calls that are needed, and the effect of an occasional call."""
    part = expected["iterations"]
    rows: list[tuple[Cell, ...]] = []
    found: dict[tuple[int, bool], tuple[int | None, int | None]] = {}
    for num, has_sporadic in ((10, False), (25, False), (120, False), (120, True)):
        calls = _collective_calls(num, has_sporadic)
        lag = period_by_autocorrelation(calls, most_lags=part["most_lags"], least=part["least_autocorrelation"])
        clock = find_marker(calls)
        found[num, has_sporadic] = lag, None if clock is None else clock.num_iterations
        rows.append((num, has_sporadic, lag, found[num, has_sporadic][1]))
    exact = {
        "period by autocorrelation, 25 iterations": (found[25, False][0], 4.0),
        "by anchors, 10 iterations": (found[10, False][1], 10.0),
        "by anchors, 120 iterations with other calls": (found[120, True][1], 120.0),
    }
    checks = (
        *(Check.near(name, _optional_float(ours), one, 0.0, source="bar") for name, (ours, one) in exact.items()),
        Check.at_most("autocorrelation found a period there", float(found[120, True][0] is not None), 0.0),
    )
    columns = (
        Column("iterations"),
        Column("a call in every tenth"),
        Column("calls in an iteration, by autocorrelation"),
        Column("iterations, by anchors"),
    )
    return Findings(checks, (Table("Iterations found in four calls each", columns, tuple(rows)),))


def _optional_float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _collective_calls(num: int, has_sporadic: bool) -> np.typing.NDArray[np.int64]:
    """Three gradient buckets and the loss; every tenth iteration has a broadcast."""
    steps = [[1, 2, 3, 4, *([8] if has_sporadic and n % 10 == 9 else [])] for n in range(num)]
    return np.array([call for step in steps for call in step], np.int64)
