"""How fast the caching domain replays, compared with libCacheSim: `python -m benchmarks.caching replay [--json]`.

Prints one report: rates per CPU second, miss ratios, and a verdict for every bar. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.caching.job_graphs import measure_jobs
from benchmarks.peers import libcachesim as peer
from benchmarks.support.dated import options_of, publish, versions
from takeup.caching.model import FlatTrace
from takeup.caching.simulate.compiled.flat import next_requests, replay_belady, replay_flat
from takeup.caching.simulate.compiled.flat_queues import lru_miss_curve
from takeup.caching.traces.flat import dense_ids, read_oracle_general, write_oracle_general
from takeup.caching.traces.generators import zipf_trace
from takeup.core.report import Check, Column, Report, Table

SEED = 0
NUM_REQUESTS = 2_000_000
NUM_OBJECTS = 219_000  # of which about 193,000 are requested
ALPHA = 0.91
CACHE_SIZE = 20_000
NUM_LARGE_REQUESTS = 10_000_000
NUM_REPEATS = 5

RATE_BARS = {"lru": 60.0, "sieve": 60.0, "lrc": 60.0, "min": 25.0}
RATIO_BAR, WHOLE_RATIO_BAR, CURVE_BAR, IDS_BAR, MEMORY_BAR_GB = 10.0, 3.0, 10.0, 30.0, 1.5
RATE = "M req/cpu s"

REPLAY_AND_MEASURE = """
import resource, sys
from takeup.caching.simulate.compiled.flat import replay_flat
from takeup.caching.traces.flat import read_oracle_general
trace = read_oracle_general(sys.argv[1])
for policy in sys.argv[3].split(","):
    replay_flat(policy, trace, int(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy, ours and theirs; rates in million requests per CPU second."""

    policy: str
    rate: float
    miss_share: float
    peer_rate: float | None = None
    tuned_peer_rate: float | None = None
    peer_miss_share: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.peer_rate is None else self.rate / self.peer_rate

    @property
    def tuned_ratio(self) -> float | None:
        return None if self.tuned_peer_rate is None else self.rate / self.tuned_peer_rate


def best_rate(num_requests: int, action: Callable[[], object]) -> float:
    """Million requests per CPU second in the best of several runs, after one to warm up."""
    action()
    times_s = []
    for _ in range(NUM_REPEATS):
        began_s = time.process_time()
        action()
        times_s.append(time.process_time() - began_s)
    return num_requests / min(times_s) / 1e6


def policy_row(policy: str, trace: FlatTrace, path: Path) -> PolicyRow:
    """Both programs on one policy. MIN gets its next requests as libCacheSim does: it reads them from the file."""
    rate = best_rate(len(trace.requests), _replay_of(policy, trace))
    miss_share = 1 - replay_flat(policy, trace, CACHE_SIZE).hit_share
    if policy not in peer.PEERS:
        return PolicyRow(policy, rate, miss_share)
    plain, tuned = _peer_runs(policy, path)
    peer_rate, tuned_rate = (len(trace.requests) / run.replay_cpu_s / 1e6 for run in (plain, tuned))
    return PolicyRow(policy, rate, miss_share, peer_rate, tuned_rate, plain.miss_share)


def whole_run_row(path: Path, num_requests: int) -> PolicyRow:
    """LRU from the file on disk to the hit ratio."""
    rate = best_rate(num_requests, lambda: replay_flat("lru", read_oracle_general(path), CACHE_SIZE))
    miss_share = 1 - replay_flat("lru", read_oracle_general(path), CACHE_SIZE).hit_share
    plain, tuned = _peer_runs("lru", path)
    peer_rate, tuned_rate = (num_requests / run.whole_cpu_s / 1e6 for run in (plain, tuned))
    return PolicyRow("lru, file to hit ratio", rate, miss_share, peer_rate, tuned_rate, plain.miss_share)


def _replay_of(policy: str, trace: FlatTrace) -> Callable[[], object]:
    if policy != "min":
        return lambda: replay_flat(policy, trace, CACHE_SIZE)
    following = next_requests(trace.requests)
    return lambda: replay_belady(trace.requests.view(np.uint32), trace.block_bytes, CACHE_SIZE, False, following)


def _peer_runs(policy: str, path: Path) -> tuple[peer.PeerRun, peer.PeerRun]:
    plain = peer.run_peer(policy, path, CACHE_SIZE, tuned=False, num_repeats=NUM_REPEATS)
    return plain, peer.run_peer(policy, path, CACHE_SIZE, tuned=True, num_repeats=NUM_REPEATS)


def peak_memory_gb(folder: Path) -> float:
    """Resident memory of a fresh process that reads a large file and replays it under several policies."""
    path = folder / "large.oracleGeneral"
    write_oracle_general(path, zipf_trace(NUM_LARGE_REQUESTS, 5 * NUM_OBJECTS, ALPHA, np.random.default_rng(SEED)))
    command = [sys.executable, "-c", REPLAY_AND_MEASURE, str(path), str(5 * CACHE_SIZE), "lru,s3fifo,gdsf,lrc,min"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    path.unlink()
    return int(answer.stdout) * 1024 / 1e9


def policy_table(rows: list[PolicyRow]) -> Table:
    columns = (
        Column("policy"),
        Column("ours", RATE, 1),
        Column("libcachesim", RATE, 1),
        Column("ratio", "", 1),
        Column("tuned libcachesim", RATE, 1),
        Column("ratio to tuned", "", 1),
        Column("our miss ratio", "", 4),
        Column("theirs", "", 4),
        Column("equal"),
    )
    cells = tuple(
        (
            row.policy,
            row.rate,
            row.peer_rate,
            row.ratio,
            row.tuned_peer_rate,
            row.tuned_ratio,
            row.miss_share,
            row.peer_miss_share,
            None if row.peer_miss_share is None else round(row.miss_share, 4) == round(row.peer_miss_share, 4),
        )
        for row in rows
    )
    note = (
        "Ours replays ids that are dense and in memory; libcachesim reads the file and hashes ids as it goes, so the "
        "row from the file to the hit ratio is the comparison of one whole run. `tuned` is libcachesim with a hash "
        "table of the size of the cache instead of its default."
    )
    return Table("Replay of a flat trace", columns, cells, note)


def other_rows(trace: FlatTrace, folder: Path) -> dict[str, tuple[float, str]]:
    """What has no counterpart: figure and unit by name."""
    num_requests = len(trace.requests)
    keys = np.random.default_rng(SEED).integers(1, 2**62, trace.num_blocks)[trace.requests]
    return {
        "LRU miss curve, all sizes": (best_rate(num_requests, lambda: lru_miss_curve(trace)), RATE),
        "renumbering of ids": (best_rate(num_requests, lambda: dense_ids(keys)), RATE),
        "next requests": (best_rate(num_requests, lambda: next_requests(trace.requests)), RATE),
        "min with its next requests": (
            best_rate(num_requests, lambda: replay_flat("min", trace, CACHE_SIZE)),
            RATE,
        ),
        f"peak memory, {NUM_LARGE_REQUESTS // 10**6} M requests": (peak_memory_gb(folder), "GB"),
    }


def checks_of(rows: list[PolicyRow], others: dict[str, tuple[float, str]]) -> tuple[Check, ...]:
    """Every bar with its figure."""
    *policies, whole = rows
    checks = [
        Check.at_least(f"{row.policy}: rate", row.rate, RATE_BARS[row.policy], unit=RATE)
        for row in policies
        if row.policy in RATE_BARS
    ]
    checks += [
        Check.at_least(f"{row.policy}: ratio to libcachesim", row.ratio, RATIO_BAR)
        for row in policies
        if row.ratio is not None
    ]
    checks += [
        Check.near(f"{row.policy}: miss ratio", row.miss_share, row.peer_miss_share, 5e-5, source="measured")
        for row in rows
        if row.peer_miss_share is not None
    ]
    (curve, _), (ids, _), _, _, (memory_gb, _) = others.values()
    return (
        *checks,
        Check.at_least("file to hit ratio: ratio to libcachesim", whole.ratio, WHOLE_RATIO_BAR),
        Check.at_least("LRU miss curve: rate", curve, CURVE_BAR, unit=RATE),
        Check.at_least("renumbering of ids: rate", ids, IDS_BAR, unit=RATE),
        Check.at_most("peak memory", memory_gb, MEMORY_BAR_GB, unit="GB"),
    )


def measure(folder: Path) -> Report:
    """Run everything on one trace and report it."""
    trace = zipf_trace(NUM_REQUESTS, NUM_OBJECTS, ALPHA, np.random.default_rng(SEED))
    path = folder / "zipf.oracleGeneral"
    keys = np.random.default_rng(SEED).integers(1, 2**62, trace.num_blocks).astype(np.uint64)
    write_oracle_general(path, trace, keys)
    rows = [policy_row(policy, trace, path) for policy in (*peer.PEERS, "lrc")]
    rows.append(whole_run_row(path, NUM_REQUESTS))
    others = other_rows(trace, folder)
    other_table = Table(
        "Without a counterpart",
        (Column("what"), Column("ours", "", 2), Column("unit")),
        tuple((name, figure, unit) for name, (figure, unit) in others.items()),
    )
    jobs_table, jobs_check = measure_jobs(SEED)
    scenario = {
        "command": "python -m benchmarks.caching replay",
        "num_requests": NUM_REQUESTS,
        "num_objects": NUM_OBJECTS,
        "num_distinct": trace.num_blocks,
        "alpha": ALPHA,
        "cache_size": CACHE_SIZE,
        "num_repeats": NUM_REPEATS,
    }
    return Report(
        title="Caching: replay speed beside libCacheSim",
        domain="caching",
        scenario=scenario,
        seed=SEED,
        tables=(policy_table(rows), other_table, jobs_table),
        checks=(*checks_of(rows, others), jobs_check),
        notes=(
            f"Command: {scenario['command']}. Versions: {versions(('takeup', 'numba', 'numpy', 'libcachesim'))}.",
            f"Trace: Zipf {ALPHA}, {NUM_REQUESTS} requests of {trace.num_blocks} distinct objects of size one, "
            f"cache of {CACHE_SIZE}, seed {SEED}. Rates are of CPU time, best of {NUM_REPEATS} after one warm-up.",
        ),
    )


def main() -> int:
    parser = options_of(__doc__)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder))
    return publish(report, "caching", options)
