"""A plain twin of the queue simulator for one instance: it makes every step, one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from takeup.serving.contract import Group
from takeup.serving.model import Arrival, Design

__all__ = ["Naive", "serve_naively"]


@dataclass
class Naive:
    """A request on its way. Its LoRAs are never there before."""

    arrival: Arrival
    steps: int = 0
    begin_s: float = math.inf
    ready_s: float = math.inf
    start_s: float = math.nan
    end_s: float = math.nan
    ending: str = ""


def serve_naively(arrivals: Sequence[Arrival], design: Design, group: Group) -> dict[int, Naive]:
    """Every request by number, served in order on one instance that joins at any step and remembers no LoRA."""
    coming = [Naive(arrival) for arrival in sorted(arrivals, key=lambda one: (one.arrival_s, one.number))]
    everybody = {one.arrival.number: one for one in coming}
    waiting: list[Naive] = []
    running: list[Naive] = []
    now_s = 0.0
    while coming or waiting or running:
        while coming and coming[0].arrival.arrival_s <= now_s:  # while the last step was made, and nobody left
            waiting.append(coming.pop(0))
            if len(running) < design.max_running:
                first = waiting.pop(0)
                running.append(_start(first, first.arrival.arrival_s, design))
        for one in [one for one in running if one.steps == one.arrival.num_steps]:
            one.ending, one.end_s = "done", now_s
            running.remove(one)
        for one in [one for one in waiting + running if now_s >= one.arrival.deadline_s]:
            one.ending, one.end_s = "expired", now_s
            (waiting if one in waiting else running).remove(one)
        while waiting and len(running) < design.max_running:
            running.append(_start(waiting.pop(0), now_s, design))
        begun = [one for one in running if one.begin_s <= now_s]
        able = [one for one in begun if one.ready_s <= now_s or one.steps < _late_steps(one, design)]
        if not able:
            later = [time_s for one in running for time_s in (one.begin_s, one.ready_s, one.arrival.deadline_s)]
            later += [one.arrival.arrival_s for one in coming[:1]]
            now_s = min((time_s for time_s in later if time_s > now_s), default=now_s)
            continue
        calls = group([design.candidate(one.arrival) for one in able])
        now_s += sum(design.call_s([everybody[number].arrival for number in call]) for call in calls)
        for one in able:
            one.steps += 1
    return everybody


def _start(one: Naive, now_s: float, design: Design) -> Naive:
    one.start_s = now_s
    one.begin_s = now_s + design.before_s
    one.ready_s = max(one.begin_s, now_s + max(one.arrival.load_s, default=0.0))
    return one


def _late_steps(one: Naive, design: Design) -> int:
    return min(int(one.arrival.num_steps * design.late_share), one.arrival.num_steps - 1)
