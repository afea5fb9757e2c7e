"""Traces of operations of a pipeline-parallel job: the duration of every forward and backward, from a Parquet file.

The columns are those of ByteDance's StragglerAnalysis (OSDI 2025): `dp_rank`, `stage`, `step`, `optype`, `start_ts`,
`duration`, `mb_id`. Rows of other operations than `forward-compute` and `backward-compute` are ignored.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.core.extras import need
from takeup.errors import BadTrace

COLUMNS = ("dp_rank", "stage", "step", "mb_id", "optype", "start_ts", "duration")
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
    need("a trace in Parquet", "traces")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=list(COLUMNS))
    except (OSError, pa.ArrowException) as error:
        message = str(error).splitlines()[0]
        raise BadTrace(
            path, f"is no trace of operations ({message}); expected Parquet with {', '.join(COLUMNS)}"
        ) from error
    kinds = np.array([str(each) for each in table["optype"].to_pylist()])
    chosen = np.isin(kinds, KINDS)
    if not chosen.any():
        raise BadTrace(path, f"has no operation {' or '.join(KINDS)}; its optypes are {', '.join(sorted(set(kinds)))}")
    columns = [table[name].to_numpy()[chosen] for name in ("step", "dp_rank", "stage", "mb_id")]
    places = [np.unique(column, return_inverse=True) for column in columns]
    index = (*(place.reshape(-1) for _, place in places), (kinds[chosen] == KINDS[1]).astype(np.int64))
    shape = (*(len(values) for values, _ in places), len(KINDS))
    durations_s, starts_s = np.full((2, *shape), np.nan)
    durations_s[index], starts_s[index] = (table[name].to_numpy()[chosen] for name in ("duration", "start_ts"))
    whole = np.isfinite(durations_s).all(axis=(1, 2, 3, 4)) & (durations_s > 0).all(axis=(1, 2, 3, 4))
    if not whole.any():
        raise BadTrace(path, "has no step with all operations of all replicas, stages and micro-batches")
    return OperationTrace(durations_s[whole], _orders(starts_s[whole]), int((~whole).sum()))


def _orders(starts_s: Floats) -> tuple[Ints, ...]:
    """By stage: micro-batch and kind in the order of the first step on the first replica."""
    num_microbatches = starts_s.shape[3]
    flat = (np.argsort(stage.reshape(-1), kind="stable") for stage in starts_s[0, 0])
    return tuple(np.stack(np.unravel_index(each, (num_microbatches, len(KINDS))), axis=1) for each in flat)
