"""Steps and what is done beside them are in each other's way: by hand, against a plain twin, and what is conserved."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.serving.diffusion.policies import Grouping
from takeup.serving.model import Arrival, Design, QueueOutcome, RowCosts
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES
from takeup.serving.scheduling.queue import Admission
from takeup.serving.scheduling.routing import least_busy
from takeup.serving.simulate.instance import InstancePolicies, simulate_queue

MAX_ROWS, TINY = 2**13, 1e-12
DESIGN = Design(
    "shared", RowCosts(((2, 1.0), (4, 1.5), (8, 2.5))), max_running=2, before_s=0.5, after_s=0.25, contention_share=1.0
)


def simulate(arrivals: list[Arrival], design: Design) -> QueueOutcome:
    rules = InstancePolicies(Grouping(MAX_ROWS), ADAPTER_POLICIES["lru"])
    return simulate_queue(arrivals, design, num_gpus=1, rules=rules, route=least_busy, admit=Admission())


# A twin that knows threads, not stretches ---------------------------------------------------------------------------


@dataclass
class Thread:
    """Somebody who computes: the loop, or what is done beside it for a request."""

    left_s: float
    kind: str
    number: int = -1


class Twin:
    """One instance without LoRAs: all threads go on at the same speed, one divided by what they are in their way."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.threads: list[Thread] = []
        self.line: list[int] = []
        self.done_steps: dict[int, int] = {}
        self.in_step: list[int] = []
        self.free = design.max_running
        self.num_rows: dict[int, int] = {}
        self.starts_s: dict[int, float] = {}
        self.ends_s: dict[int, float] = {}

    def serve(self, arrivals: list[Arrival]) -> None:
        """Until everybody has left."""
        coming, now_s = sorted(arrivals, key=lambda one: (one.arrival_s, one.number)), 0.0
        self.num_rows = {one.number: one.num_rows for one in arrivals}
        while len(self.ends_s) < len(arrivals):
            self.fill(now_s)
            speed = 1 / (1 + self.design.contention_share * max(0, len(self.threads) - 1))
            waits_s = [thread.left_s / speed for thread in self.threads]
            step_s = min([*waits_s, *(one.arrival_s - now_s for one in coming[:1])])
            now_s += step_s
            for thread in self.threads:
                thread.left_s -= step_s * speed
            while coming and coming[0].arrival_s <= now_s + TINY:
                self.line.append(coming.pop(0).number)
            self.end_what_is_done(now_s, arrivals)

    def fill(self, now_s: float) -> None:
        while self.line and self.free:
            number = self.line.pop(0)
            self.free -= 1
            self.starts_s[number] = now_s
            self.threads.append(Thread(self.design.before_s, "before", number))
        if self.done_steps and not self.in_step:
            self.in_step = list(self.done_steps)
            self.threads.append(Thread(self.design.step(sum(self.num_rows[one] for one in self.in_step)), "loop"))

    def end_what_is_done(self, now_s: float, arrivals: list[Arrival]) -> None:
        steps = {one.number: one.num_steps for one in arrivals}
        done = [thread for thread in self.threads if thread.left_s <= TINY]
        self.threads = [thread for thread in self.threads if thread.left_s > TINY]
        for thread in done:
            if thread.kind == "before":
                self.done_steps[thread.number] = 0
            elif thread.kind == "after":
                self.ends_s[thread.number] = now_s
                self.free += 1
            else:
                self.end_step(steps)

    def end_step(self, steps: dict[int, int]) -> None:
        for number in self.in_step:
            self.done_steps[number] += 1
            if self.done_steps[number] == steps[number]:
                del self.done_steps[number]
                self.threads.append(Thread(self.design.after_s, "after", number))
        self.in_step = []


def twin_of(arrivals: list[Arrival], design: Design) -> Twin:
    twin = Twin(design)
    twin.serve(arrivals)
    return twin


