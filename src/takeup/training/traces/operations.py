"""Traces of operations of a pipeline-parallel job: the duration of every forward and backward, from a Parquet file.

The columns are those of ByteDance's StragglerAnalysis (OSDI 2025): `dp_rank`, `stage`, `step`, `optype`, `start_ts`,
`duration`, `mb_id`. Rows of other operations than `forward-compute` and `backward-compute` are ignored.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.core.limits import MOST_COUNT
from takeup.core.trace import TraceColumn, read_table
from takeup.errors import BadTrace

COLUMNS = (
    *(TraceColumn(name, "int") for name in ("dp_rank", "stage", "step", "mb_id")),
    TraceColumn("optype", "text"),
    *(TraceColumn(name, "float", required=False) for name in ("start_ts", "duration")),
)
KINDS = ("forward-compute", "backward-compute")


@dataclass(frozen=True, slots=True, eq=False)
class OperationTrace:
    """Durations in seconds by step, replica, stage, micro-batch and kind (forward, backward).

    `orders[stage]` has the operations of a stage in the order in which it ran them, as rows of micro-batch and kind.
    """

    durations_s: Floats
    orders: tuple[Ints, ...]
    num_incomplete: int = 0  # steps that were left out because operations are missing


def load_operations(path: Path) -> OperationTrace:
    """Read a trace; steps in which an operation is missing are left out."""
    try:
        table = read_table(path, COLUMNS)
    except BadTrace as error:
        expected = ", ".join(column.name for column in COLUMNS)
        raise BadTrace(path, f"is no trace of operations ({error}); expected Parquet with {expected}") from error
    kinds = table["optype"].astype(str)
    chosen = np.isin(kinds, KINDS)
    if not chosen.any():
        raise BadTrace(path, f"has no operation {' or '.join(KINDS)}; its optypes are {', '.join(sorted(set(kinds)))}")
    columns = [table[name][chosen] for name in ("step", "dp_rank", "stage", "mb_id")]
    places = [np.unique(column, return_inverse=True) for column in columns]
    index = (*(place.reshape(-1) for _, place in places), (kinds[chosen] == KINDS[1]).astype(np.int64))
    shape = (*(len(values) for values, _ in places), len(KINDS))
    if math.prod(shape) > MOST_COUNT + 100 * len(kinds):
        raise BadTrace(path, f"has {len(kinds)} rows for {math.prod(shape)} operations; copy all of it")
    durations_s, starts_s = np.full((2, *shape), np.nan)
    durations_s[index], starts_s[index] = (table[name][chosen] for name in ("duration", "start_ts"))
    whole = np.isfinite(durations_s).all(axis=(1, 2, 3, 4)) & (durations_s > 0).all(axis=(1, 2, 3, 4))
    if not whole.any():
        raise BadTrace(path, "has no step with all operations of all replicas, stages and micro-batches")
    return OperationTrace(durations_s[whole], _orders(starts_s[whole]), int((~whole).sum()))


def _orders(starts_s: Floats) -> tuple[Ints, ...]:
    """By stage: micro-batch and kind in the order of the first step on the first replica."""
    num_microbatches = starts_s.shape[3]
    flat = (np.argsort(stage.reshape(-1), kind="stable") for stage in starts_s[0, 0])
    return tuple(np.stack(np.unravel_index(each, (num_microbatches, len(KINDS))), axis=1) for each in flat)
