"""Slurm's own programs: what they show as JSON, and the few commands we issue.

A program that cannot reach Slurm may still exit with 0 and print an empty list of jobs, with the reason under `errors`;
that is not an empty cluster. `SlurmDown` means that nothing is known and nothing was done.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from takeup.errors import BadInput, MissingEngine, TakeupError

# Hedged requests: re-send a slow idempotent command, and take the first answer ----------------------------------------
#
# Every five seconds slurmctld fetches IDs for new jobs from its accounting database. A command that changes such a job
# at that moment sleeps for a whole second, even if the ID arrives a moment later; a command sent then is served at
# once. So an idempotent command is sent again, and late answers are awaited before anything else is done.

Answer = TypeVar("Answer")
PAUSES_S = (0.15, 0.25, 0.4)


@dataclass(slots=True)
class HedgedCalls(Generic[Answer]):
    """Hedged calls: a command is sent again after each of `pauses_s`, as long as no answer has arrived."""

    send: Callable[[Sequence[str]], Answer]
    pauses_s: tuple[float, ...] = PAUSES_S
    _late: list[Future[Answer]] = field(default_factory=list, init=False)

    def call(self, arguments: Sequence[str]) -> Answer:
        """The first answer; duplicates may still be in flight when this returns."""
        pool = ThreadPoolExecutor(len(self.pauses_s) + 1)
        asked = [pool.submit(self.send, arguments)]
        for pause_s in self.pauses_s:
            if wait(asked, pause_s, FIRST_COMPLETED).done:
                break
            asked.append(pool.submit(self.send, arguments))
        pool.shutdown(wait=False)
        answered = wait(asked, return_when=FIRST_COMPLETED).done
        self._late += [each for each in asked if each not in answered]
        return answered.pop().result()

    def settle(self) -> None:
        """Wait for duplicates in flight; their answers are discarded."""
        late, self._late = self._late, []
        wait(late)


Row = Mapping[str, Any]

TIMEOUT_S = 15.0
NO_CONTACT = (
    "Unable to contact",
    "Connection refused",
    "Unexpected message received",
    "timed out",
    "Zero Bytes",
    "configuration",
    "Communication connection failure",
    "munge",
)


class SlurmDown(TakeupError):
    """Slurm did not answer."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a program left: its exit code and what it printed."""

    code: int
    out: str
    errors: str = ""


Call = Callable[[Sequence[str]], CommandResult]


def caller(conf: Path | None = None, timeout_s: float = TIMEOUT_S) -> Call:
    """Runs programs of the Slurm that is configured in `conf`, or of the one of this machine."""
    environment = {**os.environ, "LC_ALL": "C", **({} if conf is None else {"SLURM_CONF": str(conf)})}

    def call(arguments: Sequence[str]) -> CommandResult:
        try:
            done = subprocess.run(
                arguments, check=False, capture_output=True, text=True, env=environment, timeout=timeout_s
            )
        except FileNotFoundError as error:
            raise MissingEngine(
                f"engine 'slurm' needs the program {arguments[0]!r}\n\n"
                "hint: apt-get install slurm-client, or run where Slurm's programs are"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise SlurmDown(f"{arguments[0]} gave no answer in {timeout_s:g} s; waiting until Slurm is back") from error
        return CommandResult(done.returncode, done.stdout, done.stderr)

    return call


@dataclass(slots=True)
class Slurm:
    """Everything we ever ask of Slurm. Jobs are named by their number, tasks of an array by `number_task`."""

    call: Call = field(default_factory=caller)
    _hedged: HedgedCalls[CommandResult] = field(init=False)

    def __post_init__(self) -> None:
        self._hedged = HedgedCalls(self.call)

    def nodes(self) -> list[Row]:
        return self._table("nodes", "sinfo", "--json")

    def jobs(self) -> list[Row]:
        """All jobs that Slurm still remembers."""
        return self._table("jobs", "squeue", "--json")

    def past_jobs(self, begin: str, end: str) -> list[Row]:
        """Every run of every job between two moments such as 2026-01-31T00:00:00, from the accounting database."""
        times = (f"--starttime={begin}", f"--endtime={end}")
        return self._table("jobs", "sacct", "--json", "--allusers", "--duplicates", *times)

    def known_qos(self) -> set[str]:
        return set(self._do("sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name").split())

    def place(self, job: str, nodes: Sequence[str], *settings: str, is_urgent: bool = False) -> None:
        """Let a held job run on these nodes and no others, once it is released."""
        pinned = (f"JobId={job}", f"ReqNodeList={','.join(nodes)}", "StartTime=now")
        self._do("scontrol", "update", *pinned, *settings, is_urgent=is_urgent)

    def release(self, job: str, *, is_urgent: bool = False) -> None:
        """Start a held job as soon as its nodes are free; if it is urgent, `settle` before it is held again."""
        self._do("scontrol", "release", job, is_urgent=is_urgent)

    def settle(self) -> None:
        """Wait for commands that are still on their way."""
        self._hedged.settle()

    def evict(self, *jobs: str) -> None:
        """Stop jobs and hold them; one that is over by now stays so."""
        self._do("scontrol", "requeuehold", "Incomplete", *jobs)

    def hold(self, job: str) -> None:
        """Do not start a job that waits; an operator's own hold shows as JobHeldAdmin, ours as JobHeldUser."""
        self._do("scontrol", "uhold", job)

    def signal(self, job: str, name: str) -> None:
        """Tell a job's script something."""
        self._do("scancel", f"--signal={name}", "--batch", job)

    def limit(self, qos: str, resources: str) -> None:
        """How much all jobs of a quality of service may hold together."""
        self._do("sacctmgr", "--immediate", "--quiet", "modify", "qos", qos, "set", f"GrpTRES={resources}")

    def _table(self, key: str, *arguments: str) -> list[Row]:
        program, text = arguments[0], self._do(*arguments)
        try:
            answer = json.loads(text)
            rows, problems = answer[key], answer.get("errors")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SlurmDown(f"{program} printed no list of {key}; is this Slurm 21.08 or newer?") from error
        if problems or not isinstance(rows, list):
            raise SlurmDown(f"{program} could not ask Slurm ({_first(problems)}); waiting until it is back")
        return [row for row in rows if isinstance(row, dict)]

    def _do(self, *arguments: str, is_urgent: bool = False) -> str:
        answer = self._hedged.call(arguments) if is_urgent else self.call(arguments)
        problem = (answer.errors or answer.out).strip()
        if answer.code == 0:
            return answer.out
        if any(sign.lower() in problem.lower() for sign in NO_CONTACT):
            raise SlurmDown(f"{arguments[0]} cannot reach Slurm ({_line(problem)}); waiting until it is back")
        raise BadInput(f"{' '.join(arguments[:3])}: {_line(problem)}; Slurm refused it, look at the job again")


def _line(text: str) -> str:
    return text.splitlines()[0] if text else "no reason given"


def _first(problems: object) -> str:
    problem = problems[0] if isinstance(problems, list) and problems else problems
    if isinstance(problem, Mapping):
        return str(problem.get("error") or problem.get("description") or "an error without a name")
    return str(problem)
