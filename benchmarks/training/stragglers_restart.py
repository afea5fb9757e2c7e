"""The part `restart` of stragglers.py: torchrun starts a slow job again, as the controller has requested.

examples/train_ddp.py on four ranks, watched by `takeup training watch`, which knows only their calls. They are slowed
down from outside, by this process:

restarted   a rank is stopped for most of the time, as on a bad machine; its successor is not, as on another one
exchanged   a cable between neighbours of the ring is thin and stays so: two ranks exchange their roles at the restart
undone      as soon as they have, all other cables are thin as well: the exchange does not help, and is undone

Every process notes when it steps (stragglers_rank.py). A job is away from the moment the watch says that it restarts it
until the first step after that. What came back is the share of the lost throughput, within the same job. All jobs must
end with the weights of one that nobody slows down, watches or restarts; for this DDP must not order its gradients anew
after the first step (`--exact`), or any job that is started once more adds up in another order. Cables need root.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.training.stragglers_rank import FOLDER, NETWORKS
from benchmarks.training.stragglers_remedies import Phases
from support.watch_lab_slowness import NetworkMesh, PeriodicStops
from takeup.core.report import Cell, Check, Column, Table
from takeup.errors import TakeupError

HERE = Path(__file__).parent
NUM_RANKS, NUM_STEPS, FIRST_SLOW, SETTLED = 4, 200, 60, 8
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "3", "--nproc-per-node", str(NUM_RANKS)]
SCRIPT = [str(HERE / "stragglers_rank.py"), str(HERE.parents[1] / "examples" / "train_ddp.py")]
OPTIONS = ["--steps", str(NUM_STEPS), "--microbatch-ms", "8", "--width", "160", "--exact", "--checkpoint"]
WATCH = ["-m", "takeup", "training", "watch", "--json", "--no-action", "--restart-after", "1"]
SLOW_RANK, FACTOR = 1, 4.0
CABLE, RATE_BPS = (1, 2), 32e6
NUM_JOBS = 2
MOST_AWAY_S, LEAST_EXCHANGE = 60.0, 0.5
TIMEOUT_S = 150.0
LOOK_EVERY_S = 0.02


def restart(tick: Callable[[], object], options: Namespace) -> tuple[list[Table], list[Check]]:
    """How long jobs are away, what comes back, and whether they compute the same."""
    with TemporaryDirectory(prefix="takeup-restart-") as name:
        alone = _ran(Path(name, "alone"), lambda noted: None)
        jobs = _slow_jobs(Path(name))
    tick()
    every = [job for some in jobs.values() for job in some]
    longest_s = max(max(job.away_s) for job in every) if all(job.away_s for job in every) else None
    checks = [
        Check.at_most("until jobs step again, longest", longest_s, MOST_AWAY_S, unit="s"),
        Check.at_most("steps that were made twice", sum(job.num_steps - NUM_STEPS for job in every), 0),
        Check.at_least("jobs with the same weights, bit for bit", _num_same(every, alone), len(every)),
    ]
    return [_absences(jobs, alone), _gains(jobs)], [*checks, *_exchange_checks(jobs)]


def _slow_jobs(folder: Path) -> Jobs:
    """All jobs, by what is to happen to them."""
    jobs = {"restarted": [_ran(folder / f"restarted-{number}", _stop_a_rank, WATCH) for number in range(NUM_JOBS)]}
    if os.geteuid() == 0:
        jobs["exchanged"] = [_cabled(folder / f"exchanged-{number}", _thin_a_cable) for number in range(NUM_JOBS)]
        jobs["undone"] = [_cabled(folder / "undone", _thin_all_in_the_end)]
    return jobs


def _exchange_checks(jobs: Jobs) -> list[Check]:
    if "exchanged" not in jobs:
        return []
    came_back = median(job.came_back for job in jobs["exchanged"])
    undone = jobs["undone"]
    return [
        Check.at_least("share of the lost throughput that an exchange brings back, median", came_back, LEAST_EXCHANGE),
        Check.at_least("exchanges undone that did not help", sum(job.is_undone for job in undone), len(undone)),
    ]


# What came of a job ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """What a process has noted since it was started: which one it is, its rank, when it began and when it stepped."""

    process: int
    rank: int
    began_s: float
    steps_s: tuple[float, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class Watched:
    """A job by its starts, each the processes in their places; and what was said of it, and when."""

    starts: list[list[Start]]
    said: list[tuple[float, str]]

    @property
    def num_steps(self) -> int:
        """Of all starts together."""
        return sum(len(start[0].steps_s) for start in self.starts)

    @property
    def digest(self) -> str:
        """Of the weights of all ranks."""
        return " ".join(sorted({each.digest for each in self.starts[-1]}))

    @property
    def asked_s(self) -> list[float]:
        """When it was said that the job restarts."""
        return [moment_s for moment_s, action in self.said if action.startswith("saved and restarted")]

    @property
    def away_s(self) -> list[float]:
        """From then until the first step after it."""
        firsts_s = [start[0].steps_s[0] for start in self.starts[1:]]
        return [first_s - asked_s for asked_s, first_s in zip(self.asked_s, firsts_s, strict=False)]

    @property
    def parts_s(self) -> tuple[float | None, ...]:
        """The first absence: until the last step before it, until there are new processes, until these step; all."""
        if not self.away_s:
            return (None,) * 4
        last_s, began_s = self.starts[0][0].steps_s[-1], max(start.began_s for start in self.starts[1])
        return last_s - self.asked_s[0], began_s - last_s, self.starts[1][0].steps_s[0] - began_s, self.away_s[0]

    @property
    def phases(self) -> Phases:
        """Steps before the job became slow, from then until it was restarted, and at last."""
        first, last = self._times_s(0), self._times_s(-1)
        slow = first[FIRST_SLOW + 1 :] or first[-1:]
        return Phases(median(first[FIRST_SLOW // 4 : FIRST_SLOW]), median(slow), median(last))

    @property
    def came_back(self) -> float:
        """The share of the lost throughput; nothing if nobody restarted the job."""
        return self.phases.came_back if self.away_s else 0.0

    def _times_s(self, number: int) -> list[float]:
        steps_s = self.starts[number][0].steps_s[0 if number == 0 else SETTLED :]
        return [after_s - before_s for before_s, after_s in pairwise(steps_s)]

    @property
    def is_undone(self) -> bool:
        """Whether ranks were exchanged and are in their places again."""
        orders = [[start.rank for start in starts] for starts in self.starts]
        return len(orders) > 2 and orders[0] == orders[-1] != orders[1]

    def heard(self, pattern: str) -> str | None:
        """What was said that looks like this."""
        found = (re.search(pattern, action) for _, action in self.said)
        return next((each.group(1) for each in found if each is not None), None)


Jobs = Mapping[str, list[Watched]]


def _num_same(jobs: Sequence[Watched], alone: Watched) -> int:
    return sum(job.digest == alone.digest for job in jobs)


def _absences(jobs: Jobs, alone: Watched) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (name, *job.parts_s, sum(job.away_s[:1]) / job.phases.healthy_s, job.digest == alone.digest)
        for name, some in jobs.items()
        for job in some
    ]
    parts = ("until the last step", "until new processes", "until they step", "together")
    columns = (
        Column("job"),
        *(Column(part, "s", 2) for part in parts),
        Column("as long as", "steps", 0),
        Column("same weights"),
    )
    note = f"the first restart of each; {NUM_RANKS} ranks share {os.cpu_count()} cores, on which all import PyTorch"
    return Table("Saved and started anew by torchrun", columns, tuple(rows), note)


def _gains(jobs: Jobs) -> Table:
    rows = [_gain(name, job) for name, some in jobs.items() for job in some]
    columns = (
        *(Column(part) for part in ("job", "tested", "ranks of the processes")),
        *(Column(part, "ms", 1) for part in ("healthy", "slow", "foretold", "at last")),
        Column("came back", digits=3),
        Column("said at last"),
    )
    note = "medians of steps; the ranks of the four processes after every start"
    return Table("What the restarts brought", columns, tuple(rows), note)


def _gain(name: str, job: Watched) -> tuple[Cell, ...]:
    orders = "; ".join(" ".join(str(start.rank) for start in starts) for starts in job.starts)
    foretold = job.heard(r"exchanged, (\S+) ms foretold")
    healthy_ms, slow_ms, last_ms = (1e3 * time_s for time_s in job.phases)
    foretold_ms = None if foretold is None else float(foretold)
    came_back = None if name == "undone" else job.came_back
    tested = job.heard(r"(link \d+-\d+ is \S+ slower)") or "-"
    last_said = job.said[-1][1] if job.said else "nothing"
    return name, tested, orders, healthy_ms, slow_ms, foretold_ms, last_ms, came_back, last_said


# Running jobs ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Noted:
    """What the processes of a job have noted so far."""

    folder: Path
    is_over: threading.Event = field(default_factory=threading.Event)

    def start(self, number: int) -> list[Start]:
        """The processes of one start; fewer or none if they are not there yet."""
        paths = [self.folder / f"{number}-{place}" for place in range(NUM_RANKS)]
        return [_read(path) for path in paths if path.exists() and "\n" in path.read_text("utf-8")]

    def starts(self) -> list[list[Start]]:
        """All of them that stepped."""
        found = [self.start(number) for number in range(len(list(self.folder.glob("*-0"))))]
        return [starts for starts in found if starts and starts[0].steps_s]

    def wait(self, number: int, num_steps: int) -> bool:
        """Wait for so many steps of this start; whether they were made."""
        while not self.is_over.wait(LOOK_EVERY_S):
            start = self.start(number)
            if len(start) == NUM_RANKS and len(start[0].steps_s) >= num_steps:
                return True
        return False


def _read(path: Path) -> Start:
    first, *lines = path.read_text("utf-8").split("\n")[:-1]
    process, rank, began_s = first.split()
    digest = lines.pop() if lines and "." not in lines[-1] else ""
    return Start(int(process), int(rank), float(began_s), tuple(map(float, lines)), digest)


def _stop_a_rank(noted: Noted) -> None:
    if noted.wait(0, FIRST_SLOW):
        stops = PeriodicStops(noted.start(0)[SLOW_RANK].process, FACTOR)
        noted.wait(1, 0)
        stops.close()


def _thin_a_cable(noted: Noted, mesh: NetworkMesh) -> None:
    if noted.wait(0, FIRST_SLOW):
        mesh.thin(CABLE, RATE_BPS)


def _thin_all_in_the_end(noted: Noted, mesh: NetworkMesh) -> None:
    _thin_a_cable(noted, mesh)
    if noted.wait(1, 0):
        mesh.thin(range(NUM_RANKS), RATE_BPS)


def _cabled(folder: Path, slow: Callable[[Noted, NetworkMesh], None]) -> Watched:
    """The job with its ranks in networks of their own; the watch tests their links."""
    mesh = NetworkMesh(NUM_RANKS)
    try:
        return _ran(folder, lambda noted: slow(noted, mesh), [*WATCH, "--confirm"], {NETWORKS: ",".join(mesh.paths)})
    finally:
        mesh.close()


def _ran(
    folder: Path,
    slow: Callable[[Noted], None],
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Watched:
    """Run the job, slow it down meanwhile, and read what was noted."""
    folder.mkdir()
    noted = Noted(folder)
    beside = threading.Thread(target=slow, args=(noted,))
    beside.start()
    try:
        said = _said(folder, before, environment or {})
    finally:
        noted.is_over.set()
        beside.join()
    return Watched(noted.starts(), said)


def _said(folder: Path, before: Sequence[str], environment: Mapping[str, str]) -> list[tuple[float, str]]:
    """Run the job: what the watch says of its actions, and when."""
    job = [*TORCHRUN, *SCRIPT, *OPTIONS, str(folder / "checkpoint")]
    command = [sys.executable, *before, *(["--", sys.executable] if before else []), *job]
    alone = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", FOLDER: str(folder)}
    with (
        (folder / "errors").open("w+", encoding="utf-8") as errors,
        subprocess.Popen(
            command, env={**os.environ, **alone, **environment}, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as watch,
    ):
        limit = threading.Timer(TIMEOUT_S, watch.terminate)
        limit.start()
        assert watch.stdout is not None
        lines = [(time.monotonic(), line) for line in watch.stdout]
        limit.cancel()
        if watch.wait():
            errors.seek(0)
            raise TakeupError(f"the job failed: {errors.read().strip().splitlines()[-1:]}; try it once more")
    return [(moment_s, _action(line)) for moment_s, line in lines if line.startswith("{")]


def _action(line: str) -> str:
    found: dict[str, Any] = json.loads(line)
    return "; ".join(filter(None, (found["confirmed"], found["action"])))
