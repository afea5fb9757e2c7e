"""The events of a Spark event log: its files, their lines, and what they say about stages, tasks and blocks."""

import json
import re
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from takeup.core.extras import need
from takeup.core.limits import MOST_COUNT, MOST_SIZE_BYTES, lines, unpacked
from takeup.errors import BadTrace

# The files of an event log: find them, in their order, and read them line by line as JSON -----------------------------

_COMPRESSED = frozenset((".lz4", ".lzf", ".snappy"))
_ROLLED = re.compile(r"events_(\d+)_.*")
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One event and its location in the log."""

    path: Path
    number: int
    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of one log in the order in which they were written; `notes` is added to while they are read."""

    path: Path
    parts: tuple[Path, ...]
    notes: list[str] = field(default_factory=list)


def find_log(path: Path) -> LogFiles:
    """The log at `path`: a file, a rolling log's folder, or a folder that holds exactly one of these."""
    try:
        return _find(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _find(path: Path) -> LogFiles:
    if not path.exists():
        raise BadTrace(path, "does not exist; give an event log that spark.eventLog.dir holds")
    if not path.is_dir():
        return LogFiles(path, (_readable(path),))
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith((".", "_")))
    if any(_ROLLED.fullmatch(entry.name) for entry in entries):
        return _rolling_log(path, entries)
    if len(entries) != 1:
        names = ", ".join(entry.name for entry in entries[:3]) + (", ..." if len(entries) > 3 else "")
        raise BadTrace(path, f"holds {len(entries)} entries ({names}) instead of one event log; name one of them")
    return _find(entries[0])


def read_lines(log: LogFiles, *, allow_truncated: bool) -> Iterator[LogLine]:
    """Iterate over the events of the log; files are streamed, never loaded as a whole."""
    for part in log.parts:
        try:
            with _open(part) as file:
                yield from _parse(part, file, allow_truncated, log.notes)
        except (EOFError, OSError, zlib.error) as error:
            if isinstance(error, OSError) and "Truncated" not in str(error):  # what pyarrow says of zstd data
                raise _unreadable(part, error) from error
            if not (allow_truncated and part == log.parts[-1]):
                raise BadTrace(
                    part,
                    f"the {_codec(part)} data ends early; copy the file again, or pass --allow-truncated to read "
                    "the rest",
                ) from error
            log.notes.append(f"{part.name}: the {_codec(part)} data ends early; read up to there")


def _codec(path: Path) -> str:
    return "zstd" if ".zstd" in path.suffixes else "gzip"


def _rolling_log(path: Path, entries: list[Path]) -> LogFiles:
    """Files by number. A `.compact` file stands for all up to its number."""
    numbered = sorted((int(match[1]), entry) for entry in entries if (match := _ROLLED.fullmatch(entry.name)))
    compacted = [number for number, entry in numbered if entry.suffix == ".compact"]
    first = max(compacted, default=1)
    parts = {
        number: entry for number, entry in numbered if number > first or entry.suffix == ".compact" or not compacted
    }
    missing = next((number for number in range(first, numbered[-1][0] + 1) if number not in parts), None)
    if missing is not None:
        raise BadTrace(path, f"the rolling log lacks its file number {missing} (events_{missing}_...); copy all of it")
    notes = ["the history server has compacted this log: jobs that had ended before are not in it"] if compacted else []
    return LogFiles(path, tuple(_readable(parts[number]) for number in sorted(parts) if number >= first), notes)


def _readable(path: Path) -> Path:
    suffix = path.with_suffix("").suffix if path.suffix == ".inprogress" else path.suffix
    if suffix in _COMPRESSED:
        raise BadTrace(
            path,
            f"is compressed with Spark's {suffix[1:]} codec, which is not read here; set "
            "spark.eventLog.compress=false, or spark.eventLog.compression.codec=zstd",
        )
    return path


