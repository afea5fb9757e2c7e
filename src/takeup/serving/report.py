"""Report of a queue simulation: latency, queueing, images per GPU-minute, and LoRA loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from takeup.core.report import Cell, Column, Report, Series, Table
from takeup.serving.traffic import QueueOutcome

PERCENTS = (50, 95, 99)
LATENCY_COLUMNS = (
    Column("rate", "1/s", digits=2),
    Column("design"),
    Column("GPUs"),
    Column("mean", "s", digits=2),
    *(Column(f"p{percent}", "s", digits=2) for percent in PERCENTS),
    Column("queueing", "s", digits=2),
    Column("queueing p99", "s", digits=2),
    Column("done", "%", digits=1),
)
WORK_COLUMNS = (
    Column("rate", "1/s", digits=2),
    Column("design"),
    Column("images", "1/GPU-minute", digits=2),
    Column("busy", "%", digits=1),
    Column("rows", digits=2),
    Column("loads", "1/request"),
    Column("complete", "%", digits=1),
    Column("most waiting"),
)
NOTE = "latency of images that were made; queueing: until the first step; done: neither refused nor expired"
WORK_NOTE = (
    "images: for a GPU-minute in which the GPU was taken; rows: of a call, on average; loads: LoRAs that were not in "
    "memory; complete: requests that had to load none"
)


@dataclass(frozen=True, slots=True)
class RatePoint:
    """The outcome of one design at one arrival rate."""

    rate_per_s: float
    outcome: QueueOutcome


def queue_report(points: Sequence[RatePoint], title: str, scenario: Mapping[str, object], seed: int) -> Report:
    """Tables of request latency and GPU utilisation, and a chart of latency by arrival rate."""
    tables = (
        Table("What requests feel", LATENCY_COLUMNS, tuple(map(_latency_row, points)), NOTE),
        Table("What GPUs do", WORK_COLUMNS, tuple(map(_work_row, points)), WORK_NOTE),
    )
    return Report(title, "serving", scenario, seed, tables, _charts(points))


def _latency_row(point: RatePoint) -> tuple[Cell, ...]:
    outcome, done = point.outcome, point.outcome.done
    latencies, queueing = [one.latency_s for one in done], [one.queueing_s for one in done]
    return (
        point.rate_per_s,
        outcome.design,
        outcome.num_gpus,
        _mean(latencies),
        *(_percentile(latencies, percent) for percent in PERCENTS),
        _mean(queueing),
        _percentile(queueing, 99),
        100 * len(done) / max(1, len(outcome.served)),
    )


def _work_row(point: RatePoint) -> tuple[Cell, ...]:
    outcome = point.outcome
    whole_s = max((one.end_s for one in outcome.served), default=0.0) * outcome.num_gpus
    return (
        point.rate_per_s,
        outcome.design,
        outcome.images_per_gpu_minute,
        100 * outcome.busy_s * outcome.gpus_per_instance / whole_s if whole_s else None,
        outcome.num_call_rows / outcome.num_calls if outcome.num_calls else None,
        outcome.loads_per_request,
        100 * outcome.complete_share,
        outcome.num_most_waiting,
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _percentile(values: Sequence[float], percent: int) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def _charts(points: Sequence[RatePoint]) -> tuple[Series, ...]:
    rows: list[dict[str, Cell]] = []
    for point in points:
        latencies = [one.latency_s for one in point.outcome.done]
        for percent in PERCENTS:
            value = _percentile(latencies, percent)
            if value is not None:
                rows.append(_chart_row(point, f"p{percent}", value))
    if len({point.rate_per_s for point in points}) > 1:
        return (Series("Latency", "rate", "latency", tuple(rows), "design", "share", x_unit="1/s", y_unit="s"),)
    return (Series("Latency", "design", "latency", tuple(rows), "design", "share", y_unit="s", kind="bar"),)


def _chart_row(point: RatePoint, share: str, value: float) -> dict[str, Cell]:
    return {"rate": point.rate_per_s, "design": point.outcome.design, "share": share, "latency": value}
