"""One simulated instance: requests that wait for it, those in its step loop, and the stretch of equal steps it is in.

How it works. Between two changes (a request joins the loop, ends, expires, blocks on a LoRA, or gets it) all steps take
the same time. Such a *stretch* is one event, regardless of its number of steps. Admission is independent of it: a
request that arrives while a slot is free starts at once, and if it can make steps before the stretch ends, the stretch
is cut short at the next step boundary.

Work outside the steps (text encoding before, image decoding after) may contend with the steps and with itself. All
concurrent work is slowed by the same factor; when some of it begins or ends, the remaining times are rescaled.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field

from takeup.errors import BadInput
from takeup.serving.contract import Admit, CachePolicy, Choose, Group, Route
from takeup.serving.model import Arrival, Design, Ending, QueueOutcome, Served
from takeup.serving.scheduling.queue import ReorderingQueue, expected_s

# The LoRAs of one simulated instance: in memory, or in storage --------------------------------------------------------
#
# LoRAs of running requests cannot be evicted. If there are no others, the device exceeds its capacity for a while, as
# the store of the real engine does.

Queue = Sequence[tuple[Hashable, ...]]


class LoraResidency:
    """Which of at most `capacity` LoRAs are in memory, and when running loads end."""

    def __init__(self, policy: CachePolicy, capacity: int) -> None:
        self._policy, self._capacity = policy, capacity
        self._ready_s: dict[Hashable, float] = {}
        self._users: Counter[Hashable] = Counter()

    @property
    def names(self) -> Collection[Hashable]:
        """LoRAs that are on the device or being loaded to it."""
        return self._ready_s.keys()

    def use(self, lora: Hashable, load_s: float, now_s: float, queue: Queue) -> tuple[bool, float]:
        """Whether the LoRA must be loaded, in `load_s` seconds, and when it is available."""
        self._users[lora] += 1
        is_load = lora not in self._ready_s
        if is_load:
            self._shrink(queue, 1)
            self._ready_s[lora] = now_s + load_s
        self._policy.used(lora)
        return is_load, max(now_s, self._ready_s[lora])

    def release(self, loras: Sequence[Hashable], queue: Queue) -> None:
        """A request that used these LoRAs has ended."""
        self._users.subtract(loras)
        self._shrink(queue, 0)

    def _shrink(self, queue: Queue, num_wanted: int) -> None:
        while len(self._ready_s) + num_wanted > self._capacity:
            idle = [lora for lora in self._ready_s if not self._users[lora]]
            if not idle:
                return
            victim = self._policy.victim(idle, queue)
            del self._ready_s[victim]
            self._policy.left(victim)


ROUNDING = 1e-9  # of a step: a boundary that is nearer than this is now


@dataclass(frozen=True, slots=True)
class InstancePolicies:
    """Policies of an instance: batching, the cache of `capacity` LoRAs, and the choice of the next request."""

    group: Group
    make_cache: Callable[[], CachePolicy]
    capacity: int = 10
    choose: Choose | None = None
    patience: int = 0


@dataclass(slots=True, eq=False)
class SimulatedJob:
    """A request in an instance."""

    arrival: Arrival
    num_steps: int
    late_steps: int
    done_steps: int = 0
    start_s: float = math.nan
    first_step_s: float = math.nan
    begin_s: float = math.inf
    ready_s: float = math.inf
    num_loads: int = 0

    def steps_ahead(self, now_s: float) -> int:
        """How many steps it can make before something changes; none if it waits for its LoRAs, or has made them all."""
        if now_s < self.begin_s:
            return 0
        return (self.num_steps if self.ready_s <= now_s else self.late_steps) - self.done_steps

    @property
    def times_s(self) -> tuple[float, float, float]:
        """Times at which its state changes by itself."""
        return self.begin_s, self.ready_s, self.arrival.deadline_s

    @property
    def is_made(self) -> bool:
        """Whether all steps are done; then it stays until `ready_s`."""
        return self.done_steps == self.num_steps

    def is_outside_loop(self, now_s: float) -> bool:
        """Whether it is being prepared or finished now, outside the step loop."""
        return (self.ready_s if self.is_made else self.begin_s) > now_s

    def rescale(self, factor: float, now_s: float) -> None:
        """Scale the remaining time of its work outside the steps by this factor; LoRA loads are not scaled."""
        if self.is_made:
            self.ready_s = _rescaled(self.ready_s, factor, now_s)
        elif self.begin_s > now_s:
            moved_s = _rescaled(self.begin_s, factor, now_s)
            self.ready_s = moved_s if self.ready_s == self.begin_s else max(moved_s, self.ready_s)
            self.begin_s = moved_s


@dataclass(slots=True)
class _Stretch:
    """Equal steps of the same requests, from `begin_s` on."""

    begin_s: float
    step_s: float
    num_steps: int
    jobs: Sequence[SimulatedJob]
    num_calls: int

    @property
    def end_s(self) -> float:
        return self.begin_s + self.num_steps * self.step_s

    def rescale(self, factor: float, now_s: float) -> None:
        """From now on steps take this many times as long, the current one included."""
        self.begin_s = _rescaled(self.begin_s, factor, now_s)
        self.step_s *= factor

    def cut(self, time_s: float) -> None:
        """End the stretch with the step that is in progress at this time."""
        if time_s < self.end_s:
            self.num_steps = min(self.num_steps, max(1, math.ceil((time_s - self.begin_s) / self.step_s - ROUNDING)))


@dataclass(slots=True)
class SimulatedInstance:
    """One instance under a design. `on_end` is called for every request that has ended."""

    number: int
    design: Design
    rules: InstancePolicies
    on_end: Callable[[Served], None]
    busy_s: float = 0.0
    num_calls: int = 0
    num_call_rows: int = 0
    num_most_waiting: int = 0
    running: list[SimulatedJob] = field(default_factory=list)
    queue: ReorderingQueue[SimulatedJob] = field(init=False)
    residents: LoraResidency = field(init=False)
    _stretch: _Stretch | None = None
    _patched: tuple[Hashable, ...] = ()
    _last_s: float = 0.0
    _pace: float = 1.0

    def __post_init__(self) -> None:
        self.queue = ReorderingQueue[SimulatedJob](self.rules.choose, self.rules.patience)
        self.residents = LoraResidency(self.rules.make_cache(), self.rules.capacity)

    @property
    def num_inside(self) -> int:
        """Requests that are not over."""
        return len(self.queue) + len(self.running)

    @property
    def num_waiting(self) -> int:
        """Number of waiting requests; a negative value is the number of free slots."""
        return len(self.queue) - (self.design.max_running - len(self.running)) * self._has_room

    def expected_s(self, arrival: Arrival) -> float:
        """Estimated latency of a request that arrives now."""
        together = min(self.num_inside + 1, self.design.max_running)
        after_it_s = expected_s(
            self.design.num_steps(arrival),
            self.design.step(arrival.num_rows * together),
            steps_ahead=sum(job.num_steps - job.done_steps for job in (*self.running, *self.queue.items)),
            num_inside=self.num_inside,
            max_running=self.design.max_running,
        )
        return after_it_s + self.design.around_s

    def add(self, arrival: Arrival, now_s: float) -> float | None:
        """Add a request; returns when to call `advance_to`, if that is sooner than before."""
        num_steps = self.design.num_steps(arrival)
        self.queue.add(SimulatedJob(arrival, num_steps, self.design.late_steps(num_steps)), arrival.loras)
        self.num_most_waiting = max(self.num_most_waiting, len(self.queue))
        return now_s if self._has_room else None

    def advance_to(self, now_s: float) -> float | None:
        """Advance to `now_s`; returns when to call this again, or None."""
        self.busy_s += (now_s - self._last_s) * bool(self.running)
        self._last_s = now_s
        is_boundary = self._stretch is None or now_s >= self._stretch.end_s
        if is_boundary:
            self._settle(now_s)
            self._expire(now_s)
        self._release_finished(now_s)
        self._admit_waiting(now_s)
        if is_boundary:
            able = [job for job in self.running if job.steps_ahead(now_s) > 0]
            self._stretch = self._begin(able, now_s) if able else None
        self._share(now_s)
        if not is_boundary and self._stretch is not None and self._stretch.end_s <= now_s:
            return self.advance_to(now_s)  # the admitted request joins the step that begins now
        return self._next_event_s(now_s)

    @property
    def _has_room(self) -> bool:
        return len(self.running) < self.design.max_running and (self.design.joins == "any step" or not self.running)

    def _settle(self, now_s: float) -> None:
        stretch, self._stretch = self._stretch, None
        if stretch is None:
            return
        self.num_calls += stretch.num_calls * stretch.num_steps
        for job in stretch.jobs:
            self.num_call_rows += job.arrival.num_rows * stretch.num_steps
            job.done_steps += stretch.num_steps
            if job.is_made:
                job.ready_s = now_s + self.design.after_s * self._pace

    def _expire(self, now_s: float) -> None:
        for job in [job for job in self.running if now_s >= job.arrival.deadline_s and not job.is_made]:
            self._end(job, "expired", now_s)
        late = [place for place, job in enumerate(self.queue.items) if now_s >= job.arrival.deadline_s]
        for place in reversed(late):
            self._report_end(self.queue.remove(place), "expired", now_s)

    def _release_finished(self, now_s: float) -> None:
        for job in [job for job in self.running if job.is_made and job.ready_s <= now_s]:
            self._end(job, "done", now_s)

    def _end(self, job: SimulatedJob, ending: Ending, now_s: float) -> None:
        self.running.remove(job)
        self.residents.release(job.arrival.loras, self.queue.adapters)
        self._report_end(job, ending, now_s + self.design.around_s * (ending == "done"))

    def _report_end(self, job: SimulatedJob, ending: Ending, end_s: float) -> None:
        self.on_end(Served(job.arrival, ending, end_s, job.start_s, job.first_step_s, self.number, job.num_loads))

    def _admit_waiting(self, now_s: float) -> None:
        if not self._has_room:
            return
        while self.queue and len(self.running) < self.design.max_running:
            if self.design.joins == "any step" or not self.running:
                job = self.queue.pop(self.residents.names)
            else:
                key = self.running[0].arrival.batch_key
                same = (place for place, one in enumerate(self.queue.items) if one.arrival.batch_key == key)
                place = next(same, None)
                if place is None:
                    return
                job = self.queue.take(place)
            self._start(job, now_s)

    def _start(self, job: SimulatedJob, now_s: float) -> None:
        arrival = job.arrival
        self.running.append(job)
        job.start_s = now_s
        job.begin_s = job.ready_s = now_s + self.design.before_s * self._pace
        for lora, load_s in zip(arrival.loras, arrival.load_s, strict=True):
            begin_s = now_s if self.design.parallel_loads else job.ready_s
            is_load, ready_s = self.residents.use(lora, load_s, begin_s, self.queue.adapters)
            job.num_loads += is_load
            job.ready_s = max(job.ready_s, ready_s)
        job.ready_s += self.design.switch_s * arrival.num_controls
        if arrival.loras != self._patched:
            job.ready_s += self.design.patch_s * len(arrival.loras)
            self._patched = arrival.loras
        if self._stretch is not None:
            self._stretch.cut(min(job.begin_s if job.late_steps else job.ready_s, arrival.deadline_s))

    def _begin(self, able: Sequence[SimulatedJob], now_s: float) -> _Stretch:
        for job in able:
            job.first_step_s = now_s if math.isnan(job.first_step_s) else job.first_step_s
        arrivals = {job.arrival.number: job.arrival for job in able}
        calls = self.rules.group([self.design.candidate(one) for one in arrivals.values()])
        step_s = self._pace * sum(self.design.call_s([arrivals[number] for number in call]) for call in calls)
        stretch = _Stretch(now_s, step_s, min(job.steps_ahead(now_s) for job in able), able, len(calls))
        stretch.cut(self._next_change_s(now_s))
        return stretch

    def _next_change_s(self, now_s: float) -> float:
        return min((time_s for job in self.running for time_s in job.times_s if time_s > now_s), default=math.inf)

    # Outside the steps ----------------------------------------------------------------------------------------------

    def _share(self, now_s: float) -> None:
        """Apply the contention slowdown for the current number of concurrent computations."""
        num_beside = sum(job.is_outside_loop(now_s) for job in self.running)
        pace = 1 + self.design.contention_share * max(0, num_beside - (self._stretch is None))
        factor, self._pace = pace / self._pace, pace
        if factor == 1:
            return
        for job in self.running:
            job.rescale(factor, now_s)
        if self._stretch is not None:
            self._stretch.rescale(factor, now_s)
            self._stretch.cut(self._next_change_s(now_s))

    def _next_event_s(self, now_s: float) -> float | None:
        """Time of the next event: end of the stretch or of a request; without a stretch, when steps can begin."""
        if self._stretch is None:
            times_s = [time_s for job in self.running for time_s in job.times_s]
        else:
            times_s = [self._stretch.end_s, *(job.ready_s for job in self.running if job.is_made)]
            if self.design.contention_share:
                times_s += [job.begin_s for job in self.running]
        return min((time_s for time_s in times_s if now_s < time_s < math.inf), default=None)


def _rescaled(time_s: float, factor: float, now_s: float) -> float:
    """A time to come, when everything takes this many times as long from now on."""
    return now_s + (time_s - now_s) * factor


# Several instances: each arriving request is refused or routed to one of them -----------------------------------------
#
# Events are arrivals and state changes of instances. The policies are those of the real engine: batching, routing,
# admission control, queue order and cache eviction.


def simulate_queue(
    arrivals: Sequence[Arrival], design: Design, *, num_gpus: int, rules: InstancePolicies, route: Route, admit: Admit
) -> QueueOutcome:
    """Serve all arrivals, in the order of their times, on as many instances as the GPUs are enough for."""
    num_instances = num_gpus // design.gpus_per_instance
    if num_instances < 1:
        raise BadInput(f"{design.name} needs {design.gpus_per_instance} GPUs, found {num_gpus}; give more")
    served: list[Served] = []
    queue = _EventQueue(
        [SimulatedInstance(number, design, rules, served.append) for number in range(num_instances)], route, admit
    )
    for arrival in sorted(arrivals, key=lambda one: (one.arrival_s, one.number)):
        queue.run_until(arrival.arrival_s)
        if not queue.take(arrival):
            served.append(Served(arrival, "refused", arrival.arrival_s))
    queue.run_until(math.inf)
    instances = queue.instances
    return QueueOutcome(
        design.name,
        num_instances * design.gpus_per_instance,
        design.gpus_per_instance,
        tuple(sorted(served, key=lambda one: one.arrival.number)),
        sum(one.busy_s for one in instances),
        sum(one.num_calls for one in instances),
        sum(one.num_call_rows for one in instances),
        max(one.num_most_waiting for one in instances),
    )


class _EventQueue:
    """All instances, and when each of them must be looked at. What was planned and is no longer true is skipped."""

    def __init__(self, instances: Sequence[SimulatedInstance], route: Route, admit: Admit) -> None:
        self.instances = instances
        self._route, self._admit = route, admit
        self._heap: list[tuple[float, int]] = []
        self._planned: list[float | None] = [None] * len(instances)

    def take(self, arrival: Arrival) -> bool:
        """Send it to an instance, if it is let in there."""
        caches = [one.residents.names for one in self.instances]
        number = self._route(arrival.loras, caches, [one.num_inside for one in self.instances])
        instance = self.instances[number]
        left_s = arrival.deadline_s - arrival.arrival_s
        if not self._admit(instance.num_waiting, instance.expected_s(arrival), left_s):
            return False
        when_s = instance.add(arrival, arrival.arrival_s)
        if when_s is not None:
            self._plan(number, when_s)
        return True

    def run_until(self, until_s: float) -> None:
        """Process all events before this time; an arrival at the same time as an event is added before it."""
        while self._heap and self._heap[0][0] < until_s:
            when_s, number = heapq.heappop(self._heap)
            if when_s == self._planned[number]:
                self._plan(number, self.instances[number].advance_to(when_s))

    def _plan(self, number: int, when_s: float | None) -> None:
        self._planned[number] = when_s
        if when_s is not None:
            heapq.heappush(self._heap, (when_s, number))
