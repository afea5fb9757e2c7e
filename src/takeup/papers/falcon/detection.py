"""Causes, detection tables by both metrics, and iterations found in calls."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from takeup.core.report import Cell, Check, Column, Table
from takeup.core.seeds import Streams
from takeup.papers import Findings
from takeup.training.stragglers.detect.change_points import ChangePointDetector, OnlineChangePoints, SlidingWindow
from takeup.training.stragglers.locate.matching import find_marker, period_by_autocorrelation
from takeup.training.traces.slowdowns import (
    SITES,
    Alarm,
    DetectionScore,
    IterationStream,
    draw_stream,
    draw_streams,
    score_of,
)

Numbers: TypeAlias = dict[str, Any]
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
    checks = (
        Check.near(
            "period by autocorrelation, 25 iterations", _optional_float(found[25, False][0]), 4.0, 0.0, source="bar"
        ),
        Check.near("by anchors, 10 iterations", _optional_float(found[10, False][1]), 10.0, 0.0, source="bar"),
        Check.near(
            "by anchors, 120 iterations with other calls",
            _optional_float(found[120, True][1]),
            120.0,
            0.0,
            source="bar",
        ),
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