def _open(path: Path) -> BinaryIO:
    if _codec(path) == "zstd":
        need("an event log in zstd", "traces")
        import pyarrow as pa

        return unpacked(path, pa.input_stream(str(path), compression="zstd"))
    with path.open("rb") as file:
        is_gzip = file.read(2) == _GZIP_MAGIC
    return unpacked(path) if is_gzip else path.open("rb")


def _parse(path: Path, file: BinaryIO, allow_truncated: bool, notes: list[str]) -> Iterator[LogLine]:
    texts = lines(path, file)
    for number, text in enumerate(texts, start=1):
        try:
            event = json.loads(text)
        except (ValueError, RecursionError) as error:
            if number == 1 or next(texts, None) is not None:
                raise BadTrace(path, _not_an_event(text), line=number) from error
            if not allow_truncated:
                raise BadTrace(path, _CUT, line=number) from error
            notes.append(f"{path.name}: line {number} is cut in the middle and left out")
            return
        if not isinstance(event, dict) or "Event" not in event:
            raise BadTrace(path, _not_an_event(text), line=number)
        yield LogLine(path, number, event)


def _unreadable(path: Path, error: OSError) -> BadTrace:
    return BadTrace(path, f"cannot be read: {error.strerror or error}; check the file and its rights")


_CUT = (
    "is cut in the middle, but every line is one JSON event; the log of a running or killed application ends in "
    "mid-line: remove that line or pass --allow-truncated"
)


def _not_an_event(text: bytes) -> str:
    found = text[:40].decode(errors="replace").strip()
    return f"found {found!r}, but every line of a Spark event log is one JSON event; give a log that Spark wrote"


# What the events of a log say about an application: its stages, the tasks that succeeded, and its blocks --------------

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
    site: str
    parents: tuple[int, ...]
    num_partitions: int
    in_memory: bool
    on_disk: bool
    generation: int
    in_python: bool = False


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
    submitted_at: int = 0


