"""What players on a real link live through, beside the equations: `python -m benchmarks.streaming ring [--minutes 8]`.

One run of the ring answers for all thresholds, because downloads do not depend on what the viewer's screen does. Every
quantity stands beside the exact solver's with the difference in standard errors (by batch means), and beside an ideal
link under the same arrivals: where the ring and the equations differ but the ring and the ideal link agree, it was
chance. Exit code 1 if stall probability or start-up of a threshold of at least five segments is off by more than the
bar.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time

import numpy as np

from benchmarks.support.ideal_link import on_ideal_link
from support.dash.engine import DashEngine, Downloads
from takeup.streaming.model import Cell, Player, QoeMetrics

CELL = Cell(capacity_bps=2.8e6, bitrate_bps=360e3, arrivals_per_s=0.12, max_users=10)
THRESHOLDS_S = (2.0, 5.0, 10.0)
QUANTITIES = ("startup_s", "stall_probability", "num_stalls", "stall_s", "finished_early", "blocked_share")
BAR = 2.5  # standard errors
BARRED = ("startup_s", "stall_probability")
LEAST_SEGMENTS = 5


def solve(player: Player) -> QoeMetrics:
    """The exact answer."""
    from takeup.streaming.chains import chain_of
    from takeup.streaming.solvers.fluid import DoublingSolver

    return DoublingSolver().solve(chain_of(CELL), player)


def show(downloads: Downloads, ideal: Downloads, threshold_s: float, segment_s: float) -> bool:
    """Print one table; false if a bar is missed."""
    player = Player(threshold_s)
    exact, ring, same = solve(player), downloads.answer(player), ideal.answer(player)
    scores = ring.z_scores(exact)
    print(f"\nthreshold {threshold_s:g} s")
    print(f"  {'':18} {'ring':>9} {'+-':>8} {'equation':>9} {'z':>6} {'ideal link':>11}")
    for name in QUANTITIES:
        value, wanted, chance = getattr(ring, name), getattr(exact, name).value, getattr(same, name).value
        score = f"{scores[name]:6.2f}" if name in scores else f"{'-':>6}"
        print(f"  {name:18} {value.value:9.4f} {value.error:8.4f} {wanted:9.4f} {score} {chance:11.4f}")
    barred = threshold_s >= LEAST_SEGMENTS * segment_s
    return not barred or all(abs(scores.get(name, 0.0)) <= BAR for name in BARRED)


def main() -> int:
    """Run the ring once and print it beside the equations."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--speedup", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    engine = DashEngine(speedup=options.speedup)
    num_videos = round(options.minutes * 60 * options.speedup * CELL.arrivals_per_s)
    print(engine.plan(CELL, num_videos))
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    downloads = engine.download(CELL, num_videos, np.random.default_rng(options.seed))
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}"
    )
    print(f"seed {options.seed}: {wall_s:.0f} s of wall time, {cpu_s:.0f} s of CPU time")
    ideal = on_ideal_link(downloads)
    held = [show(downloads, ideal, threshold_s, engine.segment_s) for threshold_s in THRESHOLDS_S]
    verdict = "all" if all(held) else "not all"
    print(f"\n{verdict} within {BAR} standard errors for thresholds of at least {LEAST_SEGMENTS} segments")
    return 0 if all(held) else 1
