"""A measured pipeline: stages with operation times and memory, links between them, and how they are run.

A stage does three things with every micro-batch: F (forward), B (the gradient of its input) and W (the gradient of its
weights). Stage i sends activations to stage i + 1 and receives gradients from it, over link i.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from takeup.errors import BadInput

LONGEST_S = 1e6  # an operation of eleven days is an input error
MOST_S = 1e9  # the clock of the simulator counts nanoseconds in 64 bits


@dataclass(frozen=True, slots=True)
class Stage:
    """Operation times and memory use of a stage.

    One micro-batch occupies `activation_bytes` from its F to the end of its W, out of `memory_bytes` (None: no known
    limit). `tail_s` follows the last operation of the stage: gradient reduction among replicas, and the optimizer.
    """

    forward_s: float
    backward_s: float
    weight_s: float
    activation_bytes: int = 0
    memory_bytes: int | None = None
    tail_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "weight_s", "tail_s"):
            _check_time(name, getattr(self, name))
        if self.activation_bytes < 0 or (self.memory_bytes or 0) < 0:
            raise BadInput("activation_bytes and memory_bytes must not be negative; give zero or leave them out")

    @property
    def work_s(self) -> float:
        return self.forward_s + self.backward_s + self.weight_s


@dataclass(frozen=True, slots=True)
class Link:
    """A message waits for a free channel, occupies it for `service_s`, and arrives `latency_s` later.

    Each direction has its own channels, unless the link is `half_duplex`: then both share them, like sends and
    receives on one CUDA stream.
    """

    latency_s: float = 0.0
    service_s: float = 0.0
    num_channels: int = 1
    half_duplex: bool = False

    def __post_init__(self) -> None:
        _check_time("latency_s", self.latency_s)
        _check_time("service_s", self.service_s)
        if not 1 <= self.num_channels <= 1024:
            raise BadInput(f"num_channels is {self.num_channels}; give a number from 1 to 1024")

    @property
    def delay_s(self) -> float:
        """Delay of a message without queueing."""
        return self.latency_s + self.service_s


@dataclass(frozen=True)
class Profile:
    """Input of a planner for one iteration.

    `placement[i]` is the rank that computes stage i (default: rank i); stages of one rank share its compute lane
    and its wires. `sizes` scales times by micro-batch. `hop_s` is added to every message, `host_s` to every operation.
    With `max_sends`, a rank computes only while fewer of its sends are in flight: 1 models a single hardware queue,
    None a runtime in which compute never waits behind a send.
    """

    stages: tuple[Stage, ...]
    links: tuple[Link, ...]
    num_microbatches: int
    placement: tuple[int, ...] = ()
    sizes: tuple[float, ...] = ()
    hop_s: float = 0.0
    host_s: float = 0.0
    max_sends: int | None = None
    can_split: bool = True

    def __post_init__(self) -> None:
        if not self.placement:
            object.__setattr__(self, "placement", tuple(range(self.num_stages)))
        self._check_counts()
        self._check_placement()
        _check_time("hop_s", self.hop_s)
        _check_time("host_s", self.host_s)
        for number, size in enumerate(self.sizes):
            _check_time(f"sizes[{number}]", size)
        self._check_total()
        if self.max_sends is not None and self.max_sends < 1:
            raise BadInput(f"max_sends is {self.max_sends}; give at least 1, or None if compute never waits for a send")

    def _check_counts(self) -> None:
        if not self.stages:
            raise BadInput("a pipeline needs at least one stage; none was given")
        if len(self.links) != self.num_stages - 1:
            raise BadInput(
                f"found {len(self.links)} links for {self.num_stages} stages; give one between each stage and the next"
            )
        if self.num_microbatches < 1:
            raise BadInput(f"num_microbatches is {self.num_microbatches}; give at least one")
        if self.num_stages * self.num_microbatches > 2**24:
            raise BadInput("more than 16 million pairs of stage and micro-batch; give fewer micro-batches")
        if len(self.sizes) not in {0, self.num_microbatches}:
            raise BadInput(
                f"found {len(self.sizes)} sizes for {self.num_microbatches} micro-batches; give one for each"
            )

    def _check_total(self) -> None:
        times_s = [stage.work_s + 3 * self.host_s + stage.tail_s for stage in self.stages]
        times_s += [2 * (link.delay_s + self.hop_s) for link in self.links]
        total_s = sum(times_s) * self.num_microbatches * max(1.0, *self.sizes, 1.0)
        if total_s > MOST_S:
            raise BadInput(f"all operations and messages together take {total_s:g} s; give at most {MOST_S:g} s")

    def _check_placement(self) -> None:
        ranks = set(self.placement)
        if len(self.placement) != self.num_stages or ranks != set(range(len(ranks))):
            raise BadInput(
                f"placement is {self.placement} for {self.num_stages} stages; give each a rank, from 0 without gaps"
            )

    @classmethod
    def uniform(
        cls, num_stages: int, num_microbatches: int, op_s: float, links: Mapping[int, Link] | None = None
    ) -> Profile:
        """A pipeline in which all operations take equally long; links that are not given cost nothing."""
        given = links or {}
        stages = (Stage(op_s, op_s, op_s),) * num_stages
        return cls(stages, tuple(given.get(i, Link()) for i in range(num_stages - 1)), num_microbatches)

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    @property
    def num_ranks(self) -> int:
        return 1 + max(self.placement)

    @cached_property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """The stages of every rank, in the order in which a micro-batch visits them."""
        found: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for stage, rank in enumerate(self.placement):
            found[rank].append(stage)
        return tuple(map(tuple, found))

    @property
    def one_stage_per_rank(self) -> bool:
        return self.num_ranks == self.num_stages

    def max_live(self, rank: int) -> int | None:
        """Maximum number of micro-batches in the memory of a rank; None without a limit."""
        stages = [self.stages[stage] for stage in self.chunks[rank]]
        limits = [stage.memory_bytes for stage in stages if stage.memory_bytes is not None]
        needed_bytes = sum(stage.activation_bytes for stage in stages)
        return sum(limits) // needed_bytes if limits and needed_bytes else None

    def live_limits(self) -> tuple[int, ...]:
        """Maximum number of live micro-batches per rank; rejects a rank that cannot hold even one."""
        limits = [self.max_live(rank) for rank in range(self.num_ranks)]
        for rank, limit in enumerate(limits):
            if limit == 0:
                raise BadInput(
                    f"rank {rank} has too little memory for the activations of one micro-batch, so no schedule fits; "
                    "use smaller micro-batches, more stages, or recomputation"
                )
        count = self.num_microbatches
        return tuple(count if limit is None else min(count, limit) for limit in limits)

    def with_links(self, links: Mapping[int, Link]) -> Profile:
        return replace(self, links=tuple(links.get(i, link) for i, link in enumerate(self.links)))


def _check_time(name: str, value: float) -> None:
    if not (math.isfinite(value) and 0 <= value <= LONGEST_S):
        raise BadInput(f"{name} is {value:g}; give a number from 0 to {LONGEST_S:g}")
