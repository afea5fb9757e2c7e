"""Which persisted partitions a task reads and makes: the walk up the RDD graph of its stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from takeup.caching.traces.eventlog.events import Rdd, RddPartition, SparkStage

_SHUFFLE_READERS = frozenset(("CustomShuffledRDD", "ShuffledRDD", "ShuffledRowRDD"))
_CARTESIANS = frozenset(("CartesianRDD", "UnsafeCartesianRDD"))


@dataclass(frozen=True, slots=True)
class TaskBlocks:
    """The blocks that one task reads from the cache and stores in it."""

    reads: tuple[RddPartition, ...]
    makes: tuple[RddPartition, ...]


@dataclass(slots=True)
class Lineage:
    """Visits tasks in launch order and records the partitions computed so far."""

    guesses: dict[str, None] = field(default_factory=dict)
    _made: set[RddPartition] = field(default_factory=set)
    _relevant: dict[int, frozenset[int]] = field(default_factory=dict)

    def run(self, stage: SparkStage, partition: int) -> TaskBlocks:
        """The blocks of the task that runs this partition of the stage, depth first, parents in their order."""
        reads: list[RddPartition] = []
        makes: list[RddPartition] = []
        relevant = self._relevant_rdds(stage)
        work, seen = [(stage.own_rdd, partition)], set[tuple[int, int]]()
        while work:
            place = work.pop()
            if place in seen or place[0] not in relevant:
                continue
            seen.add(place)
            rdd = stage.rdds[place[0]]
            block = RddPartition(rdd.rdd, rdd.generation, place[1])
            if block in self._made and _is_persisted(rdd):
                reads += [block] * rdd.in_memory
                continue
            makes += [block] * _is_persisted(rdd)
            work += reversed(self._parents(rdd, place[1], stage.rdds))
        self._made.update(makes)
        return TaskBlocks(tuple(reads), tuple(block for block in makes if stage.rdds[block.rdd].in_memory))

    def _relevant_rdds(self, stage: SparkStage) -> frozenset[int]:
        """The RDDs of a stage that are persisted or have a persisted ancestor in it; parents have smaller numbers."""
        if stage.stage not in self._relevant:
            relevant: set[int] = set()
            for number, rdd in sorted(stage.rdds.items()):
                if _is_persisted(rdd) or relevant.intersection(_narrow_parents(rdd)):
                    relevant.add(number)
            self._relevant[stage.stage] = frozenset(relevant)
        return self._relevant[stage.stage]

    def _parents(self, rdd: Rdd, partition: int, rdds: Mapping[int, Rdd]) -> list[tuple[int, int]]:
        """The partitions of its parents that a partition reads without a shuffle."""
        parents = [rdds[number] for number in _narrow_parents(rdd) if number in rdds]
        counts = [parent.num_partitions for parent in parents]
        if len(parents) == 2 and rdd.name in _CARTESIANS and prod(counts) == rdd.num_partitions:
            places = zip(parents, divmod(partition, counts[1]), strict=True)
            return [(parent.rdd, place) for parent, place in places]
        if len(parents) > 1 and sum(counts) == rdd.num_partitions:
            return [_place_in_union(parents, partition)]
        return [(parent.rdd, place) for parent in parents for place in self._neighbours(rdd, parent, partition)]

    def _neighbours(self, rdd: Rdd, parent: Rdd, partition: int) -> Iterable[int]:
        """Partition i reads partition i; where the numbers differ, both are cut into equal runs of neighbours."""
        there, here = parent.num_partitions, rdd.num_partitions
        if there == here:
            return (partition,)
        self.guesses.setdefault(
            f"RDD {rdd.rdd} ({rdd.name}) has {here} partitions and its parent {parent.rdd} has {there}; "
            "neighbouring partitions are taken to go together"
        )
        first = partition * there // here
        return range(first, max(first + 1, (partition + 1) * there // here))


def _is_persisted(rdd: Rdd) -> bool:
    return rdd.in_memory or rdd.on_disk


def _narrow_parents(rdd: Rdd) -> tuple[int, ...]:
    return () if rdd.name in _SHUFFLE_READERS else rdd.parents


def _place_in_union(parents: Iterable[Rdd], partition: int) -> tuple[int, int]:
    for parent in parents:
        if partition < parent.num_partitions:
            return parent.rdd, partition
        partition -= parent.num_partitions
    raise AssertionError("the partitions of the parents add up to those of the union")
