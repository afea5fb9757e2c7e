"""Key traces for benchmarks and tests: Zipf requests, workloads of them, and files in the format oracleGeneral."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.caching.model import Workload

Keys = npt.NDArray[np.integer[Any]]
RECORD = np.dtype([("second", "<u4"), ("id", "<u8"), ("size_bytes", "<u4"), ("next", "<i8")])


def zipf_keys(num_requests: int, num_objects: int, alpha: float, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Independent requests where the object of rank r, its key, has weight r**-alpha."""
    bounds = np.cumsum(np.arange(1, num_objects + 1, dtype=np.float64) ** -alpha)
    ranks: npt.NDArray[np.int64] = np.searchsorted(bounds, rng.random(num_requests) * bounds[-1], side="right")
    return ranks + 1


def write_oracle_general(path: Path | str, keys: Keys, size_bytes: Keys | int = 1) -> None:
    """One record for each request."""
    records = np.zeros(len(keys), RECORD)
    records["id"] = keys
    records["size_bytes"] = size_bytes
    records["next"] = next_requests(keys)
    Path(path).write_bytes(records.tobytes())


def next_requests(keys: Keys) -> npt.NDArray[np.int64]:
    """The index of the next request for the same key, or -1."""
    order = np.argsort(keys, kind="stable")
    following = np.full(len(keys), -1, np.int64)
    is_same = keys[order[1:]] == keys[order[:-1]]
    following[order[:-1][is_same]] = order[1:][is_same]
    return following


def workload_of_keys(keys: Keys) -> Workload:
    """A task with one input of one byte for each request, on one worker in one job; source data are on disk."""
    blocks = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    num_requests, num_blocks = len(blocks), int(blocks.max(initial=-1)) + 1
    zeros = np.zeros(num_requests, np.int64)
    return Workload(
        name="keys",
        block_bytes=np.ones(num_blocks, np.int64),
        block_worker=np.zeros(num_blocks, np.int64),
        block_producer=np.full(num_blocks, -1, np.int64),
        task_job=zeros,
        task_stage=np.arange(num_requests, dtype=np.int64),
        task_worker=zeros,
        task_compute_s=np.zeros(num_requests),
        input_starts=np.arange(num_requests + 1, dtype=np.int64),
        input_blocks=blocks,
        output_starts=np.zeros(num_requests + 1, np.int64),
        output_blocks=np.zeros(0, np.int64),
        stage_after=np.full(num_requests, -1, np.int64),
        block_dataset=np.full(num_blocks, -1, np.int64),
        block_spills=np.zeros(num_blocks, np.bool_),
        block_ends=np.full(num_blocks, num_requests, np.int64),
    )
