"""What accelerations cost on the trained forms of takeup/scenes, and how often the reported error of an edit is enough.

Edits from templates are made beside exact ones, with masks of five kinds. `PIXEL_ERROR` is fitted to the first half of
the images; its coverage is told of the other half, with other images, prompts and seeds, also under a bound.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.dated import options_of, publish
from takeup.core.report import Check, Column, Table
from takeup.scenes import models, quality
from takeup.serving.editing.masked.edit_state import PIXEL_ERROR, active_edit
from takeup.serving.editing.masked.editor import report_of

KINDS = ((0.05, "box", 1.0), (0.1, "ellipse", 1.0), (0.2, "box", 0.7), (0.3, "ellipse", 1.0), (0.45, "box", 0.7))
LEVEL, LEAST_COVERED, MOST_COVERED = 0.92, 0.88, 0.95
BOUND = 0.03
NETWORK = {"sdxl": "UNet2DConditionModel", "flux": "FluxTransformer2DModel"}
Points = Any
"""Rows of: share of the mask, measured error, true error, reported error."""


def measured(painter: quality.Painter, pipeline: Any, **how: Any) -> Points:
    """All kinds of edits of one set of images."""
    found = []
    for number, (share, shape, strength) in enumerate(KINDS):
        here = replace(painter, seed=painter.seed + 1000 * number)
        with quality.editing(here, pipeline) as editor:
            editor.fill(share, strength)
            asked = quality.edit_set(here, share, mask_shape=shape)
            made, runs = editor.edited(asked, strength, **how)
            exact, _ = editor.edited(asked, strength, exact=True)
        for run, one, other, mask in zip(runs, made, exact, asked.masks, strict=True):
            error = max((float(error) for error in active_edit(run).errors), default=0.0)
            true = float(np.sqrt(np.mean((one - other)[:, mask] ** 2)))
            found.append((share, error, true, report_of(run).error or 0.0))
    return np.array(found)


def fitted(points: Points) -> tuple[float, float]:
    """Factor and power: the power by least squares of logarithms, the factor such that 92 % lie below."""
    error, true = np.maximum(points[:, 1], 1e-9), np.maximum(points[:, 2], 1e-9)
    power = float(np.clip(np.polyfit(np.log(error), np.log(true), 1)[0], 0.3, 1.5))
    rank = min(int(np.ceil((len(points) + 1) * LEVEL)), len(points))
    return float(np.sort(true / error**power)[rank - 1]), power


def covered(points: Points) -> float:
    """The share of edits whose true error is at most what was reported."""
    return float(np.mean(points[:, 2] <= points[:, 3] + 1e-9))


def rows(painter: quality.Painter, only: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Rows of the table of accelerations; one that cannot be made is told and left out."""
    for name, make in quality.rows_of(painter).items():
        if only and not any(word in name for word in only):
            continue
        began = time.perf_counter()
        try:
            row = make().row(name)
        except Exception as problem:  # the others go on
            print(f"{name}: not made: {problem!r}", flush=True)
            continue
        print(row, f"{time.perf_counter() - began:.1f} s", flush=True)
        yield row


def calibration(painter: quality.Painter) -> tuple[tuple[Table, ...], tuple[Check, ...], dict[str, Any]]:
    """The fit, its coverage on other images by mask, and under a bound."""
    pipeline, kind = painter.pipeline(), NETWORK[painter.family]
    first = measured(painter, pipeline)
    PIXEL_ERROR[kind] = fitted(first)
    others = replace(painter, seed=painter.seed + 100_000)
    second, bounded = measured(others, pipeline), measured(others, pipeline, max_error=BOUND)
    lines: list[tuple[Any, ...]] = [
        (f"{share:.0%}", *(float(np.mean(one)) for one in part[:, 1:].T), covered(part))
        for share in np.unique(second[:, 0])
        for part in [second[second[:, 0] == share]]
    ]
    columns = Column("mask"), Column("measured", "", 4), Column("true", "", 4), Column("reported", "", 4)
    tables = Table("Errors of edits never fitted", (*columns, Column("covered", "", 3)), tuple(lines)), curve(second)
    label = "true errors at most the reported one, edits never fitted"
    checks = (
        Check.at_least(label, covered(second), LEAST_COVERED),
        Check.at_most(label, covered(second), MOST_COVERED),
        Check.at_least(f"the same with a bound of {BOUND:g}", covered(bounded), LEAST_COVERED),
        Check.at_most(f"reported with a bound of {BOUND:g}, the largest", float(bounded[:, 3].max()), BOUND),
    )
    raw = {"fit": PIXEL_ERROR[kind], "first": first.tolist(), "second": second.tolist()}
    return tables, checks, raw | {"bounded": bounded.tolist(), "covered": covered(second)}


def curve(points: Points) -> Table:
    """Fifths of the edits by what was reported."""
    order = np.argsort(points[:, 3])
    parts = [points[part] for part in np.array_split(order, 5)]
    lines = [(float(x[:, 3].mean()), float(x[:, 2].mean()), float(x[:, 2].max()), covered(x)) for x in parts]
    columns = tuple(Column(name, "", 4) for name in ("reported", "true", "largest true", "covered"))
    return Table("Reliability, by fifths of the reported error", columns, tuple(lines))


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--form", default="sdxl", choices=models.FAMILIES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--number", type=int, default=16, help="pictures of each row")
    parser.add_argument("--images", type=int, default=8, help="images of each kind of edit in each half; 0: no fit")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", action="append", default=[], help="rows whose name contains this; repeat")
    parser.add_argument("--weights", type=Path, default=models.WEIGHTS)
    parser.add_argument("--raw", type=Path, help="also write all points as JSON")
    asked = parser.parse_args()
    painter = quality.Painter(asked.form, asked.number, asked.steps, asked.device, folder=asked.weights)
    tables, checks, raw = calibration(replace(painter, number=asked.images)) if asked.images else ((), (), {})
    print({"fit": raw.get("fit"), "covered": raw.get("covered")}, flush=True)
    if asked.raw:
        asked.raw.write_text(json.dumps(raw))
    made = tuple(rows(painter, asked.only))
    if asked.raw:
        asked.raw.write_text(json.dumps(raw | {"rows": made}))
    report = quality.table_of(painter, made)
    report = replace(report, tables=(*report.tables, *tables), checks=checks)
    return publish(report, f"scenes-quality-{asked.form}", asked)
