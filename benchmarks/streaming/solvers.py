"""How fast streaming answers, beside simulations: `python -m benchmarks.streaming solvers [--json] [--out FOLDER]`.

Prints one report: times of solvers and simulators, and with `--logs FOLDER` (folders of JSON throughput logs in it) how
well fitted links predict stalls. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import benchmarks.support.one_thread  # noqa: F401  before numpy

# isort: split
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers.plain_cell import run_plain
from benchmarks.streaming.logs import measure_logs
from benchmarks.support.dated import options_of, publish, versions
from takeup.core.report import Check, Column, Report, Table
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Capacity, Cell, Estimate, Player, QoeMetrics
from takeup.streaming.simulate.cell import play_cell, simulate_cell
from takeup.streaming.simulate.tagged import simulate_tagged
from takeup.streaming.solvers.fluid import DoublingSolver

SEED = 0
CELL, PLAYER = Cell(2.8e6, 360e3, 0.12, 10), Player(5.0)
CROWDED = Cell(84e6, 360e3, 3.8, 300)
MANY_USERS = 400
NUM_LEVELS = 12
NUM_REPEATS, NUM_ANSWERS = 5, 200
NUM_VIDEOS, NUM_PLAIN_VIDEOS = 400_000, 20_000
LOG_S, LONG_LOG_S = 600, 1800
EQUAL_ERROR = 1e-5  # the standard error of P(stall) that counts as the accuracy of the solver

ANSWER_BAR_MS, GOAL_BAR_MS, LARGE_BAR_MS, SWEEP_BAR_S, LOG_BAR_S, CROWD_BAR_S = 1.0, 5.0, 30.0, 1.6, 1.0, 2.0
CLASSES_BAR_S, ADVICE_BAR_S = 5.0, 3.0
GOAL_S = 18.0
CLASSES = "predict --max-users 20 --mean-video-s 30,60,150 --view-shares 0.5,0.3,0.2"
EVENTS_BAR, SPEEDUP_BAR = 5.0, 10_000.0


def best_cpu_s(action: Callable[[], object]) -> float:
    """CPU seconds of the best of several runs, after one to warm up."""
    action()
    return min(cpu_s_of(action) for _ in range(NUM_REPEATS))


def cpu_s_of(action: Callable[[], object]) -> float:
    """CPU seconds of one run."""
    began_s = time.process_time()
    action()
    return time.process_time() - began_s


# Solvers --------------------------------------------------------------------------------------------------------------


def answer(cell: Cell, player: Player) -> object:
    """From a cell to everything its viewers experience."""
    return DoublingSolver().solve(chain_of(cell), player)


def answer_s(cell: Cell, num_answers: int, player: Player = PLAYER) -> float:
    """CPU seconds of one answer."""
    return best_cpu_s(lambda: [answer(cell, player) for _ in range(num_answers)]) / num_answers


def changing_cell() -> Cell:
    """The reference cell with a capacity of twelve levels, which makes a chain of 120 states."""
    levels = np.linspace(0.3, 1.7, NUM_LEVELS)
    rates = 0.05 * (np.eye(NUM_LEVELS, k=1) + np.eye(NUM_LEVELS, k=-1)) + 0.01
    np.fill_diagonal(rates, 0.0)
    np.fill_diagonal(rates, -rates.sum(axis=1))
    return Cell(CELL.capacity_bps, CELL.bitrate_bps, 0.1, CELL.max_users, capacity=Capacity(levels, rates))


def sweep() -> None:
    """Full answers at 40 arrival rates and 50 start thresholds."""
    for arrivals_per_s in np.linspace(0.05, 0.15, 40):
        cell = Cell(CELL.capacity_bps, CELL.bitrate_bps, float(arrivals_per_s), CELL.max_users)
        solution = DoublingSolver().solution(chain_of(cell))
        for start_s in np.linspace(0.5, 40.0, 50):
            solution.answer(Player(float(start_s)))


# Simulators -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Simulated:
    """One simulator on the reference cell: what it found, and what equal accuracy would cost."""

    name: str
    num_videos: int
    cpu_s: float
    found: Estimate

    @property
    def equal_cpu_s(self) -> float:
        """CPU seconds until the standard error is EQUAL_ERROR, which falls with the root of the number of videos."""
        return self.cpu_s * (self.found.error / EQUAL_ERROR) ** 2


def simulators() -> list[Simulated]:
    """Ours and the plain one, each as often as its speed allows."""
    chain = chain_of(CELL)
    return [
        _simulated("tagged videos", NUM_VIDEOS, lambda num: simulate_tagged(chain, PLAYER, num_videos=num, seed=SEED)),
        _simulated("whole cell", NUM_VIDEOS, lambda num: simulate_cell(CELL, PLAYER, num_videos=num, seed=SEED)),
        _plain(),
    ]


def _simulated(name: str, num_videos: int, play: Callable[[int], QoeMetrics]) -> Simulated:
    cpu_s = best_cpu_s(lambda: play(num_videos))
    return Simulated(name, num_videos, cpu_s, play(num_videos).stall_probability)


def _plain() -> Simulated:
    traffic = CELL.speed, CELL.mean_video_s, CELL.arrivals_per_s, CELL.max_users
    cpu_s = best_cpu_s(lambda: run_plain(*traffic, PLAYER.start_s, NUM_PLAIN_VIDEOS, SEED))
    found = run_plain(*traffic, PLAYER.start_s, NUM_PLAIN_VIDEOS, SEED)
    return Simulated("plain Python", NUM_PLAIN_VIDEOS, cpu_s, Estimate(found.stall_probability, found.error))


def events_rate(cell: Cell) -> float:
    """Million events of a whole cell per CPU second."""
    num_events = play_cell(cell, PLAYER, num_videos=NUM_VIDEOS, seed=SEED).num_events
    return num_events / best_cpu_s(lambda: play_cell(cell, PLAYER, num_videos=NUM_VIDEOS, seed=SEED)) / 1e6


def simulators_table(rows: list[Simulated], exact: float, solver_s: float) -> Table:
    columns = (
        Column("simulator"),
        Column("videos", digits=0),
        Column("time", "cpu s", 3),
        Column("P(stall)", digits=5),
        Column("±", digits=5),
        Column("z", digits=2),
        Column(f"time to ± {EQUAL_ERROR:g}", "cpu s", 0),
        Column("over the solver", "times", 0),
    )
    cells = tuple(
        (
            row.name,
            row.num_videos,
            row.cpu_s,
            row.found.value,
            row.found.error,
            (row.found.value - exact) / row.found.error,
            row.equal_cpu_s,
            row.equal_cpu_s / solver_s,
        )
        for row in rows
    )
    note = (
        f"The solver gives {exact:.9f}, to 14 digits or so. Equal accuracy is taken to be a standard error of "
        f"{EQUAL_ERROR:g} only: time to it = measured time x (measured error / {EQUAL_ERROR:g})^2, since errors fall "
        f"with the root of the number of videos. The solver takes {solver_s * 1e3:.3f} ms of CPU from cell to answer. "
        "Errors of the whole cell are of batch means."
    )
    return Table("P(stall) of the reference cell by simulation", columns, cells, note)


# From a log to a chart ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commands:
    """What commands took, one after the other, each with its start: CPU and wall time."""

    cpu_s: float
    wall_s: float


def write_log(path: Path, num_s: int) -> None:
    """A synthetic link: a slow level every twenty seconds, and quick scatter around it."""
    rng = np.random.default_rng(SEED)
    rates = 2.8e6 * np.repeat(rng.lognormal(0.0, 0.6, num_s // 20), 20) * rng.gamma(4.0, 0.25, num_s)
    path.write_text("time_s,rate_bps\n" + "".join(f"{second},{rate:.0f}\n" for second, rate in enumerate(rates)))


def commands(folder: Path, *lines: str) -> Commands:
    """Run `takeup streaming` for each of the lines, in `folder`, with compiled bytecode as an installation has it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    began, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for line in lines:
        command = [sys.executable, "-m", "takeup", "streaming", *line.split()]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    ended, wall_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began_s
    return Commands(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime, wall_s)


