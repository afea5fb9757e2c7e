"""What the events of a log say about an application: its stages, the tasks that succeeded, and its blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from takeup.caching.traces.eventlog.files import LogLine
from takeup.errors import BadTrace

_RDD_BLOCK = re.compile(r"rdd_(\d+)_(\d+)")

_UNKNOWN = -1

Json = dict[str, Any]


class RddPartition(NamedTuple):
    """One partition of one RDD, between two unpersists."""

    rdd: int
    generation: int
    partition: int

    @property
    def block(self) -> str:
        """The name Spark gives the block, with the generation behind it from the second one on."""
        again = f"+{self.generation}" if self.generation else ""
        return f"rdd_{self.rdd}_{self.partition}{again}"


@dataclass(frozen=True, slots=True)
class Rdd:
    """One RDD as a stage saw it. `generation` counts how often it had been unpersisted before."""

    rdd: int
    name: str
    parents: tuple[int, ...]
    num_partitions: int
    in_memory: bool
    on_disk: bool
    generation: int


@dataclass(slots=True)
class SparkStage:
    """One stage: the RDDs its tasks walk through, the last of which is its own. Stages are numbered by `ended` in the
    order in which they end; `waits_for` is the one that had ended last when the application was idle."""

    stage: int
    job: int
    parents: tuple[int, ...]
    own_rdd: int
    waits_for: int | None
    rdds: dict[int, Rdd] = field(default_factory=dict)
    ended: int = 0


@dataclass(frozen=True, slots=True)
class TaskRun:
    """The first successful run of one partition of a stage. Task numbers grow with launch time."""

    task: int
    stage: int
    partition: int
    executor: str
    run_s: float


@dataclass(slots=True)
class SparkApplication:
    """Everything the reader keeps of a log, filled by one event after the other."""

    name: str = ""
    spark_version: str = ""
    stages: dict[int, SparkStage] = field(default_factory=dict)
    runs: dict[tuple[int, int], TaskRun] = field(default_factory=dict)
    memory_bytes: dict[RddPartition, int] = field(default_factory=dict)
    disk_bytes: dict[RddPartition, int] = field(default_factory=dict)
    mean_bytes: dict[int, int] = field(default_factory=dict)
    stored_by: dict[RddPartition, str] = field(default_factory=dict)
    generations: dict[int, int] = field(default_factory=dict)
    num_dropped: int = 0
    num_left_out: int = 0
    _running: set[int] = field(default_factory=set)
    _last_ended: int | None = None
    _idle_after: int | None = None
    _num_ended: int = 0

    def add(self, line: LogLine) -> None:
        """Process one event; those without information on blocks are ignored."""
        handle = _HANDLERS.get(str(line.event["Event"]))
        if handle is None:
            return
        try:
            handle(self, line.event)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = (
                f"{line.event['Event']} has no usable field {error}; give a log of Spark 3.5 or later as Spark wrote it"
            )
            raise BadTrace(line.path, problem, line=line.number) from error

    def _log_start(self, event: Json) -> None:
        self.spark_version = str(event["Spark Version"])

    def _application_start(self, event: Json) -> None:
        self.name = str(event["App Name"])

    def _job_start(self, event: Json) -> None:
        if not self._running:
            self._idle_after = self._last_ended
        job = _number(event, "Job ID")
        self._running.add(job)
        for info in event["Stage Infos"]:
            self._stage(info, job)

    def _job_end(self, event: Json) -> None:
        self._running.discard(_number(event, "Job ID"))

    def _stage_submitted(self, event: Json) -> None:
        """The RDDs as they are persisted now, which the start of the job may not have known."""
        stage = self._stage(event["Stage Info"], job=0)
        if not stage.rdds:
            stage.rdds = {rdd.rdd: rdd for rdd in self._rdds(event["Stage Info"]["RDD Info"])}
            stage.own_rdd = max(stage.rdds, default=_UNKNOWN)

    def _stage_completed(self, event: Json) -> None:
        info = event["Stage Info"]
        stage = self._stage(info, job=0)
        self._num_ended += 1
        stage.ended = self._num_ended
        if "Failure Reason" not in info:
            self._last_ended = stage.stage
        for rdd in info["RDD Info"]:
            if rdd.get("Number of Cached Partitions") and rdd.get("Memory Size"):
                size_bytes = _number(rdd, "Memory Size") // _number(rdd, "Number of Cached Partitions")
                self.mean_bytes[_number(rdd, "RDD ID")] = size_bytes

    def _task_end(self, event: Json) -> None:
        info = event["Task Info"]
        is_known = info.get("Partition ID", _UNKNOWN) != _UNKNOWN
        place = (_number(event, "Stage ID"), _number(info, "Partition ID" if is_known else "Index"))
        if event["Task End Reason"]["Reason"] != "Success" or place in self.runs:
            self.num_left_out += 1
            return
        run_s = _number(event["Task Metrics"], "Executor Run Time") / 1000
        self.runs[place] = TaskRun(_number(info, "Task ID"), *place, str(info["Executor ID"]), run_s)

    def _block_updated(self, event: Json) -> None:
        info = event["Block Updated Info"]
        match = _RDD_BLOCK.fullmatch(info["Block ID"])
        if match is None:
            return
        rdd, partition = int(match[1]), int(match[2])
        block = RddPartition(rdd, self.generations.get(rdd, 0), partition)
        memory_bytes, disk_bytes = _number(info, "Memory Size"), _number(info, "Disk Size")
        if info["Storage Level"]["Use Memory"] and memory_bytes > 0:
            self.memory_bytes[block] = max(memory_bytes, self.memory_bytes.get(block, 0))
            self.stored_by.setdefault(block, str(info["Block Manager ID"]["Executor ID"]))
        elif block in self.memory_bytes:
            self.num_dropped += 1
        if disk_bytes > 0:
            self.disk_bytes[block] = disk_bytes

    def _unpersist(self, event: Json) -> None:
        rdd = _number(event, "RDD ID")
        self.generations[rdd] = self.generations.get(rdd, 0) + 1

    # ----------------------------------------------------------------------------------------------------------------

    def _stage(self, info: Json, job: int) -> SparkStage:
        """The stage of the event, registered if it is new."""
        number = _number(info, "Stage ID")
        if number not in self.stages:
            own_rdd = max((_number(rdd, "RDD ID") for rdd in info["RDD Info"]), default=_UNKNOWN)
            self.stages[number] = SparkStage(number, job, _numbers(info, "Parent IDs"), own_rdd, self._idle_after)
        return self.stages[number]

    def _rdds(self, infos: Iterable[Json]) -> Iterable[Rdd]:
        for info in infos:
            level, number = info["Storage Level"], _number(info, "RDD ID")
            yield Rdd(
                rdd=number,
                name=str(info["Name"]),
                parents=_numbers(info, "Parent IDs"),
                num_partitions=_number(info, "Number of Partitions"),
                in_memory=bool(level["Use Memory"]),
                on_disk=bool(level["Use Disk"]),
                generation=self.generations.get(number, 0),
            )


def _number(record: Json, field: str) -> int:
    """Spark's numbers: identifiers, counts, bytes and milliseconds are all whole and from 0."""
    number = record[field]
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError(repr(field))
    return number


def _numbers(record: Json, field: str) -> tuple[int, ...]:
    return tuple(_number({field: number}, field) for number in record[field])


_HANDLERS = {
    "SparkListenerLogStart": SparkApplication._log_start,
    "SparkListenerApplicationStart": SparkApplication._application_start,
    "SparkListenerJobStart": SparkApplication._job_start,
    "SparkListenerJobEnd": SparkApplication._job_end,
    "SparkListenerStageSubmitted": SparkApplication._stage_submitted,
    "SparkListenerStageCompleted": SparkApplication._stage_completed,
    "SparkListenerTaskEnd": SparkApplication._task_end,
    "SparkListenerBlockUpdated": SparkApplication._block_updated,
    "SparkListenerUnpersistRDD": SparkApplication._unpersist,
}
