"""A pipeline in plain Python, with a clock and a heap of events: what the compiled kernels must agree with."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from takeup.training.pipelines.profile import Profile
from takeup.training.pipelines.schedule import Op, OpKind, Schedule

NS = 10**9
Choose = Callable[["PlainPipeline", int], Op | None]


def nanoseconds(seconds: float) -> int:
    return round(seconds * NS)


@dataclass
class PlainPipeline:
    """State of one iteration; `now` is in nanoseconds."""

    profile: Profile
    factors: Sequence[Sequence[Sequence[float]]] | None = None
    now: int = 0
    arrived: dict[tuple[str, int, int], int] = field(default_factory=dict)
    done: defaultdict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    spans: list[list[tuple[Op, int, int]]] = field(default_factory=list)
    busy_until: list[int] = field(default_factory=list)
    sends: list[list[int]] = field(default_factory=list)
    channels: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    events: list[int] = field(default_factory=list)
    to_send: list[tuple[int, int, Op, str, int]] = field(default_factory=list)

    def run(self, choose: Choose) -> int:
        """Let every rank choose whenever it is free; the iteration time."""
        ranks = range(self.profile.num_ranks)
        self.spans, self.busy_until, self.sends = [[] for _ in ranks], [0 for _ in ranks], [[] for _ in ranks]
        for microbatch in range(self.profile.num_microbatches):
            self.arrived["F", 0, microbatch] = 0
        self.events = [0]
        while self.events:
            self.now = heapq.heappop(self.events)
            while self.to_send and self.to_send[0][0] <= self.now:
                self.send(*heapq.heappop(self.to_send))
            for rank in ranks:
                if self.is_free(rank) and (op := choose(self, rank)) is not None:
                    self.start(rank, op)
        ends = [end + nanoseconds(self.profile.stages[op.stage].tail_s) for spans in self.spans for op, _, end in spans]
        return max(ends, default=0)

    def is_free(self, rank: int) -> bool:
        under_way = sum(moment > self.now for moment in self.sends[rank])
        most = self.profile.max_sends
        return self.busy_until[rank] <= self.now and (most is None or under_way < most)

    def lasts(self, op: Op) -> int:
        stage, profile = self.profile.stages[op.stage], self.profile
        size = profile.sizes[op.microbatch] if profile.sizes else 1.0
        parts = {OpKind.FORWARD: stage.forward_s, OpKind.INPUT_GRADIENT: stage.backward_s}
        parts |= {OpKind.WEIGHT_GRADIENT: stage.weight_s, OpKind.FULL_BACKWARD: stage.backward_s + stage.weight_s}
        factor = 1.0 if self.factors is None else self.factors[op.kind][op.stage][op.microbatch]
        return nanoseconds((parts[op.kind] * size + profile.host_s) * factor)

    def start(self, rank: int, op: Op) -> None:
        end = self.now + self.lasts(op)
        self.spans[rank].append((op, self.now, end))
        self.busy_until[rank] = end
        self.done[op.stage, op.kind.letter] += 1
        heapq.heappush(self.events, end)
        if op.kind == OpKind.FORWARD and op.stage + 1 < self.profile.num_stages:
            heapq.heappush(self.to_send, (end, rank, op, "F", op.stage + 1))
        elif op.kind == OpKind.FORWARD:
            self.arrived["B", op.stage, op.microbatch] = end
        elif op.kind in {OpKind.INPUT_GRADIENT, OpKind.FULL_BACKWARD} and op.stage > 0:
            heapq.heappush(self.to_send, (end, rank, op, "B", op.stage - 1))

    def send(self, end: int, rank: int, op: Op, direction: str, target: int) -> None:
        other = self.profile.placement[target]
        arrives = end
        if other != rank:
            link = self.profile.links[min(op.stage, target)]
            size = self.profile.sizes[op.microbatch] if self.profile.sizes else 1.0
            ends = (min(rank, other), max(rank, other)) if link.half_duplex else (rank, other)
            free = self.channels.setdefault(ends, [0] * link.num_channels)
            first = free.index(min(free))
            free[first] = max(free[first], end) + nanoseconds(link.service_s * size)
            arrives = free[first] + nanoseconds(link.latency_s + self.profile.hop_s)
            self.sends[rank].append(arrives)
        self.arrived[direction, target, op.microbatch] = arrives
        heapq.heappush(self.events, arrives)

    def has(self, direction: str, stage: int, microbatch: int) -> bool:
        return self.arrived.get((direction, stage, microbatch), self.now + 1) <= self.now


def in_order(schedule: Schedule) -> Choose:
    """Keep to the order of a schedule."""
    orders = [schedule.ops(rank) for rank in range(len(schedule.codes))]

    def choose(state: PlainPipeline, rank: int) -> Op | None:
        if len(state.spans[rank]) == len(orders[rank]):
            return None
        op = orders[rank][len(state.spans[rank])]
        direction = "F" if op.kind == OpKind.FORWARD else "B"
        ready = op.kind == OpKind.WEIGHT_GRADIENT or state.has(direction, op.stage, op.microbatch)
        return op if ready else None

    return choose


def greedy(warmups: Sequence[int], caps: Sequence[int], flights: Sequence[int]) -> Choose:
    """A backward, else a forward, else a weight gradient; of the stages of a rank the last first."""

    def choose(state: PlainPipeline, rank: int) -> Op | None:
        stages, count = state.profile.chunks[rank], state.profile.num_microbatches
        done = state.done
        for stage in reversed(stages):
            backwards = done[stage, "I"]
            if backwards < count and done[stage, "F"] >= warmups[stage] and state.has("B", stage, backwards):
                return Op(stage, OpKind.INPUT_GRADIENT, backwards)
        held = done[stages[0], "F"] * len(stages) - sum(done[stage, "W"] for stage in stages)
        for stage in reversed(stages):
            forwards = done[stage, "F"]
            room = stage != stages[0] or held + len(stages) <= caps[rank] * len(stages)
            room = room and forwards - done[stage, "I"] < flights[stage]
            if forwards < count and room and state.has("F", stage, forwards):
                return Op(stage, OpKind.FORWARD, forwards)
        for stage in reversed(stages):
            if done[stage, "W"] < done[stage, "I"]:
                return Op(stage, OpKind.WEIGHT_GRADIENT, done[stage, "W"])
        return None

    return choose
