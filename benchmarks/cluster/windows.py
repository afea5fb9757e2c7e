"""Windows of 12 to 14 days from one state: `python -m benchmarks.cluster windows [--mix1 FILE] [--openb FOLDER]`.

FIFO serves until each window; then every policy continues from the same state. MIX1 is the labelled trace of Chronus
(MIT), with a time unit of a minute; openb is Alibaba's cluster-trace-gpu-v2023, its pods placed on few nodes of eight
GPUs of one model. Without files only generated fleets are replayed. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import benchmarks.support.one_thread  # noqa: F401  before numpy

# isort: split
import csv
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.support.dated import options_of, publish, versions
from takeup.cluster.model import Workload
from takeup.cluster.policies import POLICIES, find_policy
from takeup.cluster.policies.gfs import at_price
from takeup.cluster.quota.allocator import SpotQuota
from takeup.cluster.scheduling.outcome import Metrics, Outcome
from takeup.cluster.simulate import ReplayPrefix
from takeup.cluster.traces import TraceOptions, generate, read_trace
from takeup.cluster.traces.records import nodes_from, read_records
from takeup.core.report import Cell, Check, Column, Report, Table
from takeup.core.seeds import Streams
from takeup.core.stats import bootstrap_interval

SEED, DAY_S, HOUR_S = 0, 86_400.0, 3600.0
EVERY = ("fifo", "gfs_notice", "gfs", "kube")
ALL = (*EVERY, "slurm", "kueue_cohort", "high_first", "easy", "srtf")
PRICES = (
    (0.0, False),
    (3.0, True),
    (10.0, False),
    (30.0, False),
    (30.0, True),
    (100.0, False),
)  # and whether jobs move
MIX1_NODES, OPENB_NODES = (144, 160, 128), (6, 5, 4)
OPENB_DAYS = ((119, 133), (133, 147))
SEEDS, LOADS = (1, 2), ("a100_2296_low", "a100_2296", "a100_2296_high")
COLUMNS = (
    Column("window"), Column("policy"), Column("useful over FIFO", "pp", 2), Column("useful", "%", 2),
    Column("high JQT", "s", 0), Column("high JQT p95", "s", 0), Column("spot JQT", "s", 0), Column("evictions"),
    Column("lost", "GPU-h", 0), Column("spot time promised", "%", 1), Column("promises broken", "%", 1),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Window:
    """A name, the jobs, the first and the last day, and the policies to replay."""

    name: str
    workload: Workload
    days: tuple[float, float]
    policies: tuple[str, ...] = EVERY


def windows(mix1: Path | None, openb: Path | None) -> Iterator[Window]:
    """All windows of the traces that are at hand, and of generated fleets."""
    for num_nodes in MIX1_NODES if mix1 is not None else ():
        assert mix1 is not None
        nodes, options = nodes_from(f"{num_nodes}x8"), TraceOptions(time_unit_s=60.0)
        policies = ALL if num_nodes == MIX1_NODES[0] else EVERY
        yield Window(f"MIX1/{num_nodes}", read_records(mix1, {}, nodes, options).loaded.workload, (2, 14), policies)
    for num_nodes in OPENB_NODES if openb is not None else ():
        assert openb is not None
        workload = on_few_nodes(openb / "openb_pod_list_default.csv", num_nodes)
        yield from (Window(f"openb/{num_nodes}, {first}-{last}", workload, (first, last)) for first, last in OPENB_DAYS)
    for load in LOADS:
        yield from (Window(f"{load}/{seed}", generate(load, Streams(seed), num_days=24), (10, 24)) for seed in SEEDS)


def on_few_nodes(pods: Path, num_nodes: int) -> Workload:
    """Pods of any model on so many nodes of eight GPUs."""
    with tempfile.TemporaryDirectory() as folder, pods.open() as file:
        nodes, jobs = Path(folder) / "nodes.csv", Path(folder) / "openb.csv"
        nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\n" + "n,96000,786432,8,G3\n" * num_nodes)
        rows = list(csv.DictReader(file))
        with jobs.open("w") as made:
            writer = csv.DictWriter(made, list(rows[0]))
            writer.writeheader()
            writer.writerows(row | {"gpu_spec": ""} for row in rows)
        return read_trace(jobs, nodes, TraceOptions()).workload


def row(window: str, outcome: Outcome, fifo: Outcome) -> tuple[Cell, ...]:
    """The figures of one policy in one window."""
    found, base = outcome.metrics(), fifo.metrics()
    return (
        window, outcome.scheduler, 100 * (found.useful_rate - base.useful_rate), 100 * found.useful_rate,
        found.high_jqt_s.mean, found.high_jqt_s.p95, found.spot_jqt_s.mean, found.num_evictions,
        found.lost_gpu_s / HOUR_S, 100 * found.promised_share, 100 * outcome.broken().mean,
    )  # fmt: skip


def checks_of(found: dict[str, dict[str, Outcome]], frontier: dict[str, Metrics]) -> Iterator[Check]:
    """The bars on jobs that save, on promises, and on the frontier of jobs with hourly checkpoints."""
    useful = {name: {policy: 100 * it.metrics().useful_rate for policy, it in of.items()} for name, of in found.items()}
    gains = np.array([of["gfs_notice"] - of["fifo"] for of in useful.values()])
    interval = bootstrap_interval(gains, rng=Streams(SEED).stream("windows"))
    why = f"{interval.low:.2f} to {interval.high:.2f} pp with 95 % over {len(gains)} windows"
    yield Check.at_least(
        "jobs that save: useful GPU time over FIFO, mean", float(gains.mean()), 0.0, unit="pp", why=why
    )
    yield Check.at_least(
        "jobs that save: useful GPU time over FIFO, worst window", float(gains.min()), -0.25, unit="pp"
    )
    for name in (name for name in ("MIX1/144", "openb/6, 119-133", "openb/6, 133-147") if name in found):
        metrics, broken = found[name]["gfs"].metrics(), found[name]["gfs"].broken().mean
        yield Check.at_least(f"{name}: promised share of spot GPU time", 100 * metrics.promised_share, 60.0, unit="%")
        yield Check.at_most(f"{name}: promises broken", 100 * broken, 10.0, unit="%")
    if "MIX1/144" in found:
        mix1 = {policy: it.metrics() for policy, it in found["MIX1/144"].items()}
        p95_s, kube = mix1["gfs_notice"].high_jqt_s.p95, mix1["kube"]
        yield Check.at_most("MIX1/144, jobs that save: high-priority p95 JQT", p95_s, 600.0, unit="s")
        apart = 100 * abs(frontier["gfs at 0"].useful_rate - mix1["fifo"].useful_rate)
        yield Check.at_most("MIX1/144: useful GPU time off FIFO at price 0", apart, 0.05, unit="pp")
        as_fast = [it for it in frontier.values() if it.high_jqt_s.mean <= kube.high_jqt_s.mean]
        ours = min(as_fast or frontier.values(), key=lambda it: it.lost_gpu_s if as_fast else it.high_jqt_s.mean)
        lower = 100 * (1 - ours.lost_gpu_s / kube.lost_gpu_s) if as_fast else 0.0
        where = "MIX1/144, at no longer high-priority JQT than kube"
        yield Check.at_least(f"{where}: work lost, lower", lower, 30.0, unit="%")
        yield Check.at_most(f"{where}: evictions", ours.num_evictions, kube.num_evictions)
        yield Check.at_most(f"{where}: spot JQT", ours.spot_jqt_s.mean, kube.spot_jqt_s.mean, unit="s")


def measure(mix1: Path | None, openb: Path | None) -> Report:
    """Every window under its policies, and prices of waiting on the first window of MIX1."""
    found: dict[str, dict[str, Outcome]] = {}
    rows, frontier = list[tuple[Cell, ...]](), dict[str, Metrics]()
    for window in windows(mix1, openb):
        first_s, last_s = (day * DAY_S for day in window.days)
        begun = ReplayPrefix(window.workload, first_s, last_s, before=POLICIES["fifo"])
        of = found[window.name] = {name: begun.replay(find_policy(name, SpotQuota())) for name in window.policies}
        rows += [row(window.name, it, of["fifo"]) for it in of.values()]
        for price, moves in PRICES if window.name == "MIX1/144" else ():
            scheduler = find_policy("gfs", SpotQuota())
            name = f"gfs at {price:g}" + ("" if moves or not price else ", no moves")
            rules = at_price(scheduler.rules, price)._replace(moves=moves)
            outcome = begun.replay(replace(scheduler, name=name, rules=rules))
            frontier[name] = outcome.metrics()
            rows.append(row(window.name, outcome, of["fifo"]))
        for cells in (cells for cells in rows if cells[0] == window.name):
            print(*(f"{cell:.2f}" if isinstance(cell, float) else cell for cell in cells), file=sys.stderr, flush=True)
    command = "python -m benchmarks.cluster windows" + (" --mix1 FILE" if mix1 else "")
    return Report(
        title="Cluster: windows from one state",
        domain="cluster",
        scenario={"command": command + (" --openb FOLDER" if openb else ""), "seeds": list(SEEDS)},
        seed=SEED,
        tables=(Table("Windows", COLUMNS, tuple(rows)),),
        checks=tuple(checks_of(found, frontier)),
        notes=(
            f"Versions: {versions(('takeup', 'numba', 'numpy', 'scipy'))}.",
            "gfs_notice: jobs save when told, 60 s before they must leave; others have hourly checkpoints; promises of "
            "an hour at p = 0.9. Rules and prices were chosen on MIX1 and openb: none of these data is held out.",
        ),
    )


def main() -> int:
    """Parse, measure, print."""
    parser = options_of(__doc__)
    parser.add_argument("--mix1", type=Path, metavar="FILE", help="chronus_mix1.csv")
    parser.add_argument("--openb", type=Path, metavar="FOLDER", help="holds openb_pod_list_default.csv")
    options = parser.parse_args()
    return publish(measure(options.mix1, options.openb), "cluster-windows", options)


if __name__ == "__main__":
    sys.exit(main())
