"""A laboratory of disks that fail: every system call of every writer fails, writes a part, or is the last one.

How it works. A C library that is loaded first counts the calls that change files below one folder. A writer runs once
to count its calls; then each of its fault points runs in a forked process, which says which operations began, ended or
were refused. Afterwards the writer's own check looks at what is on the disk: the state after a restart is that of the
operations that were acknowledged, and perhaps of the one during which the process ended.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from takeup.errors import TakeupError

FAIL, SHORT, STOP, TORN, POWER = range(1, 6)
NEVER = 10**9
LIMIT_S = 30
STOPPED = 137
SOURCE = Path(__file__).with_name("shim.c")
Rule = tuple[int, int, int, int]  # first and last call, what happens, error number
Tell = Callable[[str], None]


@dataclass(slots=True)
class Outcome:
    """What a writer said before it ended."""

    done: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)  # refused, and not even that could be written
    begun: int | None = None  # the operation during which the process ended
    said: list[str] = field(default_factory=list)
    problem: str = ""
    is_power_lost: bool = False
    is_broken: bool = False  # a call failed that only a broken disk refuses


class Writer(Protocol):
    """Something that writes: prepared, then run under faults, then judged."""

    name: str

    def prepare(self, folder: Path) -> None:
        """What is there before the faults begin."""

    def work(self, folder: Path, attempt: Attempt) -> None:
        """Its operations, each by one call of `attempt`."""

    def check(self, folder: Path, outcome: Outcome) -> list[str]:
        """What is wrong on the disk afterwards."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Runs operations and says how they ended."""

    tell: Tell

    def __call__(self, number: int, action: Callable[[], object], *refusals: type[BaseException]) -> bool:
        caught: tuple[type[BaseException], ...] = (TakeupError, *refusals)
        self.tell(f"begin {number}")
        try:
            action()
        except caught as error:
            self.tell(f"{'unknown' if 'it is unknown' in str(error) else 'refused'} {number}")
            return False
        self.tell(f"done {number}")
        return True


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a writer: the rules of its faults."""

    writer: Writer
    rules: tuple[Rule, ...]

    def __str__(self) -> str:
        names = {FAIL: "fail", SHORT: "short", STOP: "stop", TORN: "torn", POWER: "power"}
        parts = [
            f"{names[mode]} {first}{'+' if last == NEVER else ''} {errno.errorcode.get(code, '')}".strip()
            for first, last, mode, code in self.rules
        ]
        return f"{self.writer.name}: {', '.join(parts)}"


@dataclass(slots=True)
class Table:
    """How many points there were of each writer, and what was violated."""

    points: Counter[str] = field(default_factory=Counter)
    stopped: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, point: Point, outcome: Outcome, problems: list[str]) -> None:
        """One more point."""
        name = point.writer.name.partition(" ")[0]
        self.points[name] += 1
        self.stopped[name] += outcome.begun is not None
        self.refused[name] += bool(outcome.refused)
        self.unknown[name] += bool(outcome.unknown)
        self.violations += [f"{point}: {problem}" for problem in problems]

    def lines(self) -> Iterator[str]:
        """As a table in Markdown."""
        yield "| writer | points | process ended | refused | unknown | violations |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for name, points in self.points.items():
            wrong = sum(it.startswith((f"{name} ", f"{name}:")) for it in self.violations)
            ended = f"{self.stopped[name]} | {self.refused[name]} | {self.unknown[name]}"
            yield f"| {name} | {points} | {ended} | {wrong} |"
        yield f"| all | {self.points.total()} | | | {self.unknown.total()} | {len(self.violations)} |"


def build(folder: Path) -> Path:
    """Compile the library."""
    library = folder / "shim.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, SOURCE], check=True)
    return library


def points_of(writer: Writer, num_calls: int) -> Iterator[Point]:
    """Every call of a writer with every fault, and failures followed by an end or by a second failure."""
    for at in range(1, num_calls + 1):
        yield from (Point(writer, ((at, at, FAIL, code),)) for code in (errno.ENOSPC, errno.EIO, errno.EROFS))
        yield Point(writer, ((at, NEVER, FAIL, errno.ENOSPC),))
        yield Point(writer, ((at, NEVER, FAIL, errno.EIO),))
        yield Point(writer, ((at, at, SHORT, 0), (at + 1, at + 1, FAIL, errno.ENOSPC)))
        yield from (Point(writer, ((at, at, mode, 0),)) for mode in (SHORT, STOP, TORN, POWER))
        for later in range(at + 1, min(at + 9, num_calls + 4)):
            for code in (errno.ENOSPC, errno.EIO):
                yield from (
                    Point(writer, ((at, at, FAIL, code), (later, later, end, 0))) for end in (STOP, TORN, POWER)
                )


class Laboratory:
    """Runs points; only in a process that was started with the library."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(None)
        assert hasattr(self._library, "fault_watch"), "start this process with LD_PRELOAD, as `main` does"

    def count(self, writer: Writer) -> int:
        """How many calls a run without faults makes."""
        outcome, folder = self._run(writer, ())
        problems = [*([outcome.problem] if outcome.problem else []), *writer.check(folder, outcome)]
        shutil.rmtree(folder)
        assert not problems, f"{writer.name} without a fault: {problems}"
        return int(outcome.said[-1])

    def judge(self, point: Point) -> tuple[Outcome, list[str]]:
        """Run a point and look at what it left."""
        outcome, folder = self._run(point.writer, point.rules)
        modes = {mode for _, _, mode, _ in point.rules}
        outcome.is_power_lost = POWER in modes and outcome.begun is not None
        outcome.is_broken = any(code not in (0, errno.ENOSPC) for *_, code in point.rules)
        try:
            problems = [outcome.problem] if outcome.problem else []
            problems += point.writer.check(folder, outcome)
        except Exception:
            problems = [traceback.format_exc()]
        finally:
            shutil.rmtree(folder)
        return outcome, problems

    def _run(self, writer: Writer, rules: tuple[Rule, ...]) -> tuple[Outcome, Path]:
        folder = Path(tempfile.mkdtemp(prefix="takeup-faults-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        writer.prepare(folder)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            self._work(writer, folder, rules, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as said:
            lines = said.read().decode().splitlines()
        _, status = os.waitpid(child, 0)
        return _outcome(lines, os.waitstatus_to_exitcode(status)), folder

    def _work(self, writer: Writer, folder: Path, rules: tuple[Rule, ...], writing: int) -> None:
        signal.alarm(LIMIT_S)
        code = 0

        def tell(line: str) -> None:
            os.write(writing, f"{line}\n".encode())

        try:
            self._library.fault_watch(f"{folder}/".encode(), int(any(mode == POWER for _, _, mode, _ in rules)))
            for first, last, mode, number in rules:
                self._library.fault_rule(ctypes.c_long(first), ctypes.c_long(last), mode, number)
            writer.work(folder, Attempt(tell))
            tell(f"calls {self._library.fault_count()}")
            self._library.fault_end()
        except BaseException:
            tell("traceback " + traceback.format_exc().replace("\n", " / "))
            code = 1
        os._exit(code)


def _outcome(lines: list[str], status: int) -> Outcome:
    outcome = Outcome()
    for line in lines:
        what, _, rest = line.partition(" ")
        if what == "begin":
            outcome.begun = int(rest)
        elif what in ("done", "refused", "unknown"):
            getattr(outcome, what).append(int(rest))
            outcome.begun = None
        elif what == "traceback":
            outcome.problem = rest
        else:
            outcome.said.append(rest)
    if status not in (0, STOPPED) and not outcome.problem:
        outcome.problem = f"the process ended with {status}"
    return outcome


def examine(writers: list[Writer], share: float, seed: int, say: Callable[[str], object] = lambda _: None) -> Table:
    """Run a share of all points, drawn by the seed."""
    laboratory, table, draw = Laboratory(), Table(), random.Random(seed)
    for writer in writers:
        points = [it for it in points_of(writer, laboratory.count(writer)) if draw.random() < share]
        for point in points:
            table.add(point, *laboratory.judge(point))
        say(f"{writer.name}: {len(points)} points, {len(table.violations)} violations in all")
    return table


def main() -> None:
    """Start again with the library, then run; the table goes to stdout, and a violation is exit code 1."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m support.faults.lab", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="the share of all points that is run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--writers", default="", help="only these writers, with commas")
    parser.add_argument("--rounds", type=int, default=1, help="how many different workloads each writer gets")
    asked = parser.parse_args()
    if "TAKEUP_FAULTS" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            inherited = {**os.environ, "TAKEUP_FAULTS": "1", "LD_PRELOAD": str(build(Path(folder)))}
            program = [sys.executable, "-m", "support.faults.lab", *sys.argv[1:]]
            sys.exit(subprocess.run(program, env=inherited, check=False).returncode)
    from support.faults.writers import writers

    names = tuple(asked.writers.split(","))
    chosen = [it for number in range(asked.rounds) for it in writers(asked.seed + number, names)]
    table = examine(chosen, asked.share, asked.seed, lambda line: print(line, file=sys.stderr, flush=True))
    print("\n".join(table.lines()))
    for violation in table.violations[:20]:
        print(violation)
    sys.exit(bool(table.violations))


if __name__ == "__main__":
    main()
