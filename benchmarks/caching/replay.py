"""Replay of key traces and job graphs, measured: `python -m benchmarks.caching replay [--json]`.

Key traces run from the file to the miss ratio, ours and libCacheSim's Python package with the best size of its hash
table, in CPU time. Prints one report with a verdict for every bar. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.caching.job_graphs import measure_jobs
from benchmarks.peers import libcachesim as peer
from benchmarks.support.dated import options_of, publish, versions
from benchmarks.support.key_traces import RECORD, workload_of_keys, write_oracle_general, zipf_keys
from takeup.caching.model import CachingResult, EngineModel
from takeup.caching.policies import find_policy
from takeup.caching.simulate.compiled.replay import replay
from takeup.core.report import Check, Column, Report, Table

SEED = 0
NUM_REQUESTS = 2_000_000
NUM_OBJECTS = 219_000
ALPHA = 0.91
CACHE_SIZE = 20_000
NUM_REPEATS = 3
COLUMNS = (
    Column("policy"),
    Column("ours", "M req/cpu s", 2),
    Column("libcachesim", "M req/cpu s", 2),
    Column("ratio", "", 2),
    Column("our miss ratio", "", 4),
    Column("theirs", "", 4),
)
NOTE = (
    "One run from the file to the miss ratio. libcachesim has its best hash table, one of the size of the cache. "
    "It is the tool for key traces; here they show that the kernels of job graphs decide as it does."
)


def replay_file(policy: str, path: Path) -> tuple[float, CachingResult]:
    """CPU seconds of the best of several runs, and the result."""
    cpu_s = []
    for _ in range(NUM_REPEATS):
        began_s = time.process_time()
        result = replay(find_policy(policy), workload_of_keys(np.fromfile(path, RECORD)["id"]), EngineModel(CACHE_SIZE))
        cpu_s.append(time.process_time() - began_s)
    return min(cpu_s), result


def policy_row(policy: str, path: Path) -> tuple[str, float, float, float, float, float]:
    """Both programs under one policy; libCacheSim's Belady refuses blocks that come too late."""
    cpu_s, result = replay_file("belady-admission" if policy == "belady" else policy, path)
    theirs = peer.run_peer(policy, path, CACHE_SIZE, tuned=True, num_repeats=NUM_REPEATS)
    rates = NUM_REQUESTS / cpu_s / 1e6, NUM_REQUESTS / theirs.whole_cpu_s / 1e6
    return policy, *rates, rates[0] / rates[1], 1 - result.hit_share, theirs.miss_share


def measure(folder: Path) -> Report:
    """Run everything and report it."""
    path = folder / "zipf.oracleGeneral"
    write_oracle_general(path, zipf_keys(NUM_REQUESTS, NUM_OBJECTS, ALPHA, np.random.default_rng(SEED)))
    rows = tuple(policy_row(policy, path) for policy in peer.PEERS)
    jobs_table, jobs_check = measure_jobs(SEED)
    checks = [Check.near(f"{row[0]}: miss ratio", row[4], row[5], 5e-5, source="measured") for row in rows]
    command = "python -m benchmarks.caching replay"
    return Report(
        title="Caching: replay of key traces and job graphs",
        domain="caching",
        scenario={"command": command, "num_requests": NUM_REQUESTS, "alpha": ALPHA, "cache_size": CACHE_SIZE},
        seed=SEED,
        tables=(Table("Key trace, from file to miss ratio", COLUMNS, rows, NOTE), jobs_table),
        checks=(*checks, jobs_check),
        notes=(
            f"Command: {command}. Versions: {versions(('takeup', 'numba', 'numpy', 'libcachesim'))}.",
            f"Trace: Zipf {ALPHA}, {NUM_REQUESTS} requests for {NUM_OBJECTS} objects of size one, "
            f"cache of {CACHE_SIZE}, seed {SEED}. Rates are of CPU time, best of {NUM_REPEATS}.",
        ),
    )


def main() -> int:
    options = options_of(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder))
    return publish(report, "caching", options)
