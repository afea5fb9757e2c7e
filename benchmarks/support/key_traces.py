"""Key traces for benchmarks and tests: Zipf requests, and files in the oracleGeneral format of libCacheSim."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.caching.traces.key_trace import RECORD

Keys = npt.NDArray[np.integer[Any]]


def zipf_keys(num_requests: int, num_objects: int, alpha: float, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Independent requests where the object of rank r, its key, has weight r**-alpha."""
    bounds = np.cumsum(np.arange(1, num_objects + 1, dtype=np.float64) ** -alpha)
    ranks: npt.NDArray[np.int64] = np.searchsorted(bounds, rng.random(num_requests) * bounds[-1], side="right")
    return ranks + 1


def write_oracle_general(path: Path | str, keys: Keys, size_bytes: Keys | int = 1) -> None:
    """One record for each request; a name that ends in `.gz` is compressed."""
    records = np.zeros(len(keys), RECORD)
    records["id"] = keys
    records["size_bytes"] = size_bytes
    records["next"] = next_requests(keys)
    data = records.tobytes()
    Path(path).write_bytes(gzip.compress(data) if str(path).lower().endswith(".gz") else data)


def next_requests(keys: Keys) -> npt.NDArray[np.int64]:
    """The index of the next request for the same key, or -1."""
    order = np.argsort(keys, kind="stable")
    following = np.full(len(keys), -1, np.int64)
    is_same = keys[order[1:]] == keys[order[:-1]]
    following[order[:-1][is_same]] = order[1:][is_same]
    return following
