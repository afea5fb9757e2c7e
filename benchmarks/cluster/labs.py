"""Real clusters under the controller: `python -m benchmarks.cluster labs [--json] [--out FOLDER] [--only PART]`.

Part slurm: a real Slurm of 16 emulated nodes with eight GPUs each (scripts/slurm-lab; needs root). Part kubernetes: a
real API server with 16 nodes, beside the stock scheduler (scripts/kube-lab, built before). Wall times: everything else
on the machine is in them. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import benchmarks.support.one_thread  # noqa: F401  before numpy

# isort: split
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks import TESTS
from benchmarks.support.dated import options_of, publish, versions
from cluster.engines.kubernetes.kube_race import race
from cluster.engines.slurm.slurm_lab import Lab, Nursery, fill, gang_after_s, killed, larger_quota_after_s, wait_until
from takeup.core.report import Check, Column, Report, Table

ROOT = Path(__file__).parents[2]
os.environ["PYTHONPATH"] = str(TESTS)  # of the controllers that are started


SEED, NUM_GANGS, NUM_YOUNG, NUM_QUOTAS, NUM_KILLS, NUM_ROUNDS = 0, 8, 3, 2, 20, 9
GANG_BAR_S, QUOTA_BAR_S, PROMISED_GPUS = 2.0, 5.0, 64
PARTS = ("slurm", "kubernetes")
YOUNG = (
    "Slurm 22.05 numbers new jobs in its database every five seconds. To end a job without a number takes it a round "
    "trip to the database, 0.2 s with its lock held: times with so young victims are shown, not judged."
)
Found = tuple[list[Table], list[Check]]


@contextmanager
def lab(script: str, *options: str) -> Iterator[Path]:
    """A laboratory that is started, and stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="takeup-lab-") as parent:
        folder = Path(parent) / "lab"
        try:
            subprocess.run([ROOT / "scripts" / script, "start", folder, *options], check=True)
            yield folder
        finally:
            subprocess.run([ROOT / "scripts" / script, "stop", folder], check=True)


def times_table(title: str, rows: Mapping[str, Sequence[float]], note: str = "") -> Table:
    """Wall times by what was timed."""
    columns = (Column("what"), Column("times"), *(Column(name, "s", 2) for name in ("least", "median", "most")))
    return Table(title, columns, tuple((name, len(s), min(s), median(s), max(s)) for name, s in rows.items()), note)


# Slurm ----------------------------------------------------------------------------------------------------------------


def slurm() -> Found:
    """Gangs that need room, quotas that grow, and a controller that is killed."""
    with lab("slurm-lab", "--nodes", "16", "--gpus", "8") as folder, tempfile.TemporaryDirectory() as own:
        cluster, nursery = Lab(folder), Nursery(Lab(folder), Path(own))
        try:
            gangs_s = [_gang_s(cluster, nursery) for _ in range(NUM_GANGS)]
            young_s = [_gang_s(cluster, nursery, are_known=False) for _ in range(NUM_YOUNG)]
            quotas_s = [_quota_s(cluster, nursery) for _ in range(NUM_QUOTAS)]
            _begin(cluster, nursery)
            found = killed(cluster, nursery, NUM_KILLS, SEED)
        finally:
            nursery.close()
            cluster.clean()
    rows = {
        "gang of 4 nodes runs, 16 victims": gangs_s,
        "the same, victims without a number in the database": young_s,
        "larger quota in use": quotas_s,
    }
    counts = {
        "jobs lost": found.num_jobs_lost,
        "restarts nobody decided": found.num_unexplained_restarts,
        "jobs evicted twice for one gang": found.num_evicted_twice_for_one,
        "GPUs promised above the quota": max(0, found.most_guaranteed_gpus - PROMISED_GPUS),
    }
    return [times_table("Slurm", rows, YOUNG), _killed_table(counts, found.num_evictions)], [
        Check.at_most("slurm: gang of 4 nodes runs after, most", max(gangs_s), GANG_BAR_S, unit="s"),
        Check.at_most("slurm: larger quota in use after, most", max(quotas_s), QUOTA_BAR_S, unit="s"),
        *(Check.at_most(f"slurm: killed {NUM_KILLS} times, {name}", float(count), 0) for name, count in counts.items()),
    ]


def _begin(cluster: Lab, nursery: Nursery) -> None:
    nursery.kill()
    cluster.clean()
    nursery.journal.unlink(missing_ok=True)


def _gang_s(cluster: Lab, nursery: Nursery, *, are_known: bool = True) -> float:
    _begin(cluster, nursery)
    nursery.start("gfs", 0.5)
    spots = fill(cluster)
    wait_until(lambda: len(cluster.running()) == len(spots), "full cluster")
    return gang_after_s(cluster, spots, are_known=are_known)[1]


def _quota_s(cluster: Lab, nursery: Nursery) -> float:
    _begin(cluster, nursery)
    fill(cluster)
    return larger_quota_after_s(cluster, nursery)


def _killed_table(counts: dict[str, int], num_evictions: int) -> Table:
    rows = (*counts.items(), ("evictions", num_evictions))
    return Table(f"Slurm: controller killed {NUM_KILLS} times", (Column("what"), Column("count")), rows)


# Kubernetes -----------------------------------------------------------------------------------------------------------


def kubernetes() -> Found:
    """The same pods for takeup and for the stock scheduler, in turns on one API server."""
    with lab("kube-lab") as folder:
        subprocess.run([ROOT / "scripts" / "kube-lab", "scheduler", folder], check=True)
        laps = race(folder, NUM_ROUNDS)
    rows: dict[str, Sequence[float]] = {}
    for name, times in laps.items():
        fills, gangs = zip(*times, strict=True)
        rows |= {f"64 spot pods bound, {name}": fills, f"gang of 4 nodes bound, {name}": gangs}
    checks = [
        Check.at_most(f"kubernetes: {what}, ours over the stock scheduler's, medians", _ratio(rows, what), 1.0)
        for what in ("64 spot pods bound", "gang of 4 nodes bound")
    ]
    return [times_table("Kubernetes", rows)], checks


def _ratio(rows: dict[str, Sequence[float]], what: str) -> float:
    return median(rows[f"{what}, takeup"]) / median(rows[f"{what}, default-scheduler"])


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that laboratories are stopped
    parts = [part for part in PARTS if part in options.only.split(",")]
    found = [{"slurm": slurm, "kubernetes": kubernetes}[part]() for part in parts]
    command = f"python -m benchmarks.cluster labs --only {','.join(parts)}"
    report = Report(
        title="Cluster: laboratories",
        domain="cluster",
        scenario={"command": command},
        seed=SEED,
        tables=tuple(table for tables, _ in found for table in tables),
        checks=tuple(check for _, checks in found for check in checks),
        notes=(
            f"Command: {command}. Versions: {versions(('takeup',))}; Slurm 22.05 and Kubernetes 1.20 of Debian 12.",
            "Wall times, with daemons and emulated nodes on the same cores.",
        ),
    )
    return publish(report, "-".join(["cluster-labs", *parts]), options)