@dataclass(frozen=True, slots=True)
class TaskRun:
    """The first successful run of one partition of a stage. Task numbers grow with launch time. Its seconds are CPU
    time where the JVM does the work, because waiting for a core does not prolong that."""

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
    pool_bytes: dict[str, int] = field(default_factory=dict)
    execution_bytes: int = 0
    starts: dict[int, int] = field(default_factory=dict)
    num_slots: int = 1
    unpersisted: list[tuple[int, int, int]] = field(default_factory=list)
    residence: dict[RddPartition, list[tuple[int, bool]]] = field(default_factory=dict)
    num_dropped: int = 0
    num_left_out: int = 0
    _running: set[int] = field(default_factory=set)
    _last_ended: int | None = None
    _idle_after: int | None = None
    _num_ended: int = 0
    _now: int = 0

    def was_in_memory(self, block: RddPartition, when: int) -> bool:
        """Whether the block was in memory at this place of the log."""
        changes = self.residence.get(block, [])
        latest = bisect_left(changes, (when, False)) - 1
        return latest >= 0 and changes[latest][1]

    def add(self, line: LogLine) -> None:
        """Process one event; those without information on blocks are ignored."""
        handle = _HANDLERS.get(str(line.event["Event"]))
        if handle is None:
            return
        self._now += 1
        try:
            handle(self, line.event)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            problem = (
                f"{line.event['Event']} has no usable field {error}; give a log of Spark 3.5 or later as Spark wrote it"
            )
            raise BadTrace(line.path, problem, line=line.number) from error

    def _log_start(self, event: Json) -> None:
        self.spark_version = str(event["Spark Version"])

    def _application_start(self, event: Json) -> None:
        self.name = str(event["App Name"])

    def _block_manager_added(self, event: Json) -> None:
        if "Maximum Memory" in event:
            self.pool_bytes[str(event["Block Manager ID"]["Executor ID"])] = _number(event, "Maximum Memory")

    def _executor_added(self, event: Json) -> None:
        if "Executor Info" in event:
            self.num_slots = max(self.num_slots, _number(event["Executor Info"], "Total Cores"))

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
        stage.submitted_at = self._now
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

    def _task_start(self, event: Json) -> None:
        self.starts[_number(event["Task Info"], "Task ID")] = self._now

    def _task_end(self, event: Json) -> None:
        info = event["Task Info"]
        is_known = info.get("Partition ID", _UNKNOWN) != _UNKNOWN
        place = (_number(event, "Stage ID"), _number(info, "Partition ID" if is_known else "Index"))
        if event["Task End Reason"]["Reason"] != "Success" or place in self.runs:
            self.num_left_out += 1
            return
        self.execution_bytes = max(self.execution_bytes, event["Task Metrics"].get("Peak Execution Memory", 0))
        seconds = self._seconds(event["Task Metrics"], self.stages.get(place[0]))
        self.runs[place] = TaskRun(_number(info, "Task ID"), *place, str(info["Executor ID"]), seconds)

    def _seconds(self, metrics: Json, stage: SparkStage | None) -> float:
        run_s = _number(metrics, "Executor Run Time") / 1000
        is_python = stage is not None and any(rdd.in_python for rdd in stage.rdds.values())
        return run_s if is_python or "Executor CPU Time" not in metrics else _number(metrics, "Executor CPU Time") / 1e9

    def _block_updated(self, event: Json) -> None:
        info = event["Block Updated Info"]
        match = _RDD_BLOCK.fullmatch(info["Block ID"])
        if match is None:
            return
        rdd, partition = int(match[1]), int(match[2])
        block = RddPartition(rdd, self.generations.get(rdd, 0), partition)
        memory_bytes, disk_bytes = _number(info, "Memory Size"), _number(info, "Disk Size")
        in_memory = bool(info["Storage Level"]["Use Memory"]) and memory_bytes > 0
        self.residence.setdefault(block, []).append((self._now, in_memory))
        if in_memory:
            self.memory_bytes[block] = max(memory_bytes, self.memory_bytes.get(block, 0))
            self.stored_by.setdefault(block, str(info["Block Manager ID"]["Executor ID"]))
        elif block in self.memory_bytes:
            self.num_dropped += 1
        if disk_bytes > 0:
            self.disk_bytes[block] = disk_bytes

    def _unpersist(self, event: Json) -> None:
        rdd = _number(event, "RDD ID")
        self.unpersisted.append((self._now, rdd, self.generations.get(rdd, 0)))
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
                site=str(info.get("Callsite", "")),
                parents=_numbers(info, "Parent IDs"),
                num_partitions=_number(info, "Number of Partitions", MOST_COUNT),
                in_memory=bool(level["Use Memory"]),
                on_disk=bool(level["Use Disk"]),
                generation=self.generations.get(number, 0),
                in_python="Python" in f"{info['Name']}{info.get('Scope', '')}",
            )


def _number(record: Json, field: str, most: int = MOST_SIZE_BYTES) -> int:
    """Spark's numbers: identifiers, counts, bytes and milliseconds are all whole and from 0."""
    number = record[field]
    if type(number) is not int or not 0 <= number <= most:
        raise ValueError(repr(field))
    return number


def _numbers(record: Json, field: str) -> tuple[int, ...]:
    return tuple(_number({field: number}, field) for number in record[field])


_HANDLERS = {
    "SparkListenerLogStart": SparkApplication._log_start,
    "SparkListenerApplicationStart": SparkApplication._application_start,
    "SparkListenerJobStart": SparkApplication._job_start,
    "SparkListenerJobEnd": SparkApplication._job_end,
    "SparkListenerExecutorAdded": SparkApplication._executor_added,
    "SparkListenerBlockManagerAdded": SparkApplication._block_manager_added,
    "SparkListenerTaskStart": SparkApplication._task_start,
    "SparkListenerStageSubmitted": SparkApplication._stage_submitted,
    "SparkListenerStageCompleted": SparkApplication._stage_completed,
    "SparkListenerTaskEnd": SparkApplication._task_end,
    "SparkListenerBlockUpdated": SparkApplication._block_updated,
    "SparkListenerUnpersistRDD": SparkApplication._unpersist,
}