def best_commands(folder: Path, *lines: str) -> Commands:
    """The least of both times over several runs, after one to warm up."""
    runs = [commands(folder, *lines) for _ in range(NUM_REPEATS + 1)][1:]
    return Commands(min(run.cpu_s for run in runs), min(run.wall_s for run in runs))


# The report -----------------------------------------------------------------------------------------------------------


def measure(folder: Path, logs: Path | None) -> Report:
    """Run everything and report it."""
    write_log(folder / "log.csv", LOG_S)
    write_log(folder / "long.csv", LONG_LOG_S)
    log = best_commands(folder, "fit log.csv", "predict --log log.csv")
    large = best_commands(folder, f"predict --max-users {MANY_USERS}")
    classes, advice = best_commands(folder, CLASSES), best_commands(folder, "advise long.csv --bitrate 2Mbit")
    small_s, large_s, sweep_s = answer_s(CELL, NUM_ANSWERS), answer_s(changing_cell(), 5), best_cpu_s(sweep)
    simulated, rate, crowded_rate = simulators(), events_rate(CELL), events_rate(CROWDED)
    exact = DoublingSolver().solve(chain_of(CELL), PLAYER).stall_probability.value
    checks = [
        Check.at_most("full answer, 10 states", small_s * 1e3, ANSWER_BAR_MS, unit="cpu ms"),
        Check.at_most(
            "full answer, 10 states, buffer goal",
            1e3 * answer_s(CELL, NUM_ANSWERS, Player(5.0, goal_s=GOAL_S)),
            GOAL_BAR_MS,
            unit="cpu ms",
        ),
        Check.at_most(f"full answer, {10 * NUM_LEVELS} states", large_s * 1e3, LARGE_BAR_MS, unit="cpu ms"),
        Check.at_most("sweep of 2,000 full answers, one core", sweep_s, SWEEP_BAR_S, unit="cpu s"),
        Check.at_least("whole cell of 10 users, events", rate, EVENTS_BAR, unit="M/cpu s"),
        Check.at_least("whole cell of 300 users, events", crowded_rate, EVENTS_BAR, unit="M/cpu s"),
        Check.at_least(
            "fastest simulation over solver, equal accuracy",
            min(row.equal_cpu_s for row in simulated) / small_s,
            SPEEDUP_BAR,
            unit="times",
        ),
        Check.at_most(f"log of {LOG_S} s: fit, predict, charts, two commands", log.cpu_s, LOG_BAR_S, unit="cpu s"),
        Check.at_most(f"predict with {MANY_USERS} users, one command", large.cpu_s, CROWD_BAR_S, unit="cpu s"),
        Check.at_most("predict with 3 classes of 20 users, one command", classes.cpu_s, CLASSES_BAR_S, unit="cpu s"),
        Check.at_most(f"advise on a log of {LONG_LOG_S} s, one command", advice.cpu_s, ADVICE_BAR_S, unit="cpu s"),
    ]
    others = {
        "log to charts, two commands, wall time (s)": log.wall_s,
        "load of the machine at the end": os.getloadavg()[0],
    }
    tables = [simulators_table(simulated, exact, small_s), _others_table(others)]
    if logs is not None:
        more_tables, more_checks = measure_logs(logs, SEED)
        tables += more_tables
        checks += more_checks
    return _report(tables, checks, with_logs=logs is not None)


def _others_table(others: dict[str, float]) -> Table:
    return Table("Beside the bars", (Column("what"), Column("figure", digits=2)), tuple(others.items()))


def _report(tables: list[Table], checks: list[Check], *, with_logs: bool) -> Report:
    command = "python -m benchmarks.streaming solvers" + (" --logs FOLDER" if with_logs else "")
    packages = versions(("takeup", "numpy", "scipy", "numba"))
    return Report(
        title="Streaming: time to an answer, beside simulations",
        domain="streaming",
        scenario={"command": command, "num_repeats": NUM_REPEATS},
        seed=SEED,
        tables=tuple(tables),
        checks=tuple(checks),
        notes=(
            f"Command: {command}. Versions: {packages}. Linear algebra on one thread.",
            f"Times are of CPU, best of {NUM_REPEATS} after one to warm up unless it says otherwise. Reference cell: "
            "2.8 Mbit/s, videos of 360 kbit/s and 60 s, 0.12 arrivals/s, 10 users, start at 5 s. A full answer goes "
            "from the cell to all of its quantities. Commands are timed with the start of their processes.",
        ),
    )


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="folders of JSON throughput logs to predict on")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder), options.logs)
    return publish(report, "streaming", options)
