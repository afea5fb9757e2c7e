"""Rounds of one workload: all policies side by side in warm executors, taking turns; kept in a file to be continued."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.caching.spark_workloads.application import Application, Pass
from benchmarks.caching.spark_workloads.pace import Pace
from benchmarks.caching.spark_workloads.suite import STOCK, Workload
from support.spark_cluster import LocalSparkCluster, SparkWorker
from takeup.caching.engines.spark import SparkCounts
from takeup.core.files import write_atomically

NUM_WARM_UPS = 1
LEAST = {"read_bytes": 10e6}  # where a pass reads less, ratios would be of the messages between Spark's processes


@dataclass(slots=True)
class Rounds:
    """All passes of one workload under one policy, by the number of the round, and what its applications counted.

    `first_cpu_s` is what the executors of each application used from their start to the end of the first pass, in which
    nothing has been learnt yet; `first_made` is how many blocks were made in it. `starts` are the numbers of the rounds
    that were the first of new applications.
    """

    passes: dict[int, Pass] = field(default_factory=dict)
    first_cpu_s: list[float] = field(default_factory=list)
    counts: list[SparkCounts] = field(default_factory=list)
    num_counted: int = 0
    first_made: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def median(self, name: str) -> float:
        """Of one figure of the passes."""
        return float(median(getattr(one, name) for one in self.passes.values()))

    def ratio(self, stock: Rounds, name: str) -> float:
        """This to stock in the same round: the mean over the starts of the median over their rounds.

        Two Java machines that do the same may differ by a few percent for as long as they live, so rounds of one start
        say little about the next.
        """
        return geometric_mean(median(part) for part in self._parts(stock, name))

    def by_start(self, stock: Rounds, name: str) -> list[float]:
        """The ratio of each start; of a single start, those of all its rounds."""
        parts = self._parts(stock, name)
        return [median(part) for part in parts] if len(parts) > 1 else parts[0]

    def _parts(self, stock: Rounds, name: str) -> list[list[float]]:
        """Ratios of the rounds of each start."""
        ratios = self._ratios(stock, name)
        ends = [*self.starts[1:], max(ratios) + 1]
        parts = [
            [ratios[at] for at in range(*ends_of) if at in ratios] for ends_of in zip(self.starts, ends, strict=True)
        ]
        return [part for part in parts if part]

    def _ratios(self, stock: Rounds, name: str) -> dict[int, float]:
        floor = LEAST.get(name, 0.0)
        return {
            number: max(getattr(one, name), floor) / max(getattr(stock.passes[number], name), floor)
            for number, one in self.passes.items()
        }

    def share(self, name: str) -> float | None:
        """A share among the counters; None where the plug-in did not run."""
        return float(median(getattr(counts, name) for counts in self.counts)) if self.counts else None

    def per_pass(self, name: str) -> float | None:
        """A counter, as many as in one pass."""
        return sum(getattr(counts, name) for counts in self.counts) / self.num_counted if self.counts else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Rounds:
        return cls(
            {int(number): Pass(**one) for number, one in values["passes"].items()},
            values["first_cpu_s"],
            [SparkCounts(**counts) for counts in values["counts"]],
            values["num_counted"],
            values.get("first_made", []),
            values.get("starts", [0]),
        )


def load(path: Path) -> dict[str, Rounds]:
    """What was measured before, by policy; stock Spark ran in every round."""
    kept = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return {policy: Rounds.from_json(values) for policy, values in kept.items()}


def measure(workload: Workload, num_rounds: int, bench_jar: Path, folder: Path) -> dict[str, Rounds]:
    """Add rounds to what the folder holds. Every round runs all policies, the order turned around each time."""
    path = folder / f"{workload.name}.json"
    results = load(path)
    if num_rounds == 0:
        return results
    if any("@profile" in policy for policy in workload.policies):
        record_profile(workload, num_rounds, bench_jar, folder)
    num_policies = len(workload.policies)
    workers = (SparkWorker(f"{num_policies}g", num_policies),) * 2
    with LocalSparkCluster(workers) as cluster, Pace() as pace, ExitStack() as stack:
        applications = {
            policy: stack.enter_context(_application(cluster, workload, policy, bench_jar, folder, pace))
            for policy in _turned(workload.policies, len(results.get(STOCK, Rounds()).first_cpu_s))
        }
        for policy, application in applications.items():
            rounds = results.setdefault(policy, Rounds())
            rounds.starts.append(len(results[STOCK].passes))
            _warm_up(application, rounds)
        for number in range(num_rounds):
            _run_round(applications, results)
            print(f"{workload.name}: round {number + 1} of {num_rounds}", file=sys.stderr, flush=True)
            save(path, results)
        for policy, application in applications.items():
            _add_counts(results[policy], application.counts(), NUM_WARM_UPS + num_rounds)
    save(path, results)
    return results


def _turned(policies: tuple[str, ...], num_starts: int) -> tuple[str, ...]:
    """Another one starts first each time: who comes first finds the emptiest memory."""
    first = num_starts % len(policies)
    return policies[first:] + policies[:first]


def save(path: Path, results: dict[str, Rounds]) -> None:
    """Keep what was measured so far."""
    write_atomically(path, json.dumps({policy: rounds.to_json() for policy, rounds in results.items()}))


def _run_round(applications: dict[str, Application], results: dict[str, Rounds]) -> None:
    number = len(results[STOCK].passes)
    for policy in list(applications)[:: -1 if number % 2 else 1]:
        results[policy].passes[number] = applications[policy].run_once()


def record_profile(workload: Workload, num_rounds: int, bench_jar: Path, folder: Path) -> None:
    """The profile of an application of so many passes, if there is none; the policy does not matter for it."""
    profile = _profile(workload, folder)
    if profile.exists():
        return
    with (
        LocalSparkCluster() as cluster,
        Pace() as pace,
        Application(cluster, workload, "lru", bench_jar, profile, pace) as application,
    ):
        for _ in range(NUM_WARM_UPS + num_rounds):
            application.run_once()


def _application(
    cluster: LocalSparkCluster, workload: Workload, policy: str, bench_jar: Path, folder: Path, pace: Pace
) -> Application:
    profile = _profile(workload, folder) if "@profile" in policy else None
    return Application(cluster, workload, policy, bench_jar, profile, pace)


def _profile(workload: Workload, folder: Path) -> Path:
    return folder / f"{workload.name}.profile"


def _warm_up(application: Application, rounds: Rounds) -> None:
    for number in range(NUM_WARM_UPS):
        application.run_once()
        if number == 0:
            rounds.first_cpu_s.append(application.cpu_s())
            counts = application.counts()
            rounds.first_made += [] if counts is None else [counts.puts]


def _add_counts(rounds: Rounds, counts: SparkCounts | None, num_passes: int) -> None:
    if counts is not None:
        rounds.counts.append(counts)
        rounds.num_counted += num_passes
