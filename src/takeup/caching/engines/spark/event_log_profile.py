"""A profile for the plug-in from the event log of an earlier run, so that no profiling run is needed.

The log says which RDDs a stage walks through, their operators, call sites and parents, but neither the kind of a
dependency nor its partitions. As in the reader of event logs for the simulator, partition i is taken to read partition
i where the numbers are equal; a parent with another number of partitions ends the walk, because a wrong reader is worse
than none.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from takeup.core.files import write_atomically
from takeup.errors import BadInput

FORMAT = 1
_DEFAULT_BYTES = 1 << 20
Json = Mapping[str, Any]
Block = tuple[int, int]


def write_profile(path: Path, events: Iterable[Json]) -> None:
    """Write the profile of a logged application where `configure(profile=...)` will find it."""
    write_atomically(path, json.dumps(profile_of_events(events)))


def profile_of_events(events: Iterable[Json]) -> dict[str, Any]:
    """The profile as the plug-in writes it at the end of a run."""
    history = _History()
    for event in events:
        try:
            history.add(event)
        except (KeyError, TypeError) as error:
            name = event.get("Event") if isinstance(event, Mapping) else event
            raise BadInput(f"{name} has no usable field {error}; give the events of a log of Spark 3.5 or 4") from error
    if not history.jobs:
        raise BadInput("the log holds no job; give the log of an application that ran one")
    return {"format": FORMAT, "rdds": list(history.numbers), "jobs": history.jobs}


@dataclass(slots=True)
class _History:
    jobs: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    _signatures: dict[int, str] = field(default_factory=dict)
    _occurrences: Counter[str] = field(default_factory=Counter)
    _made: set[Block] = field(default_factory=set)
    _shuffled: set[int] = field(default_factory=set)
    _position: float = 0.0
    _stage: int = 0

    def add(self, event: Json) -> None:
        if event["Event"] == "SparkListenerJobStart":
            self._job(event)
        elif event["Event"] == "SparkListenerUnpersistRDD":
            self._made = {block for block in self._made if block[0] != event["RDD ID"]}

    def _job(self, event: Json) -> None:
        stages = sorted(event["Stage Infos"], key=lambda stage: int(stage["Stage ID"]))
        for info in sorted(_rdds(stages).values(), key=lambda rdd: int(rdd["RDD ID"])):
            self._sign(info)
        last = self._signatures[max(int(rdd["RDD ID"]) for rdd in stages[-1]["RDD Info"])]
        start = self._position
        tasks = [task for stage in stages for task in self._tasks(stage, is_last=stage is stages[-1])]
        signature = self._numbered(f"job {last.partition('#')[0]}")
        self.jobs.append({"signature": signature, "position": start, "tasks": tasks})

    def _tasks(self, stage: Json, is_last: bool) -> Iterator[list[float]]:
        """Of every task its stage, its position, and what it reads; a shuffle that was written before is skipped."""
        infos = {int(info["RDD ID"]): info for info in stage["RDD Info"]}
        if not infos or (max(infos) in self._shuffled and not is_last):
            return
        self._stage += 1
        for partition in range(stage["Number of Tasks"]):
            reads = self._reads(infos, (max(infos), partition))
            if reads:
                places = [number for rdd, place in reads for number in (self._number(rdd), place)]
                yield [self._stage, self._position, *places]
            self._position += len(reads) * _DEFAULT_BYTES
        if not is_last:
            self._shuffled.add(max(infos))

    def _reads(self, infos: Mapping[int, Json], start: Block) -> list[Block]:
        """The nearest persisted blocks that exist; those that do not are made by this task."""
        reads: dict[Block, None] = {}
        work, seen = [start], set[Block]()
        while work:
            block = work.pop()
            if block in seen or block[0] not in infos:
                continue
            seen.add(block)
            info = infos[block[0]]
            if block in self._made:
                reads[block] = None
                continue
            if info["Storage Level"]["Use Memory"]:
                self._made.add(block)
            work += [(parent, block[1]) for parent in info["Parent IDs"] if _is_parallel(infos.get(parent), info)]
        return list(reads)

    def _sign(self, info: Json) -> None:
        """The same signature as the plug-in gives: operator, call site, partitions, parents, and which one it is."""
        rdd = int(info["RDD ID"])
        if rdd not in self._signatures:
            parents = ",".join(self._signatures.get(parent, "") for parent in info["Parent IDs"])
            text = "|".join((info["Name"], info["Callsite"], str(info["Number of Partitions"]), parents))
            self._signatures[rdd] = self._numbered(hashlib.sha256(text.encode()).hexdigest()[:16])

    def _number(self, rdd: int) -> int:
        return self.numbers.setdefault(self._signatures[rdd], len(self.numbers))

    def _numbered(self, name: str) -> str:
        self._occurrences[name] += 1
        return f"{name}#{self._occurrences[name]}"


def _rdds(stages: Iterable[Json]) -> dict[int, Json]:
    return {int(info["RDD ID"]): info for stage in stages for info in stage["RDD Info"]}


def _is_parallel(parent: Json | None, child: Json) -> bool:
    return parent is not None and parent["Number of Partitions"] == child["Number of Partitions"]