SECONDS = st.integers(1, 400).map(lambda number: number / 97)
ROOTS = 2**0.5, 3**0.5 / 5, 5**0.5 / 7  # so that hardly two things happen at the same time


@given(
    st.lists(st.tuples(SECONDS, st.integers(1, 5)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.3, 1.0]),
    SECONDS,
    SECONDS,
)
def test_stretched_times_are_those_of_threads_that_share(
    drawn: list[tuple[float, int]], max_running: int, share: float, before_s: float, after_s: float
) -> None:
    times_s = [ROOTS[0] * sum(gap_s for gap_s, _ in drawn[: place + 1]) for place in range(len(drawn))]
    arrivals = [  # no two sets of requests have steps of one length, so that rounding decides nothing
        Arrival(place, times_s[place], num_steps, 2 << place) for place, (_, num_steps) in enumerate(drawn)
    ]
    design = replace(DESIGN, max_running=max_running, contention_share=share, step=RowCosts(((2, 1.0), (4096, 77.7))))
    design = replace(design, before_s=ROOTS[1] * before_s, after_s=ROOTS[2] * after_s)
    twin = twin_of(arrivals, design)

    for served in simulate(arrivals, design).served:
        assert served.start_s == pytest.approx(twin.starts_s[served.arrival.number], abs=1e-6)
        assert served.end_s == pytest.approx(twin.ends_s[served.arrival.number], abs=1e-6)


def test_alone_nobody_is_in_the_way() -> None:
    (served,) = simulate([Arrival(0, 0.0, num_steps=3)], DESIGN).served

    assert served.end_s == pytest.approx(0.5 + 3 * 1.0 + 0.25)


def test_who_is_prepared_slows_the_step_and_is_slowed_by_it() -> None:
    """The first begins its step at 0.5. The second is prepared from 0.6 on: 0.5 s of work that takes 1 s beside it."""
    first, second = simulate([Arrival(0, 0.0, num_steps=1), Arrival(1, 0.6, num_steps=1)], DESIGN).served

    # 0.1 s of the step is done when the second comes, and 0.5 s more when that one is ready, at 1.6: 0.4 s are left
    assert second.first_step_s == pytest.approx(2.0)
    # its image is decoded from 2.0 on, beside the step of the second: 0.25 s of work
    assert first.end_s == pytest.approx(2.0 + 2 * 0.25)


def test_on_one_device_the_work_is_what_it_is() -> None:
    """Whatever overlaps, a device that is shared by all is done when all its work is."""
    arrivals = [Arrival(number, 0.0, num_steps=4) for number in range(20)]
    design = replace(DESIGN, step=RowCosts(((2, 1.0),)))  # a row costs what it costs, in whatever company
    outcome = simulate(arrivals, design)

    assert max(one.end_s for one in outcome.served) == pytest.approx(20 * (0.5 + 4 * 1.0 + 0.25))


def test_more_contention_is_never_faster() -> None:
    arrivals = [Arrival(number, 0.7 * number, num_steps=3) for number in range(30)]
    ends_s = [
        max(one.end_s for one in simulate(arrivals, replace(DESIGN, contention_share=share)).served)
        for share in (0.0, 0.25, 0.5, 1.0)
    ]

    assert ends_s == sorted(ends_s)
    assert ends_s[0] < ends_s[-1]


def test_loads_of_loras_are_not_slowed() -> None:
    """Its LoRA comes from far away while its text is encoded, and is there when it is there."""
    wants = Arrival(1, 0.0, num_steps=1, loras=("paper",), load_s=(10.0,))
    design = replace(DESIGN, parallel_loads=True)
    outcome = simulate([Arrival(0, 0.0, num_steps=4), wants], design)

    assert outcome.served[1].first_step_s == pytest.approx(10.0)


def test_less_than_no_contention_is_refused() -> None:
    with pytest.raises(BadInput, match="contention"):
        replace(DESIGN, contention_share=-0.1)
